"""Promises about order per key in queues only: jobs are found by id, can be cancelled, and can be waited for."""

from __future__ import annotations

from millstream.broker import Cancellation, OrderRules, Post, Receipt
from millstream.model.outcome import Kind
from millstream.testing.backend import QUEUE, BackendUnderTest, Promises, eventually, ids, promise
from millstream.testing.keyed import KEY, begin, blocked, finish_all, retry, send, take_all

CANCELLED = Cancellation.CANCELLED


class OrderedQueuePromises(Promises):
    queue = QUEUE

    @promise()
    async def test_a_cancelled_blocked_job_is_skipped(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3")
        assert await backend.broker.cancel(backend.queue, "2") is CANCELLED
        assert await backend.status("2") == "cancelled"
        assert await blocked(backend) == ["3"]
        await backend.settle("c", [first])
        assert ids(await backend.take("c")) == ["3"]

    @promise()
    async def test_a_cancelled_retry_passes_the_turn_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await retry(backend, first)
        assert await backend.broker.cancel(backend.queue, "1") is CANCELLED
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_a_cancelled_due_retry_passes_the_turn_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await retry(backend, first)
        backend.at(5)
        await backend.claim("c", 0)
        assert await backend.status("1") == "ready"
        assert await backend.broker.cancel(backend.queue, "1") is CANCELLED
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_a_cancelled_released_job_passes_the_turn_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await backend.release("c", [first])
        assert await backend.broker.cancel(backend.queue, "1") is CANCELLED
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_a_cancelled_job_whose_consumer_left_passes_the_turn_on(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2")
        await backend.broker.leave(backend.queue, "c")
        assert await backend.broker.cancel(backend.queue, "1") is CANCELLED
        await backend.join("d")
        assert ids(await backend.take("d")) == ["2"]

    @promise()
    async def test_a_cancelled_job_that_just_got_the_turn_passes_it_on(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2", "3")
        await backend.settle("c", [first])
        assert await backend.broker.cancel(backend.queue, "2") is CANCELLED
        assert ids(await backend.take("c")) == ["3"]

    @promise()
    async def test_cancelling_a_job_without_the_turn_does_not_pass_the_turn_on(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2")
        await send(backend, "3")
        await send(backend, "late", delay=5)
        for name in ("3", "late"):
            assert await backend.broker.cancel(backend.queue, name) is CANCELLED
        assert await backend.take("c") == []

    @promise()
    async def test_a_running_job_cannot_be_cancelled_and_keeps_the_turn(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2")
        assert await backend.broker.cancel(backend.queue, "1") is Cancellation.RUNNING
        assert await backend.take("c") == []

    @promise()
    async def test_a_cancel_that_passes_the_turn_on_ends_a_wait(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await retry(backend, first, delay=1000)
        waiting = await backend.begun(backend.wait_for_work("c"))
        await backend.broker.cancel(backend.queue, "1")
        assert ids(await waiting) == ["2"]

    @promise()
    async def test_max_length_counts_blocked_jobs(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2", "3")
        assert await send(backend, "4", max_length=3) == [Receipt.FULL]
        assert await send(backend, "4", max_length=4) == [Receipt.CREATED]

    @promise()
    async def test_the_id_of_a_blocked_job_is_in_use(self, backend: BackendUnderTest) -> None:
        await begin(backend, "1", "2")
        assert await send(backend, "2") == [Receipt.EXISTS]
        assert await backend.publish("2", task="another") == [Receipt.CONFLICT]

    @promise()
    async def test_jobs_with_generated_ids_may_have_keys(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        posts = [Post(f"s-{n}", b"s-%d" % n, serial=n, key=b"%d" % (n % 2)) for n in range(1, 5)]
        assert await backend.broker.publish(backend.queue, posts[:3], sender="s") == [Receipt.CREATED] * 3
        assert await backend.broker.publish(backend.queue, posts, sender="s") == [Receipt.EXISTS] * 3 + [Receipt.CREATED]
        assert ids(await take_all(backend)) == ["s-1", "s-2"]
        assert await blocked(backend) == ["s-4", "s-3"]

    @promise()
    async def test_a_promoted_job_is_ordered_by_the_time_of_its_promotion(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await send(backend, "late", delay=1000)
        await send(backend, "3")
        assert await backend.broker.promote(backend.queue, ["late"]) == ["late"]
        await backend.settle("c", [first])
        assert await finish_all(backend) == ["2", "3", "late"]

    @promise()
    async def test_a_wait_for_a_job_ends_when_the_job_dies_of_a_stopped_key(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1", "2")
        await backend.broker.join(backend.queue, "d", 30, order=OrderRules(stop=True))
        await send(backend, "3")
        waiting = [await backend.begun(backend.broker.results.wait(backend.queue, name, None)) for name in ("2", "3")]
        await backend.settle("c", [first], Kind.DEAD)
        await take_all(backend)
        for each in waiting:
            await each
        assert (await backend.status("2"), await backend.status("3")) == ("dead", "dead")

    @promise(id_ttl=0.05)
    async def test_the_id_of_a_job_beyond_max_pending_is_free_after_a_purge_and_id_ttl(self, backend: BackendUnderTest) -> None:
        first = await begin(backend, "1")
        await backend.broker.join(backend.queue, "d", 30, order=OrderRules(max_pending=0))
        await retry(backend, first)
        await send(backend, "2")
        await take_all(backend)
        assert await send(backend, "2") == [Receipt.EXISTS]
        await backend.broker.purge(backend.queue, ["2"])

        async def forgotten() -> bool:
            return await send(backend, "2", key=KEY) == [Receipt.CREATED]

        await eventually(forgotten)
