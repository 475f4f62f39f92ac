"""A producer publishes after the server was flushed, while no worker runs: its queues and topics are declared again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millstream.backends.redis import RedisBroker
from millstream.broker import Post, Receipt
from millstream.broker.values import BEGINNING
from millstream.errors import BrokerUnavailable
from millstream.model.address import Address
from millstream.testing.backend import PATIENCE

Story = Callable[[RedisBroker, Callable[[], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]
CREATED = Receipt.CREATED


@pytest.fixture(params=["valkey_server", "redis_server"])
def tell(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    url = request.getfixturevalue(request.param)

    def play(story: Story) -> None:
        async def main() -> None:
            namespace = f"test-{uuid.uuid4().hex}"
            broker = RedisBroker(url, namespace=namespace)
            await broker.open()

            async def flush() -> None:
                """Delete the keys of this test's namespace, as FLUSHALL would delete all."""
                keys = await broker._calls.node(None).commands.call("KEYS", f"*{namespace}*")
                await broker._calls.node(None).commands.call("DEL", *keys)

            try:
                async with asyncio.timeout(PATIENCE):
                    await story(broker, flush)
            finally:
                await broker.close()

        asyncio.run(main())

    return play


def numbered(*serials: int, **fields: Any) -> list[Post]:
    return [Post(f"s-{n}", b"", serial=n, **fields) for n in serials]


@pytest.mark.parametrize("delay", [0.0, 60.0])
def test_a_publish_after_a_flush_declares_the_queue_again(tell: Callable[[Story], None], delay: float) -> None:
    async def story(broker: RedisBroker, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await broker.declare(Address("q"))
        await broker.publish(Address("q"), numbered(1, 2, delay=delay), sender="s")
        await flush()
        assert await broker.inspector.queues() == []
        assert await broker.publish(Address("q"), numbered(3, delay=delay), sender="s") == [CREATED]
        assert await broker.inspector.queues() == ["q"]

    tell(story)


def test_a_publish_after_a_flush_declares_the_queue_even_if_its_reply_is_lost(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: RedisBroker, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await broker.declare(Address("q"))
        await broker.publish(Address("q"), numbered(1), sender="s")
        await flush()
        run, lost = broker._run, False

        async def lose(name: str, *args: Any, **options: Any) -> Any:
            nonlocal lost
            answer = await run(name, *args, **options)
            if name == "publish" and not lost:
                lost = True
                raise BrokerUnavailable("the reply was lost")
            return answer

        monkeypatch.setattr(broker, "_run", lose)
        with pytest.raises(BrokerUnavailable):
            await broker.publish(Address("q"), numbered(2), sender="s")
        assert await broker.publish(Address("q"), numbered(2), sender="s") == [Receipt.EXISTS]
        assert await broker.inspector.queues() == ["q"]

    tell(story)


def test_a_publish_after_a_flush_restores_the_number_of_shards(tell: Callable[[Story], None]) -> None:
    async def story(broker: RedisBroker, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        shard = Address("q").at_shard(1)
        await broker.note_shards(Address("q"), 2)
        await broker.declare(shard)
        await broker.publish(shard, numbered(1), sender="s", shards=2)
        await flush()
        assert await broker.publish(shard, numbered(2), sender="s", shards=2) == [CREATED]
        assert (await broker.inspector.queues(), await broker.inspector.shards(Address("q"))) == (["q"], 2)

    tell(story)


def test_a_publish_after_a_flush_restores_the_topic_and_its_groups(tell: Callable[[Story], None]) -> None:
    async def story(broker: RedisBroker, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await broker.open_topic("t", {"g": BEGINNING})
        await broker.emit("t", numbered(1), sender="s")
        await flush()
        assert await broker.emit("t", numbered(2), sender="s") == [CREATED]
        assert await broker.inspector.topics() == ["t"]
        (group,) = (await broker.inspector.topic("t")).groups
        assert (group.name, group.ready) == ("g", 1)
        assert await broker.inspector.shards(Address.of_topic("t")) == 0

    tell(story)
