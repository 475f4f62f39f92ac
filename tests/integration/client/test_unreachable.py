"""An unreachable server: the error names the address, the elapsed time and the cause, and never contains a password."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from millstream import Millstream
from millstream.backends.redis import connect as connect_module
from millstream.client import client as client_module
from millstream.client import outbox as outbox_module
from millstream.errors import BrokerUnavailable, MillstreamError
from tests.stage import looped

Verb = Callable[[Millstream], Awaitable[object]]


async def enqueue(app: Millstream) -> object:
    return await app.tasks["shrink"].enqueue(1)


async def result(app: Millstream) -> object:
    return await app.job("a-job", queue="default").result(timeout=0)


VERBS: dict[str, Verb] = {
    "status": lambda app: app.job("a-job", queue="default").status(),
    "enqueue": enqueue,
    "result": result,
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port that refuses connections until it listens, and then never replies. Callers give up before attempts do."""
    monkeypatch.setattr(client_module, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(outbox_module, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("millstream.jobs.job.LAST_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(connect_module, "CONNECT_TIMEOUT", 1_000.0)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield server


def build(server: socket.socket) -> tuple[Millstream, str]:
    port = server.getsockname()[1]
    app = Millstream(f"redis://me:secret@127.0.0.1:{port}/3")

    @app.task
    async def shrink(n: int) -> int:
        return n

    return app, f"redis://me:***@127.0.0.1:{port}/3"


async def told(verb: Awaitable[Any]) -> str:
    with pytest.raises(MillstreamError) as caught:
        await verb
    assert "secret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("verb", VERBS)
@looped
async def test_a_first_connection_attempt_that_hangs_names_the_address_and_what_to_check(
    server: socket.socket, verb: str
) -> None:
    app, place = build(server)
    server.listen()
    text = await told(VERBS[verb](app))
    assert f"no connection to {place} within 0.2 s: the first attempt has not ended. Check that the server is up" in text


@pytest.mark.parametrize("verb", VERBS)
@looped
async def test_a_connection_attempt_that_hangs_includes_the_error_of_the_previous_attempt(
    server: socket.socket, verb: str
) -> None:
    app, place = build(server)
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        await app.broker()
    server.listen()
    text = await told(VERBS[verb](app))
    assert f"no connection to {place} within 0.2 s. The last attempt failed: {place} cannot be reached: " in text


@looped
async def test_an_embedded_server_is_named_by_its_folder(embedded_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> object:
        raise ConnectionRefusedError("nobody is there")

    app = Millstream(embedded_url)
    monkeypatch.setattr("redis.asyncio.connection.AbstractConnection.connect", away)
    folder = embedded_url.removeprefix("embedded://")
    with pytest.raises(BrokerUnavailable, match=f"^embedded server in {folder} cannot be reached: nobody is there"):
        await asyncio.wait_for(app.broker(), 30)
