"""Order per key, as far as it is a queue's own: jobs have ids to be found by, can be cancelled, and are waited for."""

from __future__ import annotations

from millstream.broker import Cancellation, OrderRules, Post, Receipt
from millstream.outcome import Kind
from millstream.testing.keyed import KEY, begin, blocked, finish_all, retry, send, take_all
from millstream.testing.room import QUEUE, Promises, Room, eventually, ids, promise

CANCELLED = Cancellation.CANCELLED


class OrderedQueuePromises(Promises):
    queue = QUEUE

    @promise()
    async def test_a_blocked_job_that_is_cancelled_leaves_its_place(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3")
        assert await room.broker.cancel(room.queue, "2") is CANCELLED
        assert await room.status("2") == "cancelled"
        assert await blocked(room) == ["3"]
        await room.settle("c", [first])
        assert ids(await room.take("c")) == ["3"]

    @promise()
    async def test_a_retry_that_is_cancelled_passes_the_turn_on(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await retry(room, first)
        assert await room.broker.cancel(room.queue, "1") is CANCELLED
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_a_retry_that_is_due_and_cancelled_passes_the_turn_on(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await retry(room, first)
        room.at(5)
        await room.claim("c", 0)
        assert await room.status("1") == "ready"
        assert await room.broker.cancel(room.queue, "1") is CANCELLED
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_a_job_that_was_handed_back_and_is_cancelled_passes_the_turn_on(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await room.release("c", [first])
        assert await room.broker.cancel(room.queue, "1") is CANCELLED
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_a_job_that_was_left_behind_and_is_cancelled_passes_the_turn_on(self, room: Room) -> None:
        await begin(room, "1", "2")
        await room.broker.leave(room.queue, "c")
        assert await room.broker.cancel(room.queue, "1") is CANCELLED
        await room.join("d")
        assert ids(await room.take("d")) == ["2"]

    @promise()
    async def test_a_job_that_got_the_turn_and_is_cancelled_passes_it_on(self, room: Room) -> None:
        first = await begin(room, "1", "2", "3")
        await room.settle("c", [first])
        assert await room.broker.cancel(room.queue, "2") is CANCELLED
        assert ids(await room.take("c")) == ["3"]

    @promise()
    async def test_a_job_that_never_had_the_turn_and_is_cancelled_passes_nothing_on(self, room: Room) -> None:
        await begin(room, "1", "2")
        await send(room, "3")
        await send(room, "late", delay=5)
        for name in ("3", "late"):
            assert await room.broker.cancel(room.queue, name) is CANCELLED
        assert await room.take("c") == []

    @promise()
    async def test_a_job_that_runs_cannot_be_cancelled_and_keeps_the_turn(self, room: Room) -> None:
        await begin(room, "1", "2")
        assert await room.broker.cancel(room.queue, "1") is Cancellation.RUNNING
        assert await room.take("c") == []

    @promise()
    async def test_a_cancellation_that_passes_the_turn_on_ends_a_wait(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await retry(room, first, delay=1000)
        waiting = await room.begun(room.wait_for_work("c"))
        await room.broker.cancel(room.queue, "1")
        assert ids(await waiting) == ["2"]

    @promise()
    async def test_blocked_jobs_count_towards_the_length(self, room: Room) -> None:
        await begin(room, "1", "2", "3")
        assert await send(room, "4", max_length=3) == [Receipt.FULL]
        assert await send(room, "4", max_length=4) == [Receipt.CREATED]

    @promise()
    async def test_a_blocked_jobs_id_is_in_use(self, room: Room) -> None:
        await begin(room, "1", "2")
        assert await send(room, "2") == [Receipt.EXISTS]
        assert await room.publish("2", task="another") == [Receipt.CONFLICT]

    @promise()
    async def test_jobs_with_generated_ids_have_keys_too(self, room: Room) -> None:
        await room.join("c")
        posts = [Post(f"s-{n}", b"s-%d" % n, serial=n, key=b"%d" % (n % 2)) for n in range(1, 5)]
        assert await room.broker.publish(room.queue, posts[:3], sender="s") == [Receipt.CREATED] * 3
        assert await room.broker.publish(room.queue, posts, sender="s") == [Receipt.EXISTS] * 3 + [Receipt.CREATED]
        assert ids(await take_all(room)) == ["s-1", "s-2"]
        assert await blocked(room) == ["s-4", "s-3"]

    @promise()
    async def test_a_delayed_job_that_is_promoted_by_hand_has_its_place_then(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await send(room, "late", delay=1000)
        await send(room, "3")
        assert await room.broker.promote(room.queue, ["late"]) == ["late"]
        await room.settle("c", [first])
        assert await finish_all(room) == ["2", "3", "late"]

    @promise()
    async def test_who_waits_for_a_job_that_dies_of_its_keys_order_is_told(self, room: Room) -> None:
        first = await begin(room, "1", "2")
        await room.broker.join(room.queue, "d", 30, order=OrderRules(stop=True))
        await send(room, "3")
        waiting = [await room.begun(room.broker.results.wait(room.queue, name, None)) for name in ("2", "3")]
        await room.settle("c", [first], Kind.DEAD)
        await take_all(room)
        for each in waiting:
            await each
        assert (await room.status("2"), await room.status("3")) == ("dead", "dead")

    @promise(id_ttl=0.05)
    async def test_the_id_of_a_job_that_died_of_its_keys_order_is_forgotten_like_others(self, room: Room) -> None:
        first = await begin(room, "1")
        await room.broker.join(room.queue, "d", 30, order=OrderRules(max_pending=0))
        await retry(room, first)
        await send(room, "2")
        await take_all(room)
        assert await send(room, "2") == [Receipt.EXISTS]
        await room.broker.purge(room.queue, ["2"])

        async def forgotten() -> bool:
            return await send(room, "2", key=KEY) == [Receipt.CREATED]

        await eventually(forgotten)
