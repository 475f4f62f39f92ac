"""Links to the server: one connection each, many calls in flight, answers in order. A command is never sent twice.

Hot: redis-py connects and logs in; then its transport speaks to ``Wire``, which packs and parses with hiredis in C and answers
futures from ``data_received``. No task, stream or timer stands between the socket and who waits. (Measured: a call alone takes
0.7 of what it took through redis-py's stream reader and a task.)
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
from millstream.backends.redis.connect import Connector, abort, has_moved, transport_of
from millstream.errors import BrokerError, BrokerUnavailable

CALL_TIMEOUT = 3.0
"""Seconds an answer may take before the connection is given up (blocking calls: beyond their block).

Well below the 5 s for which clients retry: a call on a dead connection is repeated on a new one before its caller gives up.
"""

REST_SECONDS = 2.0
"""A connection without calls for this long (CALL_TIMEOUT later at the latest) is checked by a PING before its next use.

Load balancers and NAT gateways drop idle connections without telling either end.
"""

CHECK_TIMEOUT = 1.0
"""Seconds in which a rested connection must answer that PING."""

LATE_SECONDS = 0.5
"""A deadline that is checked this much too late says that this process was busy, not that the server is silent."""

_pack = cast(Callable[[tuple[Any, ...]], bytes], hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
_INCOMPLETE = object()
_PING = _pack(("PING",))


class Wire(asyncio.Protocol):
    """One connection from its login to its end. Every call is answered once: by the server, or with the error that ended it."""

    def __init__(self, connection: AbstractConnection, connector: Connector) -> None:
        self.lost: BrokerError | None = None
        """Why it ended."""
        self.fresh = False
        """A call was sent during the last CALL_TIMEOUT, and the connection is not lost."""
        self._connection = connection  # keeps it from being closed as garbage
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._rests_since = self._loop.time()
        self._heard = 0.0
        """Loop time at which the server last said something."""
        self._parser = hiredis.Reader(protocolError=InvalidResponse, replyError=ResponseError, notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[asyncio.Future[Any], float, float]] = deque()
        """Who waits, until when by loop time, and for how many seconds in all."""
        self._timer: asyncio.TimerHandle | None = None
        self._transport = transport_of(connection)
        self._transport.set_protocol(self)

    @property
    def rested(self) -> bool:
        """Whether it was idle for so long that it may have been dropped silently. Only asked if it is not fresh."""
        return self._loop.time() - self._rests_since >= REST_SECONDS

    def send(self, packed: bytes, answers: int, block: float, within: float = 0.0) -> list[asyncio.Future[Any]]:
        """Write commands; the futures have their answers, errors among them as values. ``within``: seconds in which the server
        must answer, if that is less than usual."""
        patience = within or block + CALL_TIMEOUT
        deadline = self._loop.time() + patience
        futures = [self._loop.create_future() for _ in range(answers)]
        self._waiting.extend([(future, deadline, patience) for future in futures])
        if self._timer is None:
            if self.lost is not None:  # since the caller has seen it
                self._answer_all(self.lost)
                return futures
            self.fresh = True
            self._timer = self._loop.call_at(deadline, self._look)
        elif within and deadline < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._look)
        # What is in flight is bounded by the callers, who wait for their answers: no need to heed the transport's.
        self._transport.write(packed)
        return futures

    async def answers_ping(self) -> bool:
        """Whether the server still knows this connection. Not fresh, so that no call overtakes the check."""
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
                if not future.done():  # a cancelled caller does no harm
                    future.set_result(answer)
        except (RedisError, IndexError) as error:  # not the protocol; an answer nobody asked for
            self.lose(self._connector.translate(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(self._connector.translate(exc or ConnectionResetError("the server closed the connection")))

    def lose(self, error: BrokerError) -> None:
        """End the connection; every call in flight fails with ``error``."""
        if self.lost is not None:
            return
        self.lost, self.fresh = error, False
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
        """One timer for all calls: the connection is lost when the first deadline has passed, and the server was silent for as
        long as that call may take. While it answers, the others wait in line: thousands of calls may be in flight."""
        self._timer, now = None, self._loop.time()
        if not self._waiting:
            self.fresh, self._rests_since = False, now
            return
        deadline, patience = min((deadline, patience) for _, deadline, patience in self._waiting)
        deadline = max(deadline, self._heard + patience)
        if now - deadline >= LATE_SECONDS:
            # The loop was held up; the answers may lie in the socket. Once more, after they have been read.
            deadline = now + LATE_SECONDS / 2
            self._waiting = deque([(future, max(until, deadline), whole) for future, until, whole in self._waiting])
        elif now >= deadline:
            self.lose(BrokerUnavailable(f"{self._connector.where} did not answer within {patience:g} s"))
            return
        self._timer = self._loop.call_at(deadline, self._look)


class Link:
    """One connection, used by many at once. A broken one fails every call in flight and is replaced by the next call."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._wire: Wire | None = None
        self._preparing = SharedAttempt(self._prepare, self._why_closed)
        self._closed = False
        self.server: dict[str, str] = {}
        """The server section of INFO, read on every connect: its run id tells one life of a server from the next."""
        self.client_id = 0
        """Of the connection; 0: not known."""

    @property
    def run_id(self) -> str:
        """Which life of the server this link talks to; empty: not known."""
        return self.server.get("run_id", "")

    async def ready(self) -> None:
        """Connect if need be."""
        if self._wire is None or not self._wire.fresh:
            await self._usable()

    async def call(self, *command: Any, within: float = 0.0) -> Any:
        """Send one command and wait for its answer, at most CALL_TIMEOUT, or ``within`` seconds if that is given."""
        wire = self._wire
        if wire is None or not wire.fresh:
            wire = await self._usable()
        answer = await wire.send(_pack(command), 1, 0.0, within)[0]
        if isinstance(answer, Exception):
            raise self._error(wire, answer)
        return answer

    async def call_together(self, commands: Sequence[tuple[Any, ...]], *, block: float = 0.0) -> list[Any]:
        """Send several commands in one write; their answers, in order, at most CALL_TIMEOUT beyond ``block`` seconds later.
        Raises the first error among them."""
        wire = self._wire
        if wire is None or not wire.fresh:
            wire = await self._usable()
        futures = wire.send(b"".join([_pack(command) for command in commands]), len(commands), block)
        answers = [await future for future in futures]
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._error(wire, answer)
        return answers

    def _error(self, wire: Wire, answer: Exception) -> BrokerError:
        if isinstance(answer, BrokerError):
            return answer
        error = self._connector.translate(answer)
        if has_moved(answer):
            # The primary is elsewhere by now: the next call connects anew, and asks for the address again.
            self._connector.moves += 1
            wire.lose(error)
        return error

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        self._closed = True
        await self._preparing.cancel()
        if self._wire is not None:
            self._wire.lose(BrokerUnavailable(self._why_closed()))
            await asyncio.sleep(0)  # the transport lets go of its socket on the next turn of the loop

    def _why_closed(self) -> str:
        return f"this process closed its connection to {self._connector.where}, because the app or worker that used it ended"

    async def _usable(self) -> Wire:
        """A connection that was used a moment ago, was checked, or is new."""
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
