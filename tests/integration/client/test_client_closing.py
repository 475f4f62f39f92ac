"""One client per event loop: when it is created, closed, dropped and replaced."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from millstream import Millstream
from millstream.backends.memory import MemoryBroker
from millstream.backends.redis import connect as connect_module
from millstream.broker import Broker
from millstream.errors import BrokerUnavailable, UsageError
from millstream.model.address import Address
from tests.stage import looped, published

FOREVER = 1_000.0
"""Seconds. Longer than any test runs."""


def build(url: str = "memory://") -> tuple[Millstream, Any]:
    app = Millstream(url)

    @app.task
    async def shrink(n: int) -> int:
        return n

    return app, shrink


class Backends:
    """Count the backends that are opened and closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        self.closed = 0
        monkeypatch.setattr(MemoryBroker, "open", self._open)
        monkeypatch.setattr(MemoryBroker, "close", self._close)

    async def _open(self) -> None:
        self.opened += 1

    async def _close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Backends:
    return Backends(monkeypatch)


def test_the_end_of_the_event_loop_closes_open_clients(backends: Backends) -> None:
    _, shrink = build()
    for turn in (1, 2):
        asyncio.run(shrink.enqueue(1))
        assert (backends.opened, backends.closed) == (turn, turn)


@looped
async def test_concurrent_first_uses_open_one_client(backends: Backends) -> None:
    app, shrink = build()
    await asyncio.gather(*[shrink.enqueue(i) for i in range(5)], app.broker(), app.inspector.queues())
    assert backends.opened == 1


