"""Promises about sharded queues and topics: their number of shards, who may publish to a shard, and resharding."""

from __future__ import annotations

import pytest

from millstream.broker import Post, Receipt
from millstream.broker.values import BEGINNING
from millstream.errors import ShardsChanged, ShardsInUse
from millstream.model.address import Address
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise

CREATED = Receipt.CREATED
MAIL, ORDERS = Address("mail"), "orders"


def log_of(shard: int) -> str:
    return Address.of_topic(ORDERS).at_shard(shard).log


async def publish(backend: BackendUnderTest, shard: int, name: str, shards: int, **fields: object) -> list[Receipt]:
    posts = [Post(name, name.encode(), "t", **fields)]  # type: ignore[arg-type]
    return await backend.broker.publish(MAIL.at_shard(shard), posts, shards=shards)


async def emit(backend: BackendUnderTest, shard: int, name: str, shards: int, **fields: object) -> list[Receipt]:
    posts = [Post(name, name.encode(), **fields)]  # type: ignore[arg-type]
    return await backend.broker.emit(log_of(shard), posts, shards=shards)


class ShardPromises(Promises):
    @promise()
    async def test_the_number_of_shards_that_was_stored_first_stays(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.inspector.shards(MAIL) == 0
        assert await backend.broker.note_shards(MAIL, 8) == 8
        assert await backend.broker.note_shards(MAIL, 4) == 8
        other = await backend.another()
        assert await other.inspector.shards(MAIL) == 8

    @promise()
    async def test_the_stored_number_of_shards_can_be_replaced(self, backend: BackendUnderTest) -> None:
        await backend.broker.note_shards(MAIL, 8)
        assert await backend.broker.note_shards(MAIL, 4, replace=True) == 4
        assert await backend.broker.inspector.shards(MAIL) == 4

    @promise()
    async def test_a_queue_whose_sharding_was_removed_can_be_sharded_again(self, backend: BackendUnderTest) -> None:
        await backend.broker.note_shards(MAIL, 8)
        assert await backend.broker.note_shards(MAIL, 0, replace=True) == 0
        assert await backend.broker.inspector.shards(MAIL) == 0
        assert await backend.broker.note_shards(MAIL, 3) == 3

    @promise()
    async def test_a_queue_and_a_topic_with_the_same_name_have_their_own_shards(self, backend: BackendUnderTest) -> None:
        await backend.broker.note_shards(MAIL, 8)
        await backend.broker.note_shards(Address.of_topic(MAIL), 4)
        assert await backend.broker.inspector.shards(MAIL) == 8
        assert await backend.broker.inspector.shards(Address.of_topic(MAIL)) == 4

    # -- fences ------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_the_first_publish_to_a_shard_stores_the_number_of_shards(self, backend: BackendUnderTest) -> None:
        assert await publish(backend, 3, "a", shards=8) == [CREATED]
        with pytest.raises(ShardsChanged, match="mail"):
            await publish(backend, 3, "b", shards=4)
        assert await publish(backend, 3, "c", shards=8) == [CREATED]
        await backend.join("c", queue=MAIL.at_shard(3))
        assert ids(await backend.take("c", queue=MAIL.at_shard(3))) == ["a", "c"]

    @promise()
    async def test_the_first_event_of_a_shard_stores_the_number_of_shards(self, backend: BackendUnderTest) -> None:
        assert await emit(backend, 3, "a", shards=8) == [CREATED]
        with pytest.raises(ShardsChanged, match="orders"):
            await emit(backend, 3, "b", shards=4)
        assert await emit(backend, 3, "c", shards=8) == [CREATED]
        assert (await backend.broker.inspector.topic(log_of(3))).length == 2

    @promise()
    async def test_messages_with_generated_ids_are_fenced_too(self, backend: BackendUnderTest) -> None:
        queue, topic = MAIL.at_shard(0), log_of(0)
        for number in (1, 2):
            posts = [Post(f"s-{number}", b"", serial=number)]
            assert await backend.broker.publish(queue, posts, sender="s", shards=2) == [CREATED]
            assert await backend.broker.emit(topic, posts, sender="s", shards=2) == [CREATED]
        late = [Post("s-3", b"", serial=3)]
        with pytest.raises(ShardsChanged):
            await backend.broker.publish(queue, late, sender="s", shards=3)
        with pytest.raises(ShardsChanged):
            await backend.broker.emit(topic, late, sender="s", shards=3)
        assert await backend.broker.publish(queue, late, sender="s", shards=2) == [CREATED]
        assert await backend.broker.emit(topic, late, sender="s", shards=2) == [CREATED]

    @promise()
    async def test_a_fence_accepts_only_publishers_that_assume_its_number_of_shards(self, backend: BackendUnderTest) -> None:
        await backend.broker.fence_shard(MAIL.at_shard(1), 4)
        with pytest.raises(ShardsChanged):
            await publish(backend, 1, "a", shards=8)
        assert await publish(backend, 1, "a", shards=4) == [CREATED]
        assert await publish(backend, 0, "a", shards=8) == [CREATED]

    @promise()
    async def test_a_fence_of_zero_rejects_every_publisher(self, backend: BackendUnderTest) -> None:
        await publish(backend, 1, "a", shards=4)
        await backend.broker.fence_shard(MAIL.at_shard(1), 0)
        for shards in (4, 1, 8):
            with pytest.raises(ShardsChanged):
                await publish(backend, 1, "b", shards=shards)
        assert (await backend.broker.inspector.queue(MAIL.at_shard(1))).ready == 1

    @promise()
    async def test_a_fence_of_a_topic_does_not_apply_to_a_queue(self, backend: BackendUnderTest) -> None:
        await backend.broker.fence_shard(Address.of_topic(ORDERS).at_shard(1), 4)
        with pytest.raises(ShardsChanged):
            await emit(backend, 1, "a", shards=8)
        assert await backend.broker.publish(Address(log_of(1)), [Post("a", b"")], shards=8) == [CREATED]

    # -- inspection --------------------------------------------------------------------------------------------------------

    @promise()
    async def test_shards_are_listed_under_their_base_queue_or_topic(self, backend: BackendUnderTest) -> None:
        for shard in range(3):
            await backend.broker.declare(MAIL.at_shard(shard))
            await backend.broker.open_topic(log_of(shard), {"g": BEGINNING})
        queues, topics = await backend.broker.inspector.queues(), await backend.broker.inspector.topics()
        assert (queues.count(MAIL), topics.count(ORDERS)) == (1, 1)
        assert not [name for name in [*queues, *topics] if ":" in name]
        assert (queues, topics) == (sorted(queues), sorted(topics))

    @promise()
    async def test_each_shard_has_its_own_owner_and_turns(self, backend: BackendUnderTest) -> None:
        first, second = MAIL.at_shard(0), MAIL.at_shard(1)
        assert await backend.broker.join(first, "c", 30, max_consumers=1) > 0
        assert await backend.broker.join(first, "d", 30, max_consumers=1) == 0
        assert await backend.broker.join(second, "d", 30, max_consumers=1) > 0
        await publish(backend, 0, "a", shards=2, key=b"k")
        await publish(backend, 1, "b", shards=2, key=b"k")
        assert ids(await backend.take("c", queue=first)) == ["a"]
        assert ids(await backend.take("d", queue=second)) == ["b"]

    # -- reshard -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_an_empty_queue_can_be_resharded(self, backend: BackendUnderTest) -> None:
        await backend.broker.note_shards(MAIL, 4)
        await backend.join("c", queue=MAIL.at_shard(1))
        await publish(backend, 1, "a", shards=4)
        await backend.settle("c", await backend.take("c", queue=MAIL.at_shard(1)), queue=MAIL.at_shard(1))
        await backend.broker.reshard(MAIL, 2)
        assert await backend.broker.inspector.shards(MAIL) == 2
        for shard in range(4):
            with pytest.raises(ShardsChanged):
                await publish(backend, shard, "late", shards=4)
        assert await publish(backend, 1, "b", shards=2) == [CREATED]

    @promise()
    async def test_a_queue_can_be_resharded_to_more_shards(self, backend: BackendUnderTest) -> None:
        await backend.broker.note_shards(MAIL, 2)
        await backend.broker.reshard(MAIL, 4)
        assert await publish(backend, 3, "a", shards=4) == [CREATED]
        with pytest.raises(ShardsChanged):
            await publish(backend, 1, "a", shards=2)

    @promise()
    async def test_a_topic_whose_events_are_all_settled_can_be_resharded(self, backend: BackendUnderTest) -> None:
        address, group = Address.of_topic(ORDERS), Address.of_group(ORDERS, "g").at_shard(1)
        await backend.broker.note_shards(address, 4)
        await backend.join("c", queue=group)
        await emit(backend, 1, "a", shards=4)
        await backend.settle("c", await backend.take("c", queue=group), queue=group)
        await backend.broker.reshard(address, 2)
        assert await backend.broker.inspector.shards(address) == 2
        with pytest.raises(ShardsChanged):
            await emit(backend, 1, "b", shards=4)
        assert await emit(backend, 1, "b", shards=2) == [CREATED]

    @promise()
    async def test_an_empty_queue_can_gain_and_lose_shards(self, backend: BackendUnderTest) -> None:
        await backend.broker.reshard(MAIL, 2)
        assert await publish(backend, 1, "a", shards=2) == [CREATED]
        await backend.broker.cancel(MAIL.at_shard(1), "a")
        await backend.broker.reshard(MAIL, 0)
        assert await backend.broker.inspector.shards(MAIL) == 0
        with pytest.raises(ShardsChanged):
            await publish(backend, 1, "b", shards=2)
        assert await backend.broker.publish(MAIL, [Post("whole", b"")]) == [CREATED]

    @promise()
    async def test_a_sharded_queue_rejects_publishes_to_its_base_queue(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.publish(MAIL, [Post("whole", b"")]) == [CREATED]
        with pytest.raises(ShardsInUse, match="1 ready"):
            await backend.broker.reshard(MAIL, 2)
        assert await backend.broker.publish(MAIL, [Post("another", b"")]) == [CREATED]
        for job_id in ("whole", "another"):
            await backend.broker.cancel(MAIL, job_id)
        await backend.broker.reshard(MAIL, 2)
        with pytest.raises(ShardsChanged):
            await backend.broker.publish(MAIL, [Post("late", b"")])
        with pytest.raises(ShardsChanged):
            await backend.broker.publish(MAIL, [Post("s-1", b"", serial=1)], sender="s")

    @promise()
    async def test_a_queue_with_unfinished_jobs_cannot_be_resharded(self, backend: BackendUnderTest) -> None:
        queue = MAIL.at_shard(1)
        await backend.broker.note_shards(MAIL, 2)
        await backend.broker.join(queue, "c", 1e6)

        async def refused(word: str) -> None:
            with pytest.raises(ShardsInUse, match=rf"{queue}.*\b1 {word}"):
                await backend.broker.reshard(MAIL, 4)
            assert await backend.broker.inspector.shards(MAIL) == 2
            with pytest.raises(ShardsChanged):
                await publish(backend, 1, "late", shards=4)

        await publish(backend, 1, "late", shards=2, delay=5)
        await refused("scheduled")
        assert await backend.broker.cancel(queue, "late") is not None
        await publish(backend, 1, "1", shards=2, key=b"k")
        await refused("ready")
        first = await backend.take("c", queue=queue)
        await refused("running")
        await publish(backend, 1, "2", shards=2, key=b"k")
        assert await backend.take("c", queue=queue) == []
        await refused("running, 1 blocked")
        await backend.settle("c", first, queue=queue)
        await backend.settle("c", await backend.take("c", queue=queue), queue=queue)
        await backend.broker.reshard(MAIL, 4)

    @promise()
    async def test_a_topic_with_unfinished_events_cannot_be_resharded(self, backend: BackendUnderTest) -> None:
        address, topic = Address.of_topic(ORDERS), log_of(0)
        await backend.broker.note_shards(address, 2)
        await emit(backend, 0, "a", shards=2)
        with pytest.raises(ShardsInUse, match="1 ready"):
            await backend.broker.reshard(address, 1)
        group = Address.of_group(topic, "g")
        await backend.join("c", lease=1e6, queue=group)
        with pytest.raises(ShardsInUse, match="1 ready"):
            await backend.broker.reshard(address, 1)
        await backend.settle("c", await backend.take("c", queue=group), queue=group)
        await emit(backend, 0, "b", shards=2, delay=5)
        with pytest.raises(ShardsInUse, match="1 delayed"):
            await backend.broker.reshard(address, 1)
        assert await emit(backend, 0, "c", shards=2) == [CREATED]

    @promise()
    async def test_a_shard_with_dead_letters_cannot_be_removed_by_a_reshard(self, backend: BackendUnderTest) -> None:
        queue = MAIL.at_shard(1)
        await backend.broker.note_shards(MAIL, 2)
        await backend.broker.join(queue, "c", 30)
        await publish(backend, 1, "a", shards=2)
        await backend.settle("c", await backend.take("c", queue=queue), Kind.DEAD, queue=queue)
        with pytest.raises(ShardsInUse, match="1 dead"):
            await backend.broker.reshard(MAIL, 1)
        await backend.broker.reshard(MAIL, 3)
        assert await backend.broker.replay(queue, ["a"]) == ["a"]
