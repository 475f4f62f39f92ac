"""Links to the server: one connection each, many calls in flight, answers in order. Nothing is ever sent twice here.

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

from millstream.errors import BrokerError, BrokerUnavailable
from millstream.redis.connect import CONNECT_TIMEOUT, Connector, abort, ask, check_version, parse_info, transport_of

CALL_TIMEOUT = 5.0
"""Seconds an answer may take before the connection is given up for dead (blocking calls: beyond their block)."""

LATE_SECONDS = 0.5
"""A deadline looked at so much too late says that this process was busy, not that the server is silent."""

_pack = cast(Callable[[tuple[Any, ...]], bytes], hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
_INCOMPLETE = object()


class Wire(asyncio.Protocol):
    """One connection from its login to its end. Every call is answered once: by the server, or with the error that ended it."""

    def __init__(self, connection: AbstractConnection, connector: Connector) -> None:
        self.lost: BrokerError | None = None
        """Why it ended."""
        self._connection = connection  # keeps it from being closed as garbage
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._parser = hiredis.Reader(protocolError=InvalidResponse, replyError=ResponseError, notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[asyncio.Future[Any], float, float]] = deque()
        """Who waits, until when by loop time, and for how many seconds in all."""
        self._timer: asyncio.TimerHandle | None = None
        self._transport = transport_of(connection)
        self._transport.set_protocol(self)

    def send(self, packed: bytes, answers: int, block: float) -> list[asyncio.Future[Any]]:
        """Write commands; the futures have their answers, errors among them as values."""
        patience = block + CALL_TIMEOUT
        deadline = self._loop.time() + patience
        futures = [self._loop.create_future() for _ in range(answers)]
        self._waiting.extend([(future, deadline, patience) for future in futures])
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look)
        # What is in flight is bounded by the callers, who wait for their answers: no need to heed the transport's.
        self._transport.write(packed)
        return futures

    def data_received(self, data: bytes) -> None:
        parser, waiting = self._parser, self._waiting
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
        self.lost = error
        if self._timer is not None:
            self._timer.cancel()
        for future, _, _ in self._waiting:
            if not future.done():
                future.set_result(error)
        self._waiting.clear()
        abort(self._connection)

    def _look(self) -> None:
        """One timer for all: answers come in order, so only the first in line can be overdue."""
        self._timer = None
        if not self._waiting:
            return
        _, deadline, patience = self._waiting[0]
        late = self._loop.time() - deadline
        if late >= LATE_SECONDS:
            # The loop was held up; the answer may lie in the socket. Once more, after that has been read.
            self._waiting[0] = (self._waiting[0][0], self._loop.time() + LATE_SECONDS / 2, patience)
        elif late >= 0:
            self.lose(BrokerUnavailable(f"{self._connector.where} did not answer within {patience:g} s"))
            return
        self._timer = self._loop.call_at(self._waiting[0][1], self._look)


class Link:
    """One connection, used by many at once. A broken one fails every call in flight and is replaced by the next call."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._wire: Wire | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self.server: dict[str, str] = {}
        """The server section of INFO, read on every connect: its run id tells one life of a server from the next."""
        self.client_id = 0

    @property
    def run_id(self) -> str:
        """Which life of the server this link talks to."""
        return self.server.get("run_id", "")

    async def ready(self) -> None:
        """Connect if need be."""
        if self._wire is None or self._wire.lost is not None:
            await self._connect()

    async def call(self, *command: Any) -> Any:
        """Send one command and wait for its answer, at most CALL_TIMEOUT."""
        wire = self._wire
        if wire is None or wire.lost is not None:
            wire = await self._connect()
        answer = await wire.send(_pack(command), 1, 0.0)[0]
        if isinstance(answer, Exception):
            raise self._error(answer)
        return answer

    async def call_together(self, commands: Sequence[tuple[Any, ...]], *, block: float = 0.0) -> list[Any]:
        """Send several commands in one write; their answers, in order, at most CALL_TIMEOUT beyond ``block`` seconds later.
        Raises the first error among them."""
        wire = self._wire
        if wire is None or wire.lost is not None:
            wire = await self._connect()
        futures = wire.send(b"".join([_pack(command) for command in commands]), len(commands), block)
        answers = [await future for future in futures]
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._error(answer)
        return answers

    def _error(self, answer: Exception) -> BrokerError:
        return answer if isinstance(answer, BrokerError) else self._connector.translate(answer)

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        self._closed = True
        if self._wire is not None:
            self._wire.lose(BrokerUnavailable("the connection was closed"))
            await asyncio.sleep(0)  # the transport lets go of its socket on the next turn of the loop

    async def _connect(self) -> Wire:
        async with self._connecting:
            if self._wire is not None and self._wire.lost is None:
                return self._wire
            if self._closed:
                raise BrokerUnavailable("the broker is closed")
            connection = await self._connector.connect()
            with self._connector.translated(connection):
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    self.server = parse_info(await ask(connection, "INFO", "server"))
                    self.client_id = await ask(connection, "CLIENT", "ID")
                check_version(self.server, self._connector.where)
                self._wire = Wire(connection, self._connector)
            return self._wire
