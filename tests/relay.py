"""A relay between a client and a server that can go silent, like a load balancer that has dropped an idle connection."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast


class Relay:
    """Forwards bytes in both directions. A silenced connection stays open on both ends but forwards nothing."""

    def __init__(self) -> None:
        self.connections = 0
        self.silent = 0
        """Connections up to this number, counted from 1, are silenced."""
        self.pings: asyncio.Queue[None] = asyncio.Queue()

    def silence(self) -> None:
        """Silence every existing connection. New connections work."""
        self.silent = self.connections

    @asynccontextmanager
    async def serve(self, url: str, *, tcp: bool = False) -> AsyncGenerator[str]:
        """Yield a URL that leads through this relay to the server of a unix:// URL."""
        path = url.removeprefix("unix://")
        through = f"{path}-{secrets.token_hex(4)}"

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            carrying.add(cast("asyncio.Task[None]", asyncio.current_task()))
            self.connections += 1
            number = self.connections
            there, back = await asyncio.open_unix_connection(path)
            writers.extend((writer, back))
            await asyncio.gather(self._carry(number, reader, back), self._carry(number, there, writer))

        carrying, writers = set[asyncio.Task[None]](), list[asyncio.StreamWriter]()
        server = await (asyncio.start_server(accept, "127.0.0.1", 0) if tcp else asyncio.start_unix_server(accept, through))
        try:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0" if tcp else f"unix://{through}"
        finally:
            server.close()
            for writer in writers:
                writer.transport.abort()
            if carrying:
                await asyncio.wait(carrying)

    async def _carry(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                if number > self.silent:
                    writer.write(data)
                if b"PING" in data:
                    self.pings.put_nowait(None)
        writer.close()
