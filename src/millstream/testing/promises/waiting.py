"""Promises about what ends a waiting claim.

Nothing here measures time: a wait that nothing ends exceeds the timeout of the test.
"""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker import Post
from millstream.errors import LeaseLost
from millstream.model.outcome import Kind
from millstream.testing.backend import LONG, BackendUnderTest, Promises, eventually, ids, promise


class WaitingPromises(Promises):
    @promise()
    async def test_a_claim_with_wait_returns_immediately_if_a_job_is_ready(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        assert ids(await backend.take("c", wait=LONG)) == ["a"]

    @promise()
    async def test_jobs_left_by_one_claim_are_found_immediately_by_the_next(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a", "b", "c")
        assert ids(await backend.take("c", 1, wait=LONG)) == ["a"]
        assert ids(await backend.take("d", 1, wait=LONG)) == ["b"]
        assert ids(await backend.take("c", 1, wait=LONG)) == ["c"]

    @promise()
    async def test_a_wait_ends_after_the_given_time(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        assert await backend.take("c", wait=0.02) == []

    @promise()
    async def test_a_publish_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        waiting = await backend.begun(backend.wait_for_work("c"))
        await backend.publish("a")
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_publish_from_another_process_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        other = await backend.another()
        waiting = await backend.begun(backend.wait_for_work("c"))
        await other.publish(backend.queue, [Post("a", b"a")])
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_publish_ends_the_wait_of_every_consumer(self, backend: BackendUnderTest) -> None:
        consumers = ["c", "d", "e"]
        await backend.join(*consumers)
        waiting = [await backend.begun(backend.wait_for_work(consumer, 1)) for consumer in consumers]
        await backend.publish("1", "2", "3")
        assert sorted(ids([entry for entries in await asyncio.gather(*waiting) for entry in entries])) == ["1", "2", "3"]

    @promise()
    async def test_a_release_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a")
        entries = await backend.take("c")
        waiting = await backend.begun(backend.wait_for_work("d"))
        await backend.release("c", entries)
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_consumer_that_leaves_ends_the_wait_of_another(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a")
        await backend.take("c")
        waiting = await backend.begun(backend.wait_for_work("d"))
        await backend.broker.leave(backend.queue, "c")
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_resume_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.broker.pause(backend.queue)
        waiting = await backend.begun(backend.wait_for_work("c"))
        await backend.broker.resume(backend.queue)
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_replay_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.die("c", "a")
        waiting = await backend.begun(backend.wait_for_work("d"))
        await backend.broker.replay(backend.queue, ["a"])
        assert ids(await waiting) == ["a"]

    @promise()
    async def test_a_nudge_ends_the_wait_of_its_consumer(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        waiting = asyncio.create_task(backend.take("c", wait=LONG))
        while not waiting.done():
            # a nudge before the wait has begun has no effect, so repeat it
            await backend.broker.nudge(backend.queue, "c")
            await asyncio.sleep(0)
        assert await waiting == []

    @promise()
    async def test_a_nudge_does_not_end_the_wait_of_other_consumers(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        mine = asyncio.create_task(backend.take("c", wait=LONG))
        theirs = await backend.begun(backend.take("d", wait=LONG))
        while not mine.done():
            await backend.broker.nudge(backend.queue, "c")
            await asyncio.sleep(0)
        assert not theirs.done()
        await backend.publish("a")
        assert ids(await theirs) == ["a"]

    @promise()
    async def test_a_nudge_without_a_waiting_claim_has_no_effect(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.broker.nudge(backend.queue, "c")
        await backend.broker.nudge(backend.queue, "stranger")

    @promise()
    async def test_a_wait_of_next_due_seconds_returns_the_due_job(self, backend: BackendUnderTest) -> None:
        backend.run_clock()
        await backend.join("c")
        await backend.publish("a", delay=0.2)
        claim = await backend.claim("c")
        while not claim.entries:
            assert claim.next_due is not None
            claim = await backend.claim("c", wait=claim.next_due)
        assert ids(claim.entries) == ["a"]

    @promise()
    async def test_a_wait_of_less_than_a_millisecond_ends(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        assert await backend.take("c", wait=0.0001) == []

    @promise()
    async def test_a_job_scheduled_earlier_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("late", delay=1000)
        waiting = await backend.begun(self.wait_until_due_in(10, backend, "c"))
        await backend.publish("soon", delay=10)
        await waiting

    @promise()
    async def test_a_retry_scheduled_earlier_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a")
        entries = await backend.take("d")
        waiting = await backend.begun(self.wait_until_due_in(10, backend, "c"))
        await backend.settle("d", entries, Kind.RETRY, delay=10)
        await waiting

    @staticmethod
    async def wait_until_due_in(seconds: float, backend: BackendUnderTest, consumer: str) -> None:
        while (await backend.claim(consumer, wait=LONG)).next_due != seconds:
            pass

    @promise()
    async def test_a_waiting_claim_raises_lease_lost_if_its_lease_ends(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        supervisor = await backend.another()
        waiting = await backend.begun(backend.take("c", wait=LONG))
        await supervisor.leave(backend.queue, "c")
        await backend.publish("a")
        with pytest.raises(LeaseLost):
            await waiting
        assert await backend.status("a") == "ready"

    @promise()
    async def test_messages_taken_by_a_cancelled_claim_can_be_recovered(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        waiting = await backend.begun(backend.take("c", wait=LONG))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await backend.publish("a")
        found: list[str] = []

        async def somewhere() -> bool:
            found.extend(ids(await backend.take("d") + await backend.broker.recover(backend.queue, "c", [])))
            return bool(found)

        await eventually(somewhere)
        assert found == ["a"]