@looped
async def test_concurrent_first_uses_share_one_failure(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = asyncio.Event()

    async def fail(_: MemoryBroker) -> None:
        backends.opened += 1
        await opening.wait()
        raise BrokerUnavailable("nobody is there")

    monkeypatch.setattr(MemoryBroker, "open", fail)
    app, _ = build()
    uses = [asyncio.create_task(app.broker()) for _ in range(7)]
    await asyncio.sleep(0)
    opening.set()
    answers = await asyncio.gather(*uses, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["nobody is there"] * 7
    assert backends.opened == 1


@looped
async def test_leaving_the_last_block_closes_the_client_and_the_next_use_reopens_it(backends: Backends) -> None:
    app, shrink = build()
    async with app:
        assert backends.opened == 0, "entering the app does not connect"
        await shrink.enqueue(1)
        async with app as same:
            assert same is app
            await shrink.enqueue(2)
        assert backends.closed == 0
        await shrink.enqueue(3)
    assert (backends.opened, backends.closed) == (1, 1)
    await shrink.enqueue(4)
    assert backends.opened == 2


@looped
async def test_leaving_the_block_waits_for_jobs_that_are_being_sent() -> None:
    app, shrink = build()
    async with app:
        sending = asyncio.create_task(shrink.enqueue(1))
        await asyncio.sleep(0)
    assert (await sending).created
    assert await published(app) == {"default": 1}


def test_an_app_that_was_entered_and_dropped_warns(backends: Backends) -> None:
    async def use() -> None:
        app, shrink = build()
        await app.__aenter__()
        await shrink.enqueue(1)

    async def main() -> None:
        await use()
        with pytest.warns(ResourceWarning, match="never left"):
            gc.collect()

    asyncio.run(main())
    assert backends.closed == 1, "the backend is closed anyway"


def test_an_app_that_was_entered_in_an_ended_event_loop_warns() -> None:
    app, shrink = build()

    async def enter() -> None:
        await app.__aenter__()
        await shrink.enqueue(1)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(enter())
    loop.close()
    with pytest.warns(ResourceWarning, match="never left"):
        asyncio.run(shrink.enqueue(2))


def test_a_worker_that_was_entered_and_dropped_warns_and_stops(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        app, _ = build()
        dropped = app.worker()
        await dropped.__aenter__()
        with pytest.warns(ResourceWarning, match="a worker was entered"):
            del dropped
            gc.collect()
            while "stopped: 0 done" not in caplog.text:
                await asyncio.sleep(0)

    with caplog.at_level("INFO"):
        asyncio.run(main())


def test_an_app_that_was_used_but_never_entered_is_dropped_silently(backends: Backends) -> None:
    async def main() -> None:
        await build()[1].enqueue(1)
        gc.collect()
        while not backends.closed:
            await asyncio.sleep(0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
    assert backends.closed == 1


@looped
async def test_the_next_use_retries_a_server_that_was_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = build()
    answers: list[Exception] = [BrokerUnavailable("away")]

    async def flaky(self: Broker) -> None:
        if answers:
            raise answers.pop()

    monkeypatch.setattr(MemoryBroker, "open", flaky)
    with pytest.raises(BrokerUnavailable):
        await app.broker()
    assert await app.broker() is await app.broker()


@looped
async def test_override_replaces_the_backend_and_restores_it(backends: Backends) -> None:
    app, shrink = build("redis://no.such.host:1")
    with app.override("memory://") as same:
        assert same is app
        job = await shrink.enqueue(1)
        assert await job.status() == "ready"
        assert app.url.safe == "memory://"
        with app.override("memory://"):
            assert await job.status() == "unknown", "the inner override has its own backend"
        assert await job.status() == "ready"
    assert app.url.safe.startswith("redis://")
    while backends.closed < 2:
        await asyncio.sleep(0)


def test_override_applies_to_every_event_loop_inside_the_block() -> None:
    app, shrink = build("redis://no.such.host:1")
    with app.override("memory://"):
        asyncio.run(shrink.enqueue(1))
        shrink.enqueue_sync(2)
        assert app.inspector.queue_sync("default").ready == 2


def test_connections_of_a_dropped_app_are_closed_without_warnings(embedded_url: str) -> None:
    async def main() -> None:
        app, shrink = build(embedded_url)
        job = await shrink.enqueue(1)
        waiting = asyncio.create_task(job.result())
        while not (await (await app.broker()).inspector.queue(Address("default"))).ready:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        del app, shrink, job, waiting
        gc.collect()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


def test_override_refuses_an_invalid_url() -> None:
    app, _ = build()
    with pytest.raises(UsageError, match="scheme"), app.override("memory"):
        pass
    assert app.url.scheme == "memory"


def test_memory_backends_with_the_same_name_are_shared_and_unnamed_ones_are_private() -> None:
    (a, shrink_a), (b, _) = build("memory://shared-by-a-test"), build("memory://shared-by-a-test")
    (_, shrink_c), (d, _) = build(), build()
    shrink_a.enqueue_sync(1)
    shrink_c.enqueue_sync(1)
    assert (a.inspector.queue_sync("default").ready, b.inspector.queue_sync("default").ready) == (1, 1)
    assert d.inspector.queues_sync() == []


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A server that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


async def accepted(server: socket.socket) -> socket.socket:
    """Return the server side of a connection once the client has sent something."""
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(server)
    connection.setblocking(False)
    assert await loop.sock_recv(connection, 1_000)
    return connection


async def closed_by_the_client(connection: socket.socket) -> bool:
    with connection:
        return await asyncio.get_running_loop().sock_recv(connection, 1_000) == b""


@pytest.mark.parametrize("use", ["broker", "queues"])
@looped
async def test_leaving_an_override_cancels_its_connection_attempt(
    monkeypatch: pytest.MonkeyPatch, silent_server: socket.socket, use: str
) -> None:
    monkeypatch.setattr(connect_module, "CONNECT_TIMEOUT", FOREVER)
    app, _ = build()
    uses: dict[str, Any] = {"broker": app.broker, "queues": app.inspector.queues}
    with app.override(f"redis://127.0.0.1:{silent_server.getsockname()[1]}"):
        using = asyncio.create_task(uses[use]())
        connection = await accepted(silent_server)
    assert await closed_by_the_client(connection)
    with pytest.raises(BrokerUnavailable, match=r"redis://127\.0\.0\.1"):
        await using
    with pytest.raises(BlockingIOError):
        silent_server.accept()


@looped
async def test_dropping_an_app_cancels_its_connection_attempt(
    monkeypatch: pytest.MonkeyPatch, silent_server: socket.socket
) -> None:
    monkeypatch.setattr(connect_module, "CONNECT_TIMEOUT", FOREVER)

    async def use() -> socket.socket:
        app, _ = build(f"redis://127.0.0.1:{silent_server.getsockname()[1]}")
        using = asyncio.create_task(app.broker())
        connection = await accepted(silent_server)
        using.cancel()
        await asyncio.wait([using])
        return connection

    connection = await use()
    gc.collect()
    assert await closed_by_the_client(connection)


@looped
async def test_closing_the_app_ends_a_wait_for_a_result_without_reconnecting(embedded_url: str) -> None:
    app, shrink = build(embedded_url)
    async with app:
        job = await shrink.enqueue(1)
        waiting = asyncio.create_task(job.result())
        await job.status()
    with pytest.raises(BrokerUnavailable, match=r"embedded server in .* was closed"):
        await waiting
