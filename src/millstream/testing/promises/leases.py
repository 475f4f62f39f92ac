"""Who may hold work, for how long, and what happens to it after."""

from __future__ import annotations

import pytest

from millstream.broker import Cancellation
from millstream.errors import LeaseLost
from millstream.outcome import Kind
from millstream.testing.room import Promises, Room, ids, promise

# the two looks at an overdue lease, in seconds after its deadline
MARK = 0.5
LAPSE = MARK + 1.5


async def lapse(room: Room, *, lease: float, watcher: str) -> None:
    """Look twice at leases that were last renewed at the start; the watcher keeps its own."""
    for seconds in (lease + MARK, lease + LAPSE):
        room.at(seconds)
        await room.broker.renew(room.queue, {watcher: lease})
        await room.claim(watcher, 0)


class LeasePromises(Promises):
    @promise()
    async def test_a_slow_consumer_that_renews_keeps_its_work(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a")
        entries = await room.take("c")
        for seconds in range(0, 200, 5):
            room.at(seconds)
            assert await room.broker.renew(room.queue, {"c": 10, "d": 10}) == set()
            assert await room.take("d") == []
        assert await room.settle("c", entries) == 1

    @promise()
    async def test_a_lease_still_overdue_at_a_second_look_lapses(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a")
        await room.take("c")
        await lapse(room, lease=10, watcher="d")
        assert await room.broker.renew(room.queue, {"c": 10}) == {"c"}
        assert [(entry.body, entry.crashes) for entry in await room.take("d")] == [(b"a", 1)]

    @promise()
    async def test_one_look_lapses_nothing_however_late_it_comes(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a")
        await room.take("c")
        room.at(10_000)
        assert await room.take("d") == []
        assert await room.broker.renew(room.queue, {"c": 10}) == set()

    @promise()
    async def test_two_looks_close_together_lapse_nothing(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a")
        await room.take("c")
        room.at(100)
        assert await room.take("d") == []
        room.at(101)
        assert await room.take("d") == []
        assert await room.status("a") == "running"

    @promise()
    async def test_a_renewal_between_the_looks_saves_the_lease(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a")
        entries = await room.take("c")
        room.at(11)
        await room.broker.renew(room.queue, {"d": 100})
        await room.claim("d", 0)
        room.at(12)
        assert await room.broker.renew(room.queue, {"c": 10}) == set()
        room.at(13)
        assert await room.take("d") == []
        assert await room.settle("c", entries) == 1

    @promise()
    async def test_a_renewal_clears_the_first_look(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a")
        await room.take("c")
        room.at(11)
        await room.broker.renew(room.queue, {"d": 1000})
        await room.claim("d", 0)
        await room.broker.renew(room.queue, {"c": 10})
        room.at(22)
        assert await room.take("d") == []
        assert await room.status("a") == "running"

    @promise()
    async def test_a_lease_lapses_at_its_deadline_and_not_before(self, room: Room) -> None:
        await room.join("c", lease=10)
        await room.join("d", lease=1000)
        await room.publish("a")
        await room.take("c")
        room.at(9.5)
        await room.claim("d", 0)
        room.at(11.5)
        assert await room.take("d") == []
        room.at(13)
        assert ids(await room.take("d")) == ["a"]

    @promise()
    async def test_each_lease_has_its_own_length(self, room: Room) -> None:
        await room.join("short", lease=5)
        await room.join("long", "watcher", lease=60)
        await room.publish("a", "b")
        await room.take("short", 1)
        await room.take("long", 1)
        await lapse(room, lease=5, watcher="watcher")
        assert ids(await room.take("watcher")) == ["a"]
        assert await room.status("b") == "running"

    @promise()
    async def test_a_paused_queue_lapses_leases_too(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a")
        await room.take("c")
        await room.broker.pause(room.queue)
        await lapse(room, lease=10, watcher="d")
        assert await room.status("a") == "ready"

    @promise()
    async def test_a_consumer_whose_keeper_died_lapses_by_its_own_claims(self, room: Room) -> None:
        await room.join("c", lease=10)
        await room.publish("a")
        await room.take("c")
        room.at(11)
        await room.claim("c", 0)
        room.at(13)
        with pytest.raises(LeaseLost):
            await room.claim("c", 0)
        assert await room.broker.renew(room.queue, {"c": 10}) == {"c"}
        assert await room.status("a") == "ready"

    @promise()
    async def test_an_overdue_consumer_that_has_not_lapsed_may_still_settle(self, room: Room) -> None:
        await room.join("c", lease=10)
        await room.publish("a")
        entries = await room.take("c")
        room.at(10_000)
        assert await room.settle("c", entries) == 1

    @promise()
    async def test_renewing_tells_exactly_the_lost_ones(self, room: Room) -> None:
        await room.join("c", "d")
        await room.broker.leave(room.queue, "d")
        assert await room.broker.renew(room.queue, {"c": 10, "d": 10, "never": 10}) == {"d", "never"}
        assert await room.broker.renew(room.queue, {}) == set()

    @promise()
    async def test_renewing_a_lost_lease_does_not_bring_it_back(self, room: Room) -> None:
        await room.join("c")
        await room.broker.leave(room.queue, "c")
        await room.broker.renew(room.queue, {"c": 10})
        with pytest.raises(LeaseLost):
            await room.claim("c")

    @promise()
    async def test_joining_twice_is_joining_once(self, room: Room) -> None:
        await room.join("c", "c")
        assert (await room.broker.inspector.queue(room.queue)).consumers == 1

    @promise()
    async def test_a_settle_without_a_lease_is_refused_and_changes_nothing(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a", "b", "c", "d")
        entries = await room.take("c")
        await lapse(room, lease=10, watcher="d")
        before = await room.broker.inspector.queue(room.queue)
        for entry, kind in zip(entries, Kind, strict=True):
            with pytest.raises(LeaseLost):
                await room.settle("c", [entry], kind, result=b"x", result_ttl=100)
        assert await room.broker.inspector.queue(room.queue) == before
        assert ids(await room.take("d")) == ["a", "b", "c", "d"]

    @promise()
    async def test_late_outcomes_are_refused_after_the_work_went_to_another(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a")
        entries = await room.take("c")
        await lapse(room, lease=10, watcher="d")
        taken_over = await room.take("d")
        with pytest.raises(LeaseLost):
            await room.settle("c", entries)
        assert await room.settle("d", taken_over) == 1

    @promise()
    async def test_a_lapse_is_counted_and_a_leave_is_not(self, room: Room) -> None:
        await room.join("c", "left", "d", lease=10)
        await room.broker.leave(room.queue, "left")
        await lapse(room, lease=10, watcher="d")
        assert (await room.totals())["lapsed"] == 1

    @promise()
    async def test_the_jobs_of_a_lapsed_consumer_are_ready_and_can_be_cancelled(self, room: Room) -> None:
        await room.join("c", "d", lease=10)
        await room.publish("a", "b")
        await room.take("c")
        await lapse(room, lease=10, watcher="d")
        state = await room.broker.inspector.queue(room.queue)
        assert (state.ready, state.running) == (2, 0)
        assert await room.broker.cancel(room.queue, "a") is Cancellation.CANCELLED
        assert ids(await room.take("d")) == ["b"]

    @promise()
    async def test_every_consumer_that_died_holding_a_job_is_counted(self, room: Room) -> None:
        await room.publish("a")
        for crashes in range(4):
            await room.join(f"c{crashes}")
            assert [e.crashes for e in await room.take(f"c{crashes}", suspect_after=1000)] == [crashes]
            await room.broker.leave(room.queue, f"c{crashes}")

    # -- leave -------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_what_a_leaver_held_can_be_claimed_at_once(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a", "b")
        await room.take("c")
        assert await room.broker.leave(room.queue, "c") == 2
        assert [(entry.body, entry.crashes) for entry in await room.take("d")] == [(b"a", 1), (b"b", 1)]

    @promise()
    async def test_a_blameless_leave_counts_no_crash(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a", "b")
        await room.take("c")
        assert await room.broker.leave(room.queue, "c", blameless=True) == 2
        assert [(entry.body, entry.crashes) for entry in await room.take("d")] == [(b"a", 0), (b"b", 0)]

    @promise()
    async def test_leaving_with_nothing_in_hand_leaves_nothing(self, room: Room) -> None:
        await room.join("c", "d")
        assert await room.broker.leave(room.queue, "c") == 0
        assert await room.broker.leave(room.queue, "d", blameless=True) == 0
        assert (await room.broker.inspector.queue(room.queue)).consumers == 0

    @promise()
    async def test_leaving_twice_leaves_once(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a")
        await room.take("c")
        await room.broker.leave(room.queue, "c", blameless=True)
        taken_over = await room.take("d")
        assert await room.broker.leave(room.queue, "c", blameless=True) == 0
        assert await room.settle("d", taken_over) == 1

    @promise()
    async def test_one_may_give_up_anothers_lease(self, room: Room) -> None:
        await room.join("child")
        await room.publish("a")
        await room.take("child")
        supervisor = await room.another()
        assert await supervisor.leave(room.queue, "child") == 1
        with pytest.raises(LeaseLost):
            await room.claim("child")

    @promise()
    async def test_a_stranger_that_leaves_changes_nothing(self, room: Room) -> None:
        assert await room.broker.leave(room.queue, "stranger") == 0
