"""What a consumer can rely on when it claims, and when a claim's reply is lost."""

from __future__ import annotations

import pytest

from millstream.errors import LeaseLost
from millstream.outcome import Kind
from millstream.testing.room import START, Promises, Room, ids, promise


class ClaimingPromises(Promises):
    @promise()
    async def test_a_claim_takes_no_more_than_asked(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b", "c")
        assert ids(await room.take("c", 2)) == ["a", "b"]
        assert ids(await room.take("c", 2)) == ["c"]

    @promise()
    async def test_an_empty_queue_gives_an_empty_claim(self, room: Room) -> None:
        await room.join("c")
        claim = await room.claim("c")
        assert (claim.entries, claim.next_due, claim.paused, claim.suspects) == ([], None, False, False)

    @promise()
    async def test_what_one_consumer_has_claimed_no_other_gets(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a", "b")
        assert ids(await room.take("c", 1)) == ["a"]
        assert ids(await room.take("d")) == ["b"]
        assert await room.take("c") == []

    @promise()
    async def test_every_entry_has_its_own_ref(self, room: Room) -> None:
        await room.join("c")
        await room.publish(*[f"n{n}" for n in range(100)])
        assert len({entry.ref for entry in await room.take("c")}) == 100

    @promise()
    async def test_a_claim_without_a_lease_is_refused(self, room: Room) -> None:
        await room.publish("a")
        with pytest.raises(LeaseLost):
            await room.claim("stranger")
        assert await room.status("a") == "ready"

    @promise()
    async def test_a_lease_on_one_queue_is_none_on_another(self, room: Room) -> None:
        await room.join("c")
        with pytest.raises(LeaseLost):
            await room.claim("c", queue=room.other_queue)

    @promise()
    async def test_a_claim_tells_the_servers_time(self, room: Room) -> None:
        await room.join("c")
        room.at(12.5)
        assert (await room.claim("c")).now_ms == int((START + 12.5) * 1000)

    @promise()
    async def test_a_claim_of_none_takes_nothing(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        assert await room.take("c", 0) == []
        assert await room.status("a") == "ready"

    @promise()
    async def test_a_claim_of_none_promotes_what_is_due(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=5)
        room.at(5)
        assert (await room.claim("c", 0)).next_due is None
        assert await room.status("a") == "ready"

    @promise()
    async def test_released_jobs_come_before_those_of_dead_consumers_and_those_before_fresh_ones(self, room: Room) -> None:
        await room.join("c", "d", "e")
        await room.publish("orphan", "released")
        await room.take("c", 1)
        await room.release("d", await room.take("d", 1))
        await room.publish("fresh")
        await room.broker.leave(room.queue, "c")
        assert ids(await room.take("e")) == ["released", "orphan", "fresh"]

    @promise()
    async def test_released_jobs_come_in_the_order_they_were_accepted(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b", "c", "d")
        a, b, c, _ = await room.take("c")
        for entry in (c, a, b):
            await room.release("c", [entry])
        assert ids(await room.take("c", 2)) == ["a", "b"]
        assert ids(await room.take("c", 2)) == ["c"]

    @promise()
    async def test_the_jobs_of_a_dead_consumer_come_in_the_order_they_were_accepted(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a", "b", "c")
        await room.take("c")
        await room.broker.leave(room.queue, "c")
        assert ids(await room.take("d", 2)) == ["a", "b"]
        assert ids(await room.take("d", 2)) == ["c"]

    @promise()
    async def test_a_due_job_goes_to_the_end_of_the_line(self, room: Room) -> None:
        await room.join("c")
        await room.publish("later", delay=5)
        await room.publish("now")
        room.at(5)
        assert ids(await room.take("c")) == ["now", "later"]

    @promise()
    async def test_due_jobs_come_in_the_order_they_are_due(self, room: Room) -> None:
        await room.join("c")
        await room.publish("third", delay=3)
        await room.publish("first", delay=1)
        await room.publish("second", delay=2)
        room.at(5)
        assert ids(await room.take("c")) == ["first", "second", "third"]

    @promise()
    async def test_many_due_jobs_all_come(self, room: Room) -> None:
        await room.join("c")
        await room.publish(*[f"n{n}" for n in range(600)], delay=5)
        room.at(5)
        seen: list[str] = []
        while entries := await room.take("c", 50):
            seen += ids(entries)
        assert sorted(seen) == sorted(f"n{n}" for n in range(600))

    @promise()
    async def test_a_claim_says_when_the_next_job_is_due(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", delay=7.5)
        await room.publish("b", delay=20)
        assert (await room.claim("c")).next_due == 7.5
        room.at(5)
        assert (await room.claim("c")).next_due == 2.5
        room.at(7.5)
        assert (await room.claim("c")).next_due == 12.5

    @promise()
    async def test_an_expiry_thousands_of_years_ahead_is_kept_exactly(self, room: Room) -> None:
        far = 253_402_214_400.123
        await room.join("c")
        await room.publish("now", expires_at=far)
        await room.publish("later", delay=5, expires_at=far)
        assert [entry.expires_ms for entry in await room.take("c")] == [253_402_214_400_123]
        room.at(5)
        assert [entry.expires_ms for entry in await room.take("c")] == [253_402_214_400_123]

    # -- recover -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_recover_brings_what_was_claimed_and_is_not_held(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b", "c", expires=60)
        entries = await room.take("c")
        recovered = await room.broker.recover(room.queue, "c", {entries[1].ref})
        assert recovered == [entries[0], entries[2]]

    @promise()
    async def test_recover_brings_nothing_when_all_is_held(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b")
        held = {entry.ref for entry in await room.take("c")}
        assert await room.broker.recover(room.queue, "c", held) == []

    @promise()
    async def test_recover_brings_nothing_of_others(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a", "b")
        await room.take("d", 1)
        await room.release("c", await room.take("c", 1))
        assert await room.broker.recover(room.queue, "c", set()) == []

    @promise()
    async def test_recovering_counts_no_crash(self, room: Room) -> None:
        await room.publish("a")
        await room.crash("x", lives=1)
        await room.join("c", "d")
        await room.take("c")
        for _ in range(3):
            assert [entry.crashes for entry in await room.broker.recover(room.queue, "c", set())] == [1]
        await room.release("c", await room.broker.recover(room.queue, "c", set()))
        assert [entry.crashes for entry in await room.take("d")] == [1]

    @promise()
    async def test_what_was_recovered_can_be_settled(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        await room.take("c")
        assert await room.settle("c", await room.broker.recover(room.queue, "c", [])) == 1
        assert await room.broker.recover(room.queue, "c", []) == []

    @promise()
    async def test_recover_without_a_lease_is_refused(self, room: Room) -> None:
        with pytest.raises(LeaseLost):
            await room.broker.recover(room.queue, "stranger", set())

    # -- release -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_released_job_is_ready_and_counts_no_crash(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("a")
        for _ in range(5):
            assert await room.release("c", await room.take("c")) == 1
            assert await room.status("a") == "ready"
        assert [entry.crashes for entry in await room.take("d")] == [0]

    @promise()
    async def test_releasing_twice_releases_once(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a", "b")
        entries = await room.take("c")
        assert await room.release("c", [entries[0], entries[0]]) == 1
        assert await room.release("c", entries) == 1
        assert await room.release("c", entries) == 0
        assert [entry.crashes for entry in await room.take("c")] == [0, 0]

    @promise()
    async def test_releasing_skips_what_is_settled_or_anothers(self, room: Room) -> None:
        await room.join("c", "d")
        await room.publish("mine", "theirs")
        mine, theirs = await room.take("c", 1), await room.take("d", 1)
        await room.settle("c", mine, Kind.DONE)
        assert await room.release("c", mine + theirs) == 0
        assert await room.status("theirs") == "running"

    @promise()
    async def test_releasing_nothing_is_nothing(self, room: Room) -> None:
        await room.join("c")
        assert await room.release("c", []) == 0

    @promise()
    async def test_release_without_a_lease_is_refused(self, room: Room) -> None:
        await room.join("c")
        await room.publish("a")
        entries = await room.take("c")
        await room.broker.leave(room.queue, "c")
        with pytest.raises(LeaseLost):
            await room.release("c", entries)
