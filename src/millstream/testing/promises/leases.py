"""Who may hold work, for how long, and what happens to it after."""

from __future__ import annotations

import pytest

from millstream.broker import Cancellation
from millstream.errors import LeaseLost
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise

# the two looks at an overdue lease, in seconds after its deadline
MARK = 0.5
LAPSE = MARK + 1.5


async def lapse(backend: BackendUnderTest, *, lease: float, watcher: str) -> None:
    """Look twice at leases that were last renewed at the start; the watcher keeps its own."""
    for seconds in (lease + MARK, lease + LAPSE):
        backend.at(seconds)
        await backend.broker.renew(backend.queue, {watcher: lease})
        await backend.claim(watcher, 0)


class LeasePromises(Promises):
    @promise()
    async def test_a_slow_consumer_that_renews_keeps_its_work(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        entries = await backend.take("c")
        for seconds in range(0, 200, 5):
            backend.at(seconds)
            assert await backend.broker.renew(backend.queue, {"c": 10, "d": 10}) == set()
            assert await backend.take("d") == []
        assert await backend.settle("c", entries) == 1

    @promise()
    async def test_a_lease_still_overdue_at_a_second_look_lapses(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        await backend.take("c")
        await lapse(backend, lease=10, watcher="d")
        assert await backend.broker.renew(backend.queue, {"c": 10}) == {"c"}
        assert [(entry.body, entry.crashes) for entry in await backend.take("d")] == [(b"a", 1)]

    @promise()
    async def test_one_look_lapses_nothing_however_late_it_comes(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        await backend.take("c")
        backend.at(10_000)
        assert await backend.take("d") == []
        assert await backend.broker.renew(backend.queue, {"c": 10}) == set()

    @promise()
    async def test_two_looks_close_together_lapse_nothing(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        await backend.take("c")
        backend.at(100)
        assert await backend.take("d") == []
        backend.at(101)
        assert await backend.take("d") == []
        assert await backend.status("a") == "running"

    @promise()
    async def test_a_renewal_between_the_looks_saves_the_lease(self, backend: BackendUnderTest) -> None:
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
    async def test_a_renewal_clears_the_first_look(self, backend: BackendUnderTest) -> None:
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
    async def test_a_lease_lapses_at_its_deadline_and_not_before(self, backend: BackendUnderTest) -> None:
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
    async def test_each_lease_has_its_own_length(self, backend: BackendUnderTest) -> None:
        await backend.join("short", lease=5)
        await backend.join("long", "watcher", lease=60)
        await backend.publish("a", "b")
        await backend.take("short", 1)
        await backend.take("long", 1)
        await lapse(backend, lease=5, watcher="watcher")
        assert ids(await backend.take("watcher")) == ["a"]
        assert await backend.status("b") == "running"

    @promise()
    async def test_a_paused_queue_lapses_leases_too(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        await backend.take("c")
        await backend.broker.pause(backend.queue)
        await lapse(backend, lease=10, watcher="d")
        assert await backend.status("a") == "ready"

    @promise()
    async def test_a_consumer_whose_keeper_died_lapses_by_its_own_claims(self, backend: BackendUnderTest) -> None:
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
    async def test_renewing_tells_exactly_the_lost_ones(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.broker.leave(backend.queue, "d")
        assert await backend.broker.renew(backend.queue, {"c": 10, "d": 10, "never": 10}) == {"d", "never"}
        assert await backend.broker.renew(backend.queue, {}) == set()

    @promise()
    async def test_renewing_a_lost_lease_does_not_bring_it_back(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.broker.leave(backend.queue, "c")
        await backend.broker.renew(backend.queue, {"c": 10})
        with pytest.raises(LeaseLost):
            await backend.claim("c")

    @promise()
    async def test_joining_twice_is_joining_once(self, backend: BackendUnderTest) -> None:
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
    async def test_late_outcomes_are_refused_after_the_work_went_to_another(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a")
        entries = await backend.take("c")
        await lapse(backend, lease=10, watcher="d")
        taken_over = await backend.take("d")
        with pytest.raises(LeaseLost):
            await backend.settle("c", entries)
        assert await backend.settle("d", taken_over) == 1

    @promise()
    async def test_a_lapse_is_counted_and_a_leave_is_not(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "left", "d", lease=10)
        await backend.broker.leave(backend.queue, "left")
        await lapse(backend, lease=10, watcher="d")
        assert (await backend.totals())["lapsed"] == 1

    @promise()
    async def test_the_jobs_of_a_lapsed_consumer_are_ready_and_can_be_cancelled(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d", lease=10)
        await backend.publish("a", "b")
        await backend.take("c")
        await lapse(backend, lease=10, watcher="d")
        state = await backend.broker.inspector.queue(backend.queue)
        assert (state.ready, state.running) == (2, 0)
        assert await backend.broker.cancel(backend.queue, "a") is Cancellation.CANCELLED
        assert ids(await backend.take("d")) == ["b"]

    @promise()
    async def test_every_consumer_that_died_holding_a_job_is_counted(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        for crashes in range(4):
            await backend.join(f"c{crashes}")
            assert [e.crashes for e in await backend.take(f"c{crashes}", suspect_after=1000)] == [crashes]
            await backend.broker.leave(backend.queue, f"c{crashes}")

    # -- leave -------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_what_a_leaver_held_can_be_claimed_at_once(self, backend: BackendUnderTest) -> None:
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
    async def test_leaving_with_nothing_in_hand_leaves_nothing(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        assert await backend.broker.leave(backend.queue, "c") == 0
        assert await backend.broker.leave(backend.queue, "d", blameless=True) == 0
        assert (await backend.broker.inspector.queue(backend.queue)).consumers == 0

    @promise()
    async def test_leaving_twice_leaves_once(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a")
        await backend.take("c")
        await backend.broker.leave(backend.queue, "c", blameless=True)
        taken_over = await backend.take("d")
        assert await backend.broker.leave(backend.queue, "c", blameless=True) == 0
        assert await backend.settle("d", taken_over) == 1

    @promise()
    async def test_one_may_give_up_anothers_lease(self, backend: BackendUnderTest) -> None:
        await backend.join("child")
        await backend.publish("a")
        await backend.take("child")
        supervisor = await backend.another()
        assert await supervisor.leave(backend.queue, "child") == 1
        with pytest.raises(LeaseLost):
            await backend.claim("child")

    @promise()
    async def test_a_stranger_that_leaves_changes_nothing(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.leave(backend.queue, "stranger") == 0
