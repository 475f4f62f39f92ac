"""What ends a waiting claim. Nothing here measures time: a wait that nothing ends outlasts the test's patience."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker import Post
from millstream.errors import LeaseLost
from millstream.outcome import Kind
from millstream.testing.room import LONG, Promises, Room, eventually, ids, promise


class WaitingPromises(Promises):
    @promise()
    async def test_a_wait_ends_at_once_when_something_is_ready(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        assert ids(await room.take("c", wait=LONG)) == ["a"]

    @promise()
    async def test_a_claim_that_leaves_work_behind_leaves_it_to_be_found_at_once(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a", "b", "c")
        assert ids(await room.take("c", 1, wait=LONG)) == ["a"]
        assert ids(await room.take("d", 1, wait=LONG)) == ["b"]
        assert ids(await room.take("c", 1, wait=LONG)) == ["c"]

    @promise()
    async def test_a_wait_ends_when_its_seconds_have_passed(self, room: Room) -> None:
        await room.join("c")
        assert await room.take("c", wait=0.02) == []

    @promise()
    async def test_a_publish_ends_a_wait(self, room: Room) -> None:
        await room.join("c")
        waiting = await room.begun(room.wait_for_work("c"))
        await room.publish("a")
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_publish_from_another_process_ends_a_wait(self, room: Room) -> None:
        await room.join("c")
        other = await room.another()
        waiting = await room.begun(room.wait_for_work("c"))
        await other.publish(room.queue, [Post("a", b"a")])
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_publish_feeds_every_waiting_consumer(self, room: Room) -> None:
        consumers = ["c", "d", "e"]
        await room.join(*consumers)
        waiting = [await room.begun(room.wait_for_work(consumer, 1)) for consumer in consumers]
        await room.publish("1", "2", "3")
        assert sorted(ids([entry for entries in await asyncio.gather(*waiting) for entry in entries])) == ["1", "2", "3"]

    @promise()
    async def test_a_release_ends_a_wait(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a")
        entries = await room.take("c")
        waiting = await room.begun(room.wait_for_work("d"))
        await room.release("c", entries)
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_consumer_that_leaves_ends_anothers_wait(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a")
        await room.take("c")
        waiting = await room.begun(room.wait_for_work("d"))
        await room.broker.leave(room.queue, "c")
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_resume_ends_a_wait(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.broker.pause(room.queue)
        waiting = await room.begun(room.wait_for_work("c"))
        await room.broker.resume(room.queue)
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_replay_ends_a_wait(self, room: Room) -> None:
        await room.join("c", "d")
        await room.die("c", "a")
        waiting = await room.begun(room.wait_for_work("d"))
        await room.broker.replay(room.queue, ["a"])
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_nudge_ends_ones_own_wait(self, room: Room) -> None:
        await room.join("c")
        waiting = asyncio.create_task(room.take("c", wait=LONG))
        while not waiting.done():
            # a nudge before the wait began is none: go on until it is over
            await room.broker.nudge(room.queue, "c")
            await asyncio.sleep(0)
        assert await waiting == []

    @promise()
    async def test_a_nudge_leaves_others_waiting(self, room: Room) -> None:
        await room.join("c", "d")
        mine = asyncio.create_task(room.take("c", wait=LONG))
        theirs = await room.begun(room.take("d", wait=LONG))
        while not mine.done():
            await room.broker.nudge(room.queue, "c")
            await asyncio.sleep(0)
        assert not theirs.done()
        await room.publish("a")
        assert ids(await theirs) == ["a"]

    @promise()
    async def test_a_nudge_that_finds_no_wait_is_nothing(self, room: Room) -> None:
        await room.join("c")
        await room.broker.nudge(room.queue, "c")
        await room.broker.nudge(room.queue, "stranger")

    @promise()
    async def test_who_waits_as_long_as_told_gets_what_is_due(self, room: Room) -> None:
        room.run_clock()
        await room.join("c")
        await room.publish("a", delay=0.2)
        claim = await room.claim("c")
        while not claim.entries:
            assert claim.next_due is not None
            claim = await room.claim("c", wait=claim.next_due)
        assert ids(claim.entries) == ["a"]

    @promise()
    async def test_a_very_short_wait_ends(self, room: Room) -> None:
        await room.join("c")
        assert await room.take("c", wait=0.0001) == []

    @promise()
    async def test_something_scheduled_earlier_ends_a_wait(self, room: Room) -> None:
        await room.join("c")
        await room.publish("late", delay=1000)
        waiting = await room.begun(self.wait_until_due_in(10, room, "c"))
        await room.publish("soon", delay=10)
        await waiting

    @promise()
    async def test_a_retry_scheduled_earlier_ends_a_wait(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a")
        entries = await room.take("d")
        waiting = await room.begun(self.wait_until_due_in(10, room, "c"))
        await room.settle("d", entries, Kind.RETRY, delay=10)
        await waiting

    @staticmethod
    async def wait_until_due_in(seconds: float, room: Room, consumer: str) -> None:
        while (await room.claim(consumer, wait=LONG)).next_due != seconds:
            pass

    @promise()
    async def test_a_lease_lost_while_waiting_is_told(self, room: Room) -> None:
        await room.join("c")
        supervisor = await room.another()
        waiting = await room.begun(room.take("c", wait=LONG))
        await supervisor.leave(room.queue, "c")
        await room.publish("a")
        with pytest.raises(LeaseLost):
            await waiting
        assert await room.status("a") == "ready"

    @promise()
    async def test_what_a_cancelled_wait_took_can_be_recovered(self, room: Room) -> None:
        await room.join("c", "d")
        waiting = await room.begun(room.take("c", wait=LONG))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await room.publish("a")
        found: list[str] = []

        async def somewhere() -> bool:
            found.extend(ids(await room.take("d") + await room.broker.recover(room.queue, "c", [])))
            return bool(found)

        await eventually(somewhere)
        assert found == ["a"]
