"""A TCP proxy on loopback, between clients and a server, that misbehaves on request."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from typing import Literal

CHUNK = 1 << 16

Break = Literal["lose", "tear"]
"""What happens to a reply: none of it arrives, or half of it. Then the connection is reset."""

Side = Literal["request", "reply"]
"""The part of a call that is lost: the request never reaches the server, or the reply never reaches the client."""


class Loss:
    """The planned loss of one future call."""

    def __init__(self, side: Side, number: int) -> None:
        self.side = side
        self._left = number
        self.happened = False

    def strikes(self) -> bool:
        """Count one request. Return whether it is the one to lose."""
        self._left -= 1
        self.happened = self.happened or self._left == 0
        return self._left == 0


class _Connection:
    """One client's connection through the proxy."""

    def __init__(self) -> None:
        self.half_open = False
        """All further bytes vanish, in both directions."""
        self.used = time.monotonic()
        """Time of the last byte."""
        self.losing = False
        """The next reply is lost and the connection is reset."""


class Proxy:
    """Forwards bytes until told to misbehave. A setting applies to every connection, existing and new."""

    def __init__(self, server_path: str, rng: random.Random) -> None:
        self.server_path = server_path
        """The target of new connections. Existing connections keep theirs, as when a DNS name changes its address."""
        self._rng = rng
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._open: dict[asyncio.StreamWriter, _Connection] = {}
        self.refusing = False
        """New connections are reset."""
        self.silent = False
        """Bytes vanish in both directions while connections stay open. A connection that lost bytes stays half-open."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.delay = 0.0
        """Seconds of delay for every chunk, in either direction."""
        self.breaks: Break | None = None
        self.break_chance = 0.0
        """Probability that a reply is broken."""
        self.forgets_after: float | None = None
        """Seconds after which an idle connection is silently dropped, as by a load balancer; None: never."""
        self._loss: Loss | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = self._listener.sockets[0].getsockname()[1]

    def reset_all(self) -> None:
        """Reset every open connection."""
        for writer in list(self._open):
            _reset(writer)

    def forget_all(self) -> None:
        """Make every open connection half-open. New connections work."""
        for connection in self._open.values():
            connection.half_open = True

    @contextlib.contextmanager
    def losing(self, side: Side, number: int) -> Iterator[Loss]:
        """Lose the call with this number, counted from 1 inside the block, and reset its connection."""
        self._loss = Loss(side, number)
        try:
            yield self._loss
        finally:
            self._loss = None

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Reset all connections, existing and new, inside the block."""
        self.refusing = True
        self.reset_all()
        try:
            yield
        finally:
            self.refusing = False

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Let bytes vanish inside the block. A connection that sends anything stays half-open."""
        self.silent = True
        try:
            yield
        finally:
            self.silent = False

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Hold all bytes back inside the block, and deliver them afterwards."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    @contextlib.contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Delay every chunk inside the block, in either direction."""
        self.delay = seconds
        try:
            yield
        finally:
            self.delay = 0.0

    @contextlib.contextmanager
    def broken(self, how: Break, chance: float) -> Iterator[None]:
        """Lose or tear replies inside the block, each with this probability."""
        self.breaks, self.break_chance = how, chance
        try:
            yield
        finally:
            self.breaks = None

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            return
        there, back = await asyncio.open_unix_connection(self.server_path)
        connection = self._open[writer] = _Connection()
        pumps = [
            asyncio.ensure_future(self._requests(reader, back, connection)),
            asyncio.ensure_future(self._replies(there, writer, connection)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._open[writer]
            _reset(back)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _requests(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, connection: _Connection) -> None:
        while data := await reader.read(CHUNK):
            if not await self._passes(connection):
                continue
            if self._loss is not None and self._loss.strikes():
                if self._loss.side == "request":
                    return
                connection.losing = True
            server.write(data)
            await server.drain()

    async def _replies(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection) -> None:
        while data := await server.read(CHUNK):
            if not await self._passes(connection):
                continue
            if connection.losing:
                return
            if self.breaks and self._rng.random() < self.break_chance:
                if self.breaks == "tear":
                    writer.write(data[: len(data) // 2])
                return
            writer.write(data)
            await writer.drain()

    async def _passes(self, connection: _Connection) -> bool:
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._flowing.wait()
        idle, connection.used = time.monotonic() - connection.used, time.monotonic()
        if self.silent or (self.forgets_after is not None and idle > self.forgets_after):
            connection.half_open = True
        return not connection.half_open


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with RST instead of FIN."""
    end: socket.socket | None = writer.get_extra_info("socket")
    if end is not None and end.fileno() >= 0:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
