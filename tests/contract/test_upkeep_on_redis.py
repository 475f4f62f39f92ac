"""The server's work for the upkeep of a topic, and the traces of consumers there, do not grow with the number of consumers."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millstream.backends.redis import RedisBroker
from millstream.backends.redis.keys import GROUP, namespace_keys, queue_keys, topic_keys
from millstream.broker import WorkerInfo
from millstream.testing.backend import PATIENCE, BackendUnderTest, ids
from millstream.testing.topic import TOPIC, A, begin, claim, emit, finish, state, take

SECONDS = 5
SWEEPS = ("xtrim", "xinfo|groups", "xrange")
"""Commands that only the trimming of a log uses."""


class Server:
    """The command statistics of a server, and the names it stores."""

    def __init__(self, broker: RedisBroker, namespace: str) -> None:
        self._call = broker._calls.node(None).commands.call
        self._namespace = namespace

    async def calls(self, *commands: str) -> Counter[str]:
        told: bytes = await self._call("INFO", "commandstats")
        counted: Counter[str] = Counter()
        for line in told.decode().splitlines():
            if line.startswith("cmdstat_"):
                name, _, figures = line.removeprefix("cmdstat_").partition(":calls=")
                if name in commands:
                    counted[name] = int(figures.split(",")[0])
        return counted

    async def consumers(self) -> set[str]:
        """Return the names of all consumers, in the log and in the group's own stream."""
        log = topic_keys(self._namespace, TOPIC)["log"]
        told = [*await self._call("XINFO", "CONSUMERS", log, "a")]
        told += await self._call("XINFO", "CONSUMERS", queue_keys(self._namespace, A)["stream"], GROUP)
        return {each[each.index(b"name") + 1].decode() for each in told}

    async def registered(self) -> set[str]:
        return {name.decode() for name in await self._call("SMEMBERS", namespace_keys(self._namespace)["workers"])}


Story = Callable[[BackendUnderTest, Server], Coroutine[Any, Any, Any]]


@pytest.fixture(params=["valkey_server", "redis_server"])
def tell(request: pytest.FixtureRequest) -> Callable[[Story], Any]:
    url = request.getfixturevalue(request.param)

    def play(story: Story) -> Any:
        namespace = f"test-{uuid.uuid4().hex}"

        async def main() -> Any:
            async with asyncio.timeout(PATIENCE), BackendUnderTest(lambda: RedisBroker(url, namespace=namespace)) as backend:
                assert isinstance(backend.broker, RedisBroker)
                return await story(backend, Server(backend.broker, namespace))

        return asyncio.run(main())

    return play


Tell = Callable[[Story], Any]


def test_forty_consumers_do_not_trim_more_often_than_one(tell: Tell) -> None:
    async def sweep(backend: BackendUnderTest, server: Server, consumers: int) -> Counter[str]:
        names = [f"c{n}" for n in range(consumers)]
        await begin(backend, "a", "b")
        await backend.join(*names, lease=1e6, queue=A)
        before = await server.calls(*SWEEPS)
        for second in range(SECONDS):
            backend.at(second)
            await emit(backend, *[f"{second}-{n}" for n in range(consumers)])
            for _ in range(2):
                for name in names:
                    await backend.settle(name, await backend.take(name, 1, queue=A), queue=A)
            await finish(backend, "b")
        return await server.calls(*SWEEPS) - before

    alone = tell(lambda backend, server: sweep(backend, server, 1))
    together = tell(lambda backend, server: sweep(backend, server, 40))
    assert alone["xtrim"] >= SECONDS - 1
    assert together["xinfo|groups"] == alone["xinfo|groups"] <= SECONDS + 1
    assert together["xtrim"] <= 2 * SECONDS and together["xrange"] <= SECONDS


def test_messages_of_a_lapsed_consumer_are_taken_over_by_one_call(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        names = [f"c{n}" for n in range(40)]
        await begin(backend, "a")
        await backend.join(*names, lease=1e6, queue=A)
        await backend.join("dead", lease=10, queue=A)
        await emit(backend, "1", "2", "3")
        await backend.take("dead", queue=A)
        for second in (11, 13):
            backend.at(second)
            for name in names:
                await backend.claim(name, 0, queue=A)
        before = await server.calls("xclaim")
        taken: list[str] = []
        for name in names:
            taken += ids(await backend.take(name, queue=A))
        assert taken == ["1", "2", "3"]
        assert (await server.calls("xclaim") - before)["xclaim"] == 1

    tell(story)


def test_a_claim_with_nothing_to_do_reads_no_entry(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        names = [f"c{n}" for n in range(40)]
        await begin(backend, "a")
        await backend.join(*names, lease=1e6, queue=A)
        await emit(backend, *[f"n{n}" for n in range(100)])
        await take(backend, "a")
        await emit(backend, "later", delay=1000)
        await claim(backend, "a", 0)
        touching = ("xclaim", "xautoclaim", "xadd", "xdel", "xack", "hget", "zrem", *SWEEPS)
        before = await server.calls(*touching)
        for name in names:
            await backend.claim(name, 0, queue=A)
        assert await server.calls(*touching) - before == Counter()

    tell(story)


def test_the_name_of_a_consumer_is_deleted_when_it_leaves_or_lapses(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await begin(backend, "a")
        await backend.join("clean", lease=1e6, queue=A)
        await backend.join("killed", lease=10, queue=A)
        await emit(backend, "1", "2", "3")
        for name in ("clean", "killed"):
            assert len(await backend.take(name, 1, queue=A)) == 1
        await backend.broker.leave(A, "clean", blameless=True)
        for second in (11, 13):
            backend.at(second)
            await claim(backend, "a", 0)
        assert await finish(backend, "a") == ["1", "2", "3"]
        assert await server.consumers() == {"a"}
        backend.at(15)
        await claim(backend, "a", 0)
        assert (await state(backend)).length == 0

    tell(story)


def test_expired_workers_are_removed_from_the_registry_even_if_nobody_reads_it(tell: Callable[[Story], Any]) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        for n in range(200):
            await backend.broker.register(WorkerInfo(f"gone-{n}", "host", n, "0.1", ["q"], 1.5, {}), 0.001)
        await asyncio.sleep(0.002)
        # each call checks eight random entries
        for _ in range(1000):
            await backend.broker.register(WorkerInfo("alive", "host", 1, "0.1", ["q"], 1.5, {}), 30.0)
            if await server.registered() == {"alive"}:
                return
        raise AssertionError(await server.registered())

    tell(story)
