"""Promises about waiting for the ending of a job."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.values import CANCELLED_TTL
from millstream.model.address import Address
from millstream.model.ending import Ending, decode_ending
from millstream.model.outcome import Kind
from millstream.testing.backend import DEAD_ENDING, DONE_ENDING, LONG, BackendUnderTest, Promises, promise


class ResultPromises(Promises):
    @promise()
    async def test_a_job_has_no_ending_before_it_ends(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        assert await backend.broker.results.get(backend.queue, "a") is None
        await backend.take("c")
        assert await backend.broker.results.get(backend.queue, "a") is None

    @promise()
    async def test_an_ending_belongs_to_its_queue(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await backend.broker.results.get(backend.other_queue, "a") is None

    @promise()
    async def test_waiting_for_an_ended_job_returns_immediately(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await backend.broker.results.wait(backend.queue, "a", None) == DONE_ENDING

    @promise()
    async def test_waiting_for_an_unknown_job_returns_immediately(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.results.wait(backend.queue, "never", None) is None
        assert await backend.broker.results.wait(Address("no such queue"), "never", None) is None

    @promise()
    async def test_waiting_for_a_job_that_left_nothing_behind_returns_immediately(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), given_id=True)
        await backend.die("c", "b")
        assert await backend.broker.results.wait(backend.queue, "a", None) is None
        assert await backend.broker.results.wait(backend.queue, "b", None) is None

    @promise()
    async def test_a_waiter_receives_the_ending(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        waiting = await backend.begun(backend.broker.results.wait(backend.queue, "a", LONG))
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_a_waiter_in_another_process_receives_the_ending(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        other = await backend.another()
        waiting = await backend.begun(other.results.wait(backend.queue, "a", LONG))
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_all_waiters_receive_the_ending(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b")
        other = await backend.another()
        waits = [
            broker.results.wait(backend.queue, job_id, None) for broker in (backend.broker, other) for job_id in ("a", "b", "a")
        ]
        waiting = [await backend.begun(wait) for wait in waits]
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await asyncio.gather(*waiting) == [DONE_ENDING] * 6

    @promise()
    async def test_a_waiter_gets_none_if_the_job_leaves_nothing_behind(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        waiting = await backend.begun(backend.broker.results.wait(backend.queue, "a", LONG))
        await backend.settle("c", await backend.take("c"))
        assert await waiting is None

    @promise()
    async def test_a_waiter_receives_the_ending_of_a_dead_cancelled_or_expired_job(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("dead", "expired", "cancelled")
        waits = [
            await backend.begun(backend.broker.results.wait(backend.queue, i, LONG)) for i in ("dead", "expired", "cancelled")
        ]
        dead, expired = await backend.take("c", 2)
        await backend.settle("c", [dead], Kind.DEAD, result=DEAD_ENDING, result_ttl=60)
        await backend.settle("c", [expired], Kind.EXPIRED, result_ttl=60)
        await backend.broker.cancel(backend.queue, "cancelled")
        endings = [decode_ending(ending or b"") for ending in await asyncio.gather(*waits)]
        assert endings == [decode_ending(DEAD_ENDING), Ending("expired"), Ending("cancelled", ttl=CANCELLED_TTL)]

    @promise()
    async def test_a_waiter_may_wait_for_any_printable_id(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        names = ["a b", "ü→", "a:b{c}:q:", "x-0"]
        await backend.publish(*names)
        waiting = [await backend.begun(backend.broker.results.wait(backend.queue, name, LONG)) for name in names]
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await asyncio.gather(*waiting) == [DONE_ENDING] * len(names)

    @promise()
    async def test_a_retry_does_not_end_a_wait(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        waiting = await backend.begun(backend.broker.results.wait(backend.queue, "a", LONG))
        await backend.settle("c", await backend.take("c"), Kind.RETRY)
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_a_waiter_for_a_replayed_job_receives_its_next_ending(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", result=DEAD_ENDING, result_ttl=60)
        await backend.broker.replay(backend.queue, ["a"])
        waiting = await backend.begun(backend.broker.results.wait(backend.queue, "a", LONG))
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_a_wait_raises_timeout_error_after_its_timeout(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        with pytest.raises(TimeoutError):
            await backend.broker.results.wait(backend.queue, "a", 0.02)
        with pytest.raises(TimeoutError):
            await backend.broker.results.wait(backend.queue, "a", 0)

    @promise()
    async def test_a_waiter_that_waits_again_after_a_timeout_receives_the_ending(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        with pytest.raises(TimeoutError):
            await backend.broker.results.wait(backend.queue, "a", 0.02)
        waiting = await backend.begun(backend.broker.results.wait(backend.queue, "a", LONG))
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING

    @promise()
    async def test_the_timeout_of_one_waiter_does_not_affect_others(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        waiting = await backend.begun(backend.broker.results.wait(backend.queue, "a", LONG))
        with pytest.raises(TimeoutError):
            await backend.broker.results.wait(backend.queue, "a", 0.02)
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await waiting == DONE_ENDING
