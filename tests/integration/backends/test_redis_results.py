"""A wait for a result ends with the result, even if calls fail and connections are lost."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from millstream.backends.redis import RedisBroker, results
from millstream.backends.redis.connect import Connector
from millstream.backends.redis.link import Link
from millstream.backends.redis.results import RedisResults
from millstream.broker import Post
from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable
from millstream.model.address import Address
from millstream.model.outcome import Kind, Outcome
from tests.relay import Relay
from tests.stage import looped

JOB = (Address("default"), "a")
ENDING = b"the ending"


class Door(Connector):
    """A connector that connects only while the door is open."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.open = asyncio.Event()
        self.open.set()

    async def connect(self) -> AbstractConnection:
        await self.open.wait()
        return await super().connect()


class Stage:
    """Result storage on a real server whose calls can fail or be delayed, with one job that the test can end."""

    def __init__(self, url: str, through: str) -> None:
        self.broker = RedisBroker(url, namespace=f"test-{uuid.uuid4().hex}")
        self.door = Door(through)
        self.results = RedisResults(self.door, self._run, f"channel-{uuid.uuid4().hex}")
        self.operator = Link(Connector(url))
        self.refusals: list[BrokerError] = []
        self.listened: asyncio.Queue[None] = asyncio.Queue()
        self.leaving = asyncio.Event()
        self.unlisten = asyncio.Event()
        self.unlisten.set()

    async def _run(self, name: str, *args: Any) -> Any:
        if name == "listen" and self.refusals:
            raise self.refusals.pop()
        if name == "unlisten":
            self.leaving.set()
            await self.unlisten.wait()
        answer = await self.broker._run(name, *args)
        if name == "listen":
            self.listened.put_nowait(None)
        return answer

    async def wait(self) -> asyncio.Task[bytes | None]:
        """Start a wait and return once it is registered."""
        waiting = asyncio.create_task(self.results.wait(*JOB, None))
        await self.listened.get()
        return waiting

    async def end(self) -> None:
        """End the job."""
        await self.broker.join(Address("default"), "hand", 30.0)
        (entry,) = (await self.broker.claim(Address("default"), "hand", 1)).entries
        await self.broker.settle(Address("default"), "hand", [Outcome(Kind.DONE, entry.ref, "a", ENDING, 60.0)])

    async def lose_the_subscription(self) -> None:
        """Kill the subscription; it cannot reconnect until the door opens."""
        self.door.open.clear()
        await self.operator.call("CLIENT", "KILL", "TYPE", "pubsub")


@asynccontextmanager
async def stage(url: str, through: str | None = None) -> AsyncGenerator[Stage]:
    it = Stage(url, through or url)
    await it.broker.publish(Address("default"), [Post("a", b"body")])
    try:
        yield it
    finally:
        await it.results.close()
        await it.broker.close()
        await it.operator.close()


@looped
async def test_a_new_wait_in_the_same_loop_step_as_a_cancelled_wait_receives_the_result(valkey_server: str) -> None:
    async with stage(valkey_server) as it:

        async def wait_again() -> bytes | None:
            with contextlib.suppress(asyncio.CancelledError):
                await it.results.wait(*JOB, None)
            return await it.results.wait(*JOB, None)

        waiting = asyncio.create_task(wait_again())
        await it.listened.get()
        waiting.cancel()
        await it.listened.get()
        await it.end()
        assert await waiting == ENDING


@looped
async def test_a_new_wait_during_the_cleanup_of_a_cancelled_wait_receives_the_result(valkey_server: str) -> None:
    async with stage(valkey_server) as it:
        first = await it.wait()
        it.unlisten.clear()
        first.cancel()
        await it.leaving.wait()
        again = await it.wait()
        it.unlisten.set()
        await it.listened.get()  # registered a second time, after the cleanup removed the first registration
        await it.end()
        assert await again == ENDING


@looped
async def test_a_job_that_ended_while_the_subscription_was_lost_is_polled_until_the_server_answers(valkey_server: str) -> None:
    async with stage(valkey_server) as it:
        waiting = await it.wait()
        await it.lose_the_subscription()
        await it.end()
        it.refusals = [BrokerUnavailable("away"), BrokerUnavailable("away")]
        it.door.open.set()
        assert await waiting == ENDING
        assert not it.refusals


@looped
async def test_a_wait_ends_when_the_broker_is_closed_although_the_server_is_unreachable(valkey_server: str) -> None:
    async with stage(valkey_server) as it:
        waiting = await it.wait()
        await it.lose_the_subscription()
        it.refusals = [BrokerUnavailable("away")] * 1_000
        it.door.open.set()
        while len(it.refusals) == 1_000:  # until the wait polls for the ending
            await asyncio.sleep(0.001)
        await it.results.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            await waiting
        with pytest.raises(BrokerUnavailable, match="closed"):
            await it.results.wait(*JOB, None)


@looped
async def test_a_wait_raises_when_the_server_refuses_the_connection(valkey_server: str) -> None:
    async with stage(valkey_server) as it:
        waiting = await it.wait()
        await it.lose_the_subscription()
        it.refusals = [BrokerRefused("no longer welcome")]
        it.door.open.set()
        with pytest.raises(BrokerRefused, match="no longer welcome"):
            await waiting


@looped
async def test_a_silently_dropped_subscription_is_replaced(valkey_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(results, "CALL_TIMEOUT", 0.5)
    monkeypatch.setattr(results, "LOOK_SECONDS", 3600.0)
    relay = Relay()
    async with relay.serve(valkey_server) as url, stage(valkey_server, url) as it:
        waiting = await it.wait()
        relay.silent = relay.connections
        await it.end()
        assert await waiting == ENDING
        assert relay.connections > 1


@looped
async def test_an_idle_subscription_that_is_alive_is_kept(valkey_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "QUIET_SECONDS", 0.01)
    relay = Relay()
    async with relay.serve(valkey_server) as url, stage(valkey_server, url) as it:
        waiting = await it.wait()
        for _ in range(3):
            await relay.pings.get()
        await it.end()
        assert await waiting == ENDING
        assert relay.connections == 1


@looped
async def test_foreign_messages_on_the_channel_are_ignored(valkey_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOK_SECONDS", 3600.0)
    async with stage(valkey_server) as it:
        waiting = await it.wait()
        for foreign in (b"", b"no\nkey of\nours", b"\xff\n\xff\n\xff"):
            await it.operator.call("PUBLISH", it.results._channel, foreign)
        await it.end()
        assert await waiting == ENDING


@looped
async def test_a_job_that_ended_without_a_notification_is_found_by_polling(
    valkey_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LOOK_SECONDS", 0.01)
    async with stage(valkey_server) as it:
        waiting = await it.wait()
        await it.operator.call("DEL", it.broker._names(Address("default"))["waiters"])
        await it.end()
        assert await waiting == ENDING
