"""Links to the server. A link has one connection with many calls in flight; replies come in order. It never resends a command.

Hot path: redis-py connects and logs in. After that, the transport belongs to ``Wire``, which packs and parses with hiredis in C
and resolves futures in ``data_received``. There is no task, stream or timer between the socket and the caller. (Measured: a
single call takes 0.7 of the time it took through redis-py's stream reader and a task.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from millstream.aio.shared_attempt import SharedAttempt
from millstream.backends.redis.connect import Connector, abort, is_demoted, transport_of
from millstream.errors import BrokerError, BrokerUnavailable

CALL_TIMEOUT = 3.0
"""Seconds that a reply may take before the connection is dropped. A blocking call has this much time after its block.

This is well below the 5 s for which clients retry, so a call on a dead connection is repeated on a new one in time.
"""

REST_SECONDS = 2.0
"""A connection that was idle for this long (at most CALL_TIMEOUT longer) is checked with a PING before its next use.

Load balancers and NAT gateways drop idle connections without notifying either end.
"""

CHECK_TIMEOUT = 1.0
"""Seconds within which an idle connection must answer this PING."""

LATE_SECONDS = 0.5
"""If a deadline is checked this many seconds too late, this process was busy, and the server may well have answered."""

_pack = cast(Callable[[tuple[Any, ...]], bytes], hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
_INCOMPLETE = object()
_PING = _pack(("PING",))


class ServerChanged(BrokerError):
    """The call was meant for another server, or for its process before a restart. Nothing was sent."""


class Wire(asyncio.Protocol):
    """One connection from its login to its end. Every call gets one answer: the server's reply, or the error that ended the
    connection."""

    def __init__(self, connection: AbstractConnection, connector: Connector) -> None:
        self.lost: BrokerError | None = None
        """Why the connection ended, or ``None``."""
        self.fresh = False
        """Whether the connection is alive and a call was sent during the last CALL_TIMEOUT seconds."""
        self._connection = connection  # A reference, so that garbage collection does not close the connection.
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._rests_since = self._loop.time()
        self._heard = 0.0
        """Loop time at which the last data arrived from the server."""
        self._parser = hiredis.Reader(protocolError=InvalidResponse, replyError=ResponseError, notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[asyncio.Future[Any], float, float]] = deque()
        """Calls in flight: the future, its deadline in loop time, and its timeout in seconds."""
        self._timer: asyncio.TimerHandle | None = None
        self._transport = transport_of(connection)
        self._transport.set_protocol(self)

    @property
    def rested(self) -> bool:
        """Whether the connection was idle long enough to have been dropped silently. Only valid if it is not fresh."""
        return self._loop.time() - self._rests_since >= REST_SECONDS

    def send(self, packed: bytes, answers: int, block: float, within: float = 0.0) -> list[asyncio.Future[Any]]:
        """Write commands and return one future per reply. Errors are set as results, not raised.

        ``within`` is a shorter timeout in seconds; 0 means ``block`` plus CALL_TIMEOUT.
        """
        patience = within or block + CALL_TIMEOUT
        deadline = self._loop.time() + patience
        futures = [self._loop.create_future() for _ in range(answers)]
        self._waiting.extend([(future, deadline, patience) for future in futures])
        if self._timer is None:
            if self.lost is not None:  # The connection ended after the caller checked it.
                self._answer_all(self.lost)
                return futures
            self.fresh = True
            self._timer = self._loop.call_at(deadline, self._look)
        elif within and deadline < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._look)
        # Callers wait for their replies, which limits the data in flight. So the transport's flow control is not needed.
        self._transport.write(packed)
        return futures

    async def answers_ping(self) -> bool:
        """Return whether the connection still works. It is not fresh during the check, so that other calls wait for the
        result."""
        (answer,) = self.send(_PING, 1, 0.0, CHECK_TIMEOUT)
        self.fresh = False
        await answer
        self.fresh = self.lost is None
        return self.fresh

    def data_received(self, data: bytes) -> None:
        parser, waiting = self._parser, self._waiting
        self._heard = self._loop.time()
        parser.feed(data)
        try:
            while (answer := parser.gets()) is not _INCOMPLETE:
                future = waiting.popleft()[0]
                if not future.done():  # The caller may have been cancelled.
                    future.set_result(answer)
        except (RedisError, IndexError) as error:  # A protocol error, or a reply without a call.
            self.lose(self._connector.translate(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(self._connector.translate(exc or ConnectionResetError("the server closed the connection")))

    def lose(self, error: BrokerError) -> None:
        """End the connection. Every call in flight fails with ``error``."""
        if self.lost is not None:
            return
        self.lost, self.fresh = error, False
        self._connector.troubled()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._answer_all(error)
        abort(self._connection)

    def _answer_all(self, error: BrokerError) -> None:
        for future, _, _ in self._waiting:
            if not future.done():
                future.set_result(error)
        self._waiting.clear()

    def _look(self) -> None:
        """Check the deadlines of all calls in flight. One timer serves all of them.

        The connection counts as lost when the earliest deadline has passed and the server has sent nothing for that call's
        timeout. While the server sends replies, calls may wait longer than their timeout: thousands may be in flight.
        """
        self._timer, now = None, self._loop.time()
        if not self._waiting:
            self.fresh, self._rests_since = False, now
            return
        deadline, patience = min((deadline, patience) for _, deadline, patience in self._waiting)
        deadline = max(deadline, self._heard + patience)
        if now - deadline >= LATE_SECONDS:
            # The event loop was blocked, and replies may be waiting in the socket. Check again after they have been read.
            deadline = now + LATE_SECONDS / 2
            self._waiting = deque([(future, max(until, deadline), whole) for future, until, whole in self._waiting])
        elif now >= deadline:
            self.lose(BrokerUnavailable(f"{self._connector.where} did not answer within {patience:g} s"))
            return
        self._timer = self._loop.call_at(deadline, self._look)


class Link:
    """One connection shared by many callers. When it breaks, every call in flight fails, and the next call connects again."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._wire: Wire | None = None
        self._preparing = SharedAttempt(self._prepare, self._why_closed)
        self._closed = False
        self.server: dict[str, str] = {}
        """The server section of INFO, read on every connect. Its run id changes with every restart of the server."""
        self.client_id = 0
        """The client id of the connection, or 0 if it is unknown."""

    @property
    def run_id(self) -> str:
        """The run id of the server process, or an empty string if it is unknown."""
        return self.server.get("run_id", "")

    async def ready(self) -> None:
        """Connect, unless the connection is usable."""
        if self._wire is None or not self._wire.fresh:
            await self._usable()

    async def call(self, *command: Any, within: float = 0.0, only_on: str = "") -> Any:
        """Send one command and return its reply. The timeout is CALL_TIMEOUT, or ``within`` seconds if that is not 0.

        ``only_on`` is a run id. If the server has another one, nothing is sent and the call raises ServerChanged.
        """
        wire = self._wire
        if wire is None or not wire.fresh:
            wire = await self._usable()
        if only_on and only_on != self.run_id:
            raise self._changed()
        answer = await wire.send(_pack(command), 1, 0.0, within)[0]
        if isinstance(answer, Exception):
            raise self._error(wire, answer)
        return answer

    async def call_together(self, commands: Sequence[tuple[Any, ...]], *, block: float = 0.0, only_on: str = "") -> list[Any]:
        """Send several commands in one write and return their replies in order. Raises the first error among them.

        The timeout is ``block`` seconds plus CALL_TIMEOUT. ``only_on`` works as in ``call``.
        """
        wire = self._wire
        if wire is None or not wire.fresh:
            wire = await self._usable()
        if only_on and only_on != self.run_id:
            raise self._changed()
        futures = wire.send(b"".join([_pack(command) for command in commands]), len(commands), block)
        answers = [await future for future in futures]
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._error(wire, answer)
        return answers

    def _changed(self) -> ServerChanged:
        return ServerChanged(f"{self._connector.where} was restarted, or another server replaced it")

    def _error(self, wire: Wire, answer: Exception) -> BrokerError:
        if isinstance(answer, BrokerError):
            return answer
        error = self._connector.translate(answer)
        if is_demoted(answer):
            # Another server is the primary now. The next call resolves the address again and connects to it.
            self._connector.moves += 1
            wire.lose(error)
        elif isinstance(error, BrokerUnavailable):
            self._connector.troubled()
        return error

    async def close(self) -> None:
        """Close the connection. Calls in flight fail."""
        self._closed = True
        await self._preparing.cancel()
        if self._wire is not None:
            self._wire.lose(BrokerUnavailable(self._why_closed()))
            await asyncio.sleep(0)  # The transport closes its socket in the next iteration of the event loop.

    def _why_closed(self) -> str:
        return f"this process closed its connection to {self._connector.where}, because its app or worker was closed"

    async def _usable(self) -> Wire:
        """Return a connection that was used recently, was just checked, or is new."""
        wire = self._wire
        if wire is not None and wire.lost is None and not wire.rested:
            return wire
        return await self._preparing.run()

    async def _prepare(self) -> Wire:
        if self._closed:
            raise BrokerUnavailable(self._why_closed())
        wire = self._wire
        if wire is not None and wire.lost is None and await wire.answers_ping():
            return wire
        connection, self.server, self.client_id = await self._connector.connect_and_learn()
        with self._connector.translated(connection):
            wire = self._wire = Wire(connection, self._connector)
        return wire
