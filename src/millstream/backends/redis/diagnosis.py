"""Why a login failed: asked on a second, short connection, since the first one often ends before its reason is read."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit

from redis.exceptions import RedisError, ResponseError

from millstream.errors import BrokerRefused

DIAGNOSIS_SECONDS = 0.5
"""For each question. A failed login is told a little later for it."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def diagnose(url: str, where: str) -> BrokerRefused | RedisError | None:
    """What stands in the way: TLS on one side only, or what the server says to everyone who connects. None: nothing was found.

    Servers in protected mode, and servers that have no connection left, say so and hang up at once, before they read anything.
    """
    if url.startswith("rediss://"):
        answer = await _answer(url, b"PING\r\n")
        if answer.startswith((b"+", b"-")):
            return BrokerRefused(f"{where}: the server does not speak TLS on this port; write redis:// or use its TLS port")
        return None
    answer = await _answer(url, b"")
    if answer.startswith(b"-"):
        return ResponseError(answer[1:].split(b"\r\n")[0].decode("utf-8", "replace"))
    if url.startswith("redis://") and await _speaks_tls(url):
        return BrokerRefused(f"{where}: the server speaks TLS on this port; write rediss:// instead of redis://")
    return None


async def _answer(url: str, question: bytes) -> bytes:
    """The first bytes the server sends; empty if it sends none in time."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(DIAGNOSIS_SECONDS), _connected(url) as (reader, writer):
            writer.write(question)
            return await reader.read(1024)
    return b""


async def _speaks_tls(url: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without certificates: reading them takes long
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(DIAGNOSIS_SECONDS), _connected(url, context):
            return True
    return False


@asynccontextmanager
async def _connected(url: str, context: ssl.SSLContext | None = None) -> AsyncGenerator[Streams]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(unquote(parts.path))
    else:
        host = unquote(parts.hostname or "") or "localhost"
        reader, writer = await asyncio.open_connection(host, parts.port or 6379, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
