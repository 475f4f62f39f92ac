"""Waiting for how a job ended."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.contract import CANCELLED_TTL
from millstream.outcome import Ending, Kind, decode_ending
from millstream.testing.room import DEAD_ENDING, DONE_ENDING, LONG, Promises, Room, promise


class ResultPromises(Promises):
    @promise()
    async def test_there_is_no_ending_before_the_end(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        assert await room.broker.results.get(room.queue, "a") is None
        await room.take("c")
        assert await room.broker.results.get(room.queue, "a") is None

    @promise()
    async def test_an_ending_belongs_to_its_queue(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await room.broker.results.get(room.other_queue, "a") is None

    @promise()
    async def test_waiting_after_the_end_ends_at_once(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await room.broker.results.wait(room.queue, "a", None) == DONE_ENDING

    @promise()
    async def test_waiting_for_what_nobody_knows_ends_at_once(self, room: Room) -> None:
        assert await room.broker.results.wait(room.queue, "never", None) is None
        assert await room.broker.results.wait("no such queue", "never", None) is None

    @promise()
    async def test_waiting_for_what_left_nothing_ends_at_once(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.settle("c", await room.take("c"), given_id=True)
        await room.die("c", "b")
        assert await room.broker.results.wait(room.queue, "a", None) is None
        assert await room.broker.results.wait(room.queue, "b", None) is None

    @promise()
    async def test_who_waits_is_told_the_ending(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        waiting = await room.begun(room.broker.results.wait(room.queue, "a", LONG))
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_who_waits_in_another_process_is_told_the_ending(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        other = await room.another()
        waiting = await room.begun(other.results.wait(room.queue, "a", LONG))
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_all_who_wait_are_told(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b")
        other = await room.another()
        waits = [broker.results.wait(room.queue, job_id, None) for broker in (room.broker, other) for job_id in ("a", "b", "a")]
        waiting = [await room.begun(wait) for wait in waits]
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await asyncio.gather(*waiting) == [DONE_ENDING] * 6

    @promise()
    async def test_who_waits_for_a_job_that_leaves_nothing_is_told_so(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        waiting = await room.begun(room.broker.results.wait(room.queue, "a", LONG))
        await room.settle("c", await room.take("c"))
        assert await waiting is None

    @promise()
    async def test_who_waits_is_told_of_death_cancellation_and_expiry(self, room: Room) -> None:
        await room.join("c")
        await room.publish("dead", "expired", "cancelled")
        waits = [await room.begun(room.broker.results.wait(room.queue, i, LONG)) for i in ("dead", "expired", "cancelled")]
        dead, expired = await room.take("c", 2)
        await room.settle("c", [dead], Kind.DEAD, result=DEAD_ENDING, result_ttl=60)
        await room.settle("c", [expired], Kind.EXPIRED, result_ttl=60)
        await room.broker.cancel(room.queue, "cancelled")
        endings = [decode_ending(ending or b"") for ending in await asyncio.gather(*waits)]
        assert endings == [decode_ending(DEAD_ENDING), Ending("expired"), Ending("cancelled", ttl=CANCELLED_TTL)]

    @promise()
    async def test_who_waits_for_an_id_of_any_text_is_told(self, room: Room) -> None:
        await room.join("c")
        names = ["a b", "ü→", "a:b{c}:q:", "x-0"]
        await room.publish(*names)
        waiting = [await room.begun(room.broker.results.wait(room.queue, name, LONG)) for name in names]
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await asyncio.gather(*waiting) == [DONE_ENDING] * len(names)

    @promise()
    async def test_a_retry_is_no_ending(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        waiting = await room.begun(room.broker.results.wait(room.queue, "a", LONG))
        await room.settle("c", await room.take("c"), Kind.RETRY)
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_who_waits_for_a_replayed_job_waits_for_its_next_end(self, room: Room) -> None:
        await room.join("c")
        await room.die("c", "a", result=DEAD_ENDING, result_ttl=60)
        await room.broker.replay(room.queue, ["a"])
        waiting = await room.begun(room.broker.results.wait(room.queue, "a", LONG))
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_a_wait_that_is_over_first_times_out(self, room: Room) -> None:
        await room.publish("a")
        with pytest.raises(TimeoutError):
            await room.broker.results.wait(room.queue, "a", 0.02)
        with pytest.raises(TimeoutError):
            await room.broker.results.wait(room.queue, "a", 0)

    @promise()
    async def test_who_waits_again_after_a_timeout_is_told(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        with pytest.raises(TimeoutError):
            await room.broker.results.wait(room.queue, "a", 0.02)
        waiting = await room.begun(room.broker.results.wait(room.queue, "a", LONG))
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_one_waiters_timeout_leaves_the_others_waiting(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        waiting = await room.begun(room.broker.results.wait(room.queue, "a", LONG))
        with pytest.raises(TimeoutError):
            await room.broker.results.wait(room.queue, "a", 0.02)
        await room.settle("c", await room.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING
