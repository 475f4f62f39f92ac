"""The proxy of the chaos suite injects exactly the requested faults."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Self

import pytest

from chaos.proxy import Proxy


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("p") / "echo")


def looped(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


class Echo:
    """A proxy in front of an echo server, with its client connections."""

    def __init__(self, path: str) -> None:
        self.proxy = Proxy(path, random.Random(1))
        self.heard = b""
        """The bytes that the server received."""
        self._path = path
        self._connections: list[socket.socket] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> socket.socket:
        connection = socket.socket()
        connection.setblocking(False)
        self._connections.append(connection)
        port = int(self.proxy.url.removesuffix("/0").rsplit(":", 1)[1])
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return connection

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._echo, self._path)
        await self.proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.stop()
        for connection in self._connections:
            connection.close()
        for writer in self._writers:
            writer.transport.abort()
        self._server.close()
        await asyncio.sleep(0)  # transports close their sockets in the next iteration of the event loop

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.heard += data
                writer.write(data)


async def said(connection: socket.socket, what: bytes) -> bytes:
    """Send bytes and return the reply, or its part that arrived before the connection ended."""
    loop = asyncio.get_running_loop()
    answer = b""
    with contextlib.suppress(ConnectionError):
        await loop.sock_sendall(connection, what)
        while len(answer) < len(what) and (data := await loop.sock_recv(connection, 1 << 16)):
            answer += data
    return answer


@looped
async def test_without_faults_the_proxy_forwards_everything(path: str) -> None:
    async with Echo(path) as echo:
        connection = await echo.connect()
        assert await said(connection, b"x" * 200_000) == b"x" * 200_000


@looped
async def test_a_cut_resets_existing_and_new_connections_until_it_ends(path: str) -> None:
    async with Echo(path) as echo:
        before = await echo.connect()
        assert await said(before, b"hello") == b"hello"
        with echo.proxy.cut():
            assert await said(before, b"hello") == b""
            assert await said(await echo.connect(), b"hello") == b""
        assert await said(await echo.connect(), b"hello") == b"hello"


@looped
async def test_a_connection_that_lost_bytes_stays_half_open(path: str) -> None:
    async with Echo(path) as echo:
        spoke, was_quiet = await echo.connect(), await echo.connect()
        assert await said(spoke, b"hello") == await said(was_quiet, b"hello") == b"hello"
        with echo.proxy.silence():
            answer = asyncio.ensure_future(said(spoke, b"lost"))
            assert not (await asyncio.wait([answer], timeout=0.2))[0]
        assert await said(was_quiet, b"hello") == b"hello"
        assert not (await asyncio.wait([answer], timeout=0.2))[0]
        assert await said(await echo.connect(), b"hello") == b"hello"
        answer.cancel()
        await asyncio.wait([answer])


@looped
async def test_stalled_bytes_arrive_later(path: str) -> None:
    async with Echo(path) as echo:
        connection = await echo.connect()
        with echo.proxy.stalled():
            answer = asyncio.ensure_future(said(connection, b"late"))
            assert not (await asyncio.wait([answer], timeout=0.2))[0]
        assert await answer == b"late"


@pytest.mark.parametrize(("how", "arrives"), [("lose", b""), ("tear", b"01234")])
@looped
async def test_a_reply_is_lost_or_truncated_and_its_connection_reset(path: str, how: Any, arrives: bytes) -> None:
    async with Echo(path) as echo:
        connection = await echo.connect()
        with echo.proxy.broken(how, 1.0):
            assert await said(connection, b"0123456789") == arrives
        assert await said(await echo.connect(), b"hello") == b"hello"


@pytest.mark.parametrize(("side", "arrived"), [("request", b""), ("reply", b"two")])
@looped
async def test_exactly_one_call_is_lost_as_a_request_or_as_a_reply(path: str, side: Any, arrived: bytes) -> None:
    async with Echo(path) as echo:
        connection = await echo.connect()
        with echo.proxy.losing(side, 2) as loss:
            assert await said(connection, b"one") == b"one"
            assert not loss.happened
            assert await said(connection, b"two") == b""
            assert loss.happened
            assert await said(await echo.connect(), b"three") == b"three"
        assert echo.heard == b"one" + arrived + b"three"


@looped
async def test_a_loss_that_was_not_reached_does_not_happen(path: str) -> None:
    async with Echo(path) as echo:
        connection = await echo.connect()
        with echo.proxy.losing("reply", 2) as loss:
            assert await said(connection, b"one") == b"one"
        assert not loss.happened
        assert await said(connection, b"two") == b"two"


@looped
async def test_forgotten_connections_stay_open_and_lose_everything_sent(path: str) -> None:
    async with Echo(path) as echo:
        before = await echo.connect()
        assert await said(before, b"hello") == b"hello"
        echo.proxy.forget_all()
        answer = asyncio.ensure_future(said(before, b"lost"))
        assert await said(await echo.connect(), b"hello") == b"hello"
        assert not (await asyncio.wait([answer], timeout=0.2))[0]
        answer.cancel()
        await asyncio.wait([answer])


@looped
async def test_only_idle_connections_are_forgotten(path: str) -> None:
    async with Echo(path) as echo:
        busy, idle = await echo.connect(), await echo.connect()
        assert await said(busy, b"hello") == await said(idle, b"hello") == b"hello"
        echo.proxy.forgets_after = 0.3
        for _ in range(8):
            await asyncio.sleep(0.05)
            assert await said(busy, b"hello") == b"hello"
        answer = asyncio.ensure_future(said(idle, b"lost"))
        assert not (await asyncio.wait([answer], timeout=0.2))[0]
        answer.cancel()
        await asyncio.wait([answer])


@looped
async def test_a_new_target_address_applies_to_new_connections(path: str) -> None:
    async with Echo(path) as echo, Echo(f"{path}-2") as other:
        before = await echo.connect()
        assert await said(before, b"one") == b"one"
        echo.proxy.server_path = f"{path}-2"
        assert await said(before, b"two") == b"two"
        assert await said(await echo.connect(), b"three") == b"three"
        assert (echo.heard, other.heard) == (b"onetwo", b"three")
