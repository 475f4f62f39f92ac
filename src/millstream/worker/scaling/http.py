"""Serves the wanted numbers of processes over HTTP, for external scalers: ``/`` as JSON, ``/metrics`` for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from millstream.errors import BrokerError, UsageError
from millstream.model.address import write_address
from millstream.worker.scaling.wanted import Forecast, Wanted, as_prometheus

LOOK_SECONDS = 1.0
REQUEST_SECONDS = 5.0
"""Maximum seconds for a client to send its request."""


async def serve_wanted(forecast: Forecast, host: str, port: int, say: Callable[[str], object]) -> None:
    """Serve the figures over HTTP until cancelled. ``say`` is called with the URL, and with the error of an outage.

    While the queue server is unreachable, the response is 503, so that no client scales by old figures. Raises UsageError if
    the host and port cannot be used.
    """
    found: list[Wanted] | None = None

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1] if head.count(b" ") >= 2 else b""
            writer.write(_response(path.decode("ascii", "replace"), found))
            await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host, port)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error}") from error
    async with server as listener:
        for socket in listener.sockets:
            say("listening on http://{}:{}/ and /metrics".format(*socket.getsockname()[:2]))
        while True:
            try:
                found = await forecast.look()
            except BrokerError as error:
                if found is not None:
                    say(f"the server is unreachable: {error}")
                found = None
            await asyncio.sleep(LOOK_SECONDS)


def _response(path: str, found: list[Wanted] | None) -> bytes:
    if found is None:
        return _http("503 Service Unavailable", "text/plain", b"the queue server is unreachable\n")
    if path.partition("?")[0] == "/metrics":
        return _http("200 OK", "text/plain; version=0.0.4", as_prometheus(found).encode())
    if path.partition("?")[0] == "/":
        # Keyed by address, because KEDA's metrics-api selects a value by name. Dots would split a name there.
        by_address = {each.address.replace(".", "_"): each for each in found}
        return _http("200 OK", "application/json", msgspec.json.encode(by_address, enc_hook=write_address))
    return _http("404 Not Found", "text/plain", b"not found: use / or /metrics\n")


def _http(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
