"""Find out why a login failed. This uses a second, short connection, since the first one often ends before its error is
read."""

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
"""Seconds for each check. They delay the report of a failed login."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def diagnose(url: str, where: str) -> BrokerRefused | RedisError | None:
    """Return the reason: TLS on only one side, or the error that the server sends to every new connection. ``None`` if unknown.

    A server in protected mode, or at its connection limit, sends an error and closes the connection before it reads anything.
    """
    if url.startswith("rediss://"):
        answer = await _answer(url, b"PING\r\n")
        if answer.startswith((b"+", b"-")):
            return BrokerRefused(f"{where}: the server does not speak TLS on this port. Use redis://, or the server's TLS port")
        return None
    answer = await _answer(url, b"")
    if answer.startswith(b"-"):
        return ResponseError(answer[1:].split(b"\r\n")[0].decode("utf-8", "replace"))
    if url.startswith("redis://") and await _speaks_tls(url):
        return BrokerRefused(f"{where}: the server speaks TLS on this port. Use rediss:// instead of redis://")
    return None


async def _answer(url: str, question: bytes) -> bytes:
    """Send ``question`` and return the first bytes of the reply. Empty if the server sends nothing in time."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(DIAGNOSIS_SECONDS), _connected(url) as (reader, writer):
            writer.write(question)
            return await reader.read(1024)
    return b""


async def _speaks_tls(url: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Without certificates, because loading them is slow.
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
