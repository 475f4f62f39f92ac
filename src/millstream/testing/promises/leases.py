"""Promises about leases: how long a consumer may hold messages, and what happens to them afterwards."""

from __future__ import annotations

import pytest

from millstream.broker import Cancellation
from millstream.errors import LeaseLost
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise

# times of the two lease checks, in seconds after the deadline
MARK = 0.5
LAPSE = MARK + 1.5


async def lapse(backend: BackendUnderTest, *, lease: float, watcher: str) -> None:
    """Check the leases twice after their deadline. The watcher renews its own lease."""
    for seconds in (lease + MARK, lease + LAPSE):
        backend.at(seconds)
        await backend.broker.renew(backend.queue, {watcher: lease})
        await backend.claim(watcher, 0)


class LeasePromises(Promises):
    @promise()
    async def test_a_slow_consumer_that_renews_its_lease_keeps_its_messages(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        entries = await backend.take("c")
        for seconds in range(0, 200, 5):
            backend.at(seconds)
            assert await backend.broker.renew(backend.queue, {"c": 10, "d": 10}) == set()
            assert await backend.take("d") == []
        assert await backend.settle("c", entries) == 1

    @promise()
    async def test_a_lease_that_is_overdue_at_two_checks_lapses(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        await backend.take("c")
        await lapse(backend, lease=10, watcher="d")
        assert await backend.broker.renew(backend.queue, {"c": 10}) == {"c"}
        assert [(entry.body, entry.crashes) for entry in await backend.take("d")] == [(b"a", 1)]

    @promise()
    async def test_a_single_check_never_lapses_a_lease_however_overdue_it_is(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        await backend.take("c")
        backend.at(10_000)
        assert await backend.take("d") == []
        assert await backend.broker.renew(backend.queue, {"c": 10}) == set()

    @promise()
    async def test_two_checks_close_together_lapse_no_lease(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        await backend.take("c")
        backend.at(100)
        assert await backend.take("d") == []
        backend.at(101)
        assert await backend.take("d") == []
        assert await backend.status("a") == "running"

    @promise()
    async def test_a_renewal_between_two_checks_saves_the_lease(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        entries = await backend.take("c")
        backend.at(11)
        await backend.broker.renew(backend.queue, {"d": 100})
        await backend.claim("d", 0)
        backend.at(12)
        assert await backend.broker.renew(backend.queue, {"c": 10}) == set()
        backend.at(13)
        assert await backend.take("d") == []
        assert await backend.settle("c", entries) == 1

    @promise()
    async def test_after_a_renewal_two_new_checks_are_needed_to_lapse_a_lease(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        await backend.take("c")
        backend.at(11)
        await backend.broker.renew(backend.queue, {"d": 1000})
        await backend.claim("d", 0)
        await backend.broker.renew(backend.queue, {"c": 10})
        backend.at(22)
        assert await backend.take("d") == []
        assert await backend.status("a") == "running"

    @promise()
    async def test_a_check_before_the_deadline_does_not_count_towards_a_lapse(self, backend: BackendUnderTest) -> None:
        await backend.join("c", lease=10)
        await backend.join("d", lease=1000)
        await backend.publish("a")
        await backend.take("c")
        backend.at(9.5)
        await backend.claim("d", 0)
        backend.at(11.5)
        assert await backend.take("d") == []
        backend.at(13)
        assert ids(await backend.take("d")) == ["a"]

    @promise()
    async def test_each_lease_has_its_own_duration(self, backend: BackendUnderTest) -> None:
        await backend.join("short", lease=5)
        await backend.join("long", "watcher", lease=60)
        await backend.publish("a", "b")
        await backend.take("short", 1)
        await backend.take("long", 1)
        await lapse(backend, lease=5, watcher="watcher")
        assert ids(await backend.take("watcher")) == ["a"]
        assert await backend.status("b") == "running"

    @promise()
    async def test_leases_lapse_on_a_paused_queue_too(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        await backend.take("c")
        await backend.broker.pause(backend.queue)
        await lapse(backend, lease=10, watcher="d")
        assert await backend.status("a") == "ready"

    @promise()
    async def test_a_consumer_that_does_not_renew_lapses_through_its_own_claims(self, backend: BackendUnderTest) -> None:
        await backend.join("c", lease=10)
        await backend.publish("a")
        await backend.take("c")
        backend.at(11)
        await backend.claim("c", 0)
        backend.at(13)
        with pytest.raises(LeaseLost):
            await backend.claim("c", 0)
        assert await backend.broker.renew(backend.queue, {"c": 10}) == {"c"}
        assert await backend.status("a") == "ready"

    @promise()
    async def test_an_overdue_consumer_that_has_not_lapsed_may_still_settle(self, backend: BackendUnderTest) -> None:
        await backend.join("c", lease=10)
        await backend.publish("a")
        entries = await backend.take("c")
        backend.at(10_000)
        assert await backend.settle("c", entries) == 1

    @promise()
    async def test_renew_returns_exactly_the_consumers_without_a_lease(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.broker.leave(backend.queue, "d")
        assert await backend.broker.renew(backend.queue, {"c": 10, "d": 10, "never": 10}) == {"d", "never"}
        assert await backend.broker.renew(backend.queue, {}) == set()

    @promise()
    async def test_renewing_a_lost_lease_does_not_restore_it(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.broker.leave(backend.queue, "c")
        await backend.broker.renew(backend.queue, {"c": 10})
        with pytest.raises(LeaseLost):
            await backend.claim("c")

    @promise()
    async def test_joining_twice_counts_as_one_consumer(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "c")
        assert (await backend.broker.inspector.queue(backend.queue)).consumers == 1

    @promise()
    async def test_a_settle_without_a_lease_is_refused_and_changes_nothing(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a", "b", "c", "d")
        entries = await backend.take("c")
        await lapse(backend, lease=10, watcher="d")
        before = await backend.broker.inspector.queue(backend.queue)
        for entry, kind in zip(entries, Kind, strict=True):
            with pytest.raises(LeaseLost):
                await backend.settle("c", [entry], kind, result=b"x", result_ttl=100)
        assert await backend.broker.inspector.queue(backend.queue) == before
        assert ids(await backend.take("d")) == ["a", "b", "c", "d"]

    @promise()
    async def test_late_outcomes_are_refused_after_another_consumer_took_over(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        entries = await backend.take("c")
        await lapse(backend, lease=10, watcher="d")
        taken_over = await backend.take("d")
        with pytest.raises(LeaseLost):
            await backend.settle("c", entries)
        assert await backend.settle("d", taken_over) == 1

    @promise()
    async def test_the_lapsed_total_counts_lapses_but_not_leaves(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "left", "d", lease=10)
        await backend.broker.leave(backend.queue, "left")
        await lapse(backend, lease=10, watcher="d")
        assert (await backend.totals())["lapsed"] == 1

    @promise()
    async def test_jobs_of_a_lapsed_consumer_are_ready_and_can_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a", "b")
        await backend.take("c")
        await lapse(backend, lease=10, watcher="d")
        state = await backend.broker.inspector.queue(backend.queue)
        assert (state.ready, state.running) == (2, 0)
        assert await backend.broker.cancel(backend.queue, "a") is Cancellation.CANCELLED
        assert ids(await backend.take("d")) == ["b"]

    @promise()
    async def test_each_consumer_that_dies_while_holding_a_job_counts_as_a_crash(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        for crashes in range(4):
            await backend.join(f"c{crashes}")
            assert [e.crashes for e in await backend.take(f"c{crashes}", suspect_after=1000)] == [crashes]
            await backend.broker.leave(backend.queue, f"c{crashes}")

    # -- leave -------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_messages_of_a_consumer_that_leaves_can_be_claimed_immediately(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a", "b")
        await backend.take("c")
        assert await backend.broker.leave(backend.queue, "c") == 2
        assert [(entry.body, entry.crashes) for entry in await backend.take("d")] == [(b"a", 1), (b"b", 1)]

    @promise()
    async def test_a_blameless_leave_counts_no_crash(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a", "b")
        await backend.take("c")
        assert await backend.broker.leave(backend.queue, "c", blameless=True) == 2
        assert [(entry.body, entry.crashes) for entry in await backend.take("d")] == [(b"a", 0), (b"b", 0)]

    @promise()
    async def test_leaving_without_messages_returns_zero(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        assert await backend.broker.leave(backend.queue, "c") == 0
        assert await backend.broker.leave(backend.queue, "d", blameless=True) == 0
        assert (await backend.broker.inspector.queue(backend.queue)).consumers == 0

    @promise()
    async def test_leaving_twice_has_no_further_effect(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a")
        await backend.take("c")
        await backend.broker.leave(backend.queue, "c", blameless=True)
        taken_over = await backend.take("d")
        assert await backend.broker.leave(backend.queue, "c", blameless=True) == 0
        assert await backend.settle("d", taken_over) == 1

    @promise()
    async def test_a_process_may_give_up_the_lease_of_another_consumer(self, backend: BackendUnderTest) -> None:
        await backend.join("child")
        await backend.publish("a")
        await backend.take("child")
        supervisor = await backend.another()
        assert await supervisor.leave(backend.queue, "child") == 1
        with pytest.raises(LeaseLost):
            await backend.claim("child")

    @promise()
    async def test_leaving_without_having_joined_changes_nothing(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.leave(backend.queue, "stranger") == 0
