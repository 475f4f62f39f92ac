"""Promises about claims, and about claims whose reply was lost."""

from __future__ import annotations

import pytest

from millstream.broker.values import parse_entry
from millstream.errors import LeaseLost
from millstream.model.outcome import Kind
from millstream.testing.backend import START, BackendUnderTest, Promises, ids, promise


class ClaimingPromises(Promises):
    @promise()
    async def test_a_claim_takes_at_most_the_requested_count(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b", "c")
        assert ids(await backend.take("c", 2)) == ["a", "b"]
        assert ids(await backend.take("c", 2)) == ["c"]

    @promise()
    async def test_a_claim_on_an_empty_queue_returns_no_messages(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        claim = await backend.claim("c")
        assert (claim.entries, claim.next_due, claim.paused, claim.suspects) == ([], None, False, False)

    @promise()
    async def test_a_claimed_message_goes_to_no_other_consumer(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a", "b")
        assert ids(await backend.take("c", 1)) == ["a"]
        assert ids(await backend.take("d")) == ["b"]
        assert await backend.take("c") == []

    @promise()
    async def test_every_claimed_entry_has_a_unique_ref(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish(*[f"n{n}" for n in range(100)])
        assert len({entry.ref for entry in await backend.take("c")}) == 100

    @promise()
    async def test_a_claim_without_a_lease_is_refused(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        with pytest.raises(LeaseLost):
            await backend.claim("stranger")
        assert await backend.status("a") == "ready"

    @promise()
    async def test_a_lease_on_one_queue_does_not_allow_claims_on_another(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        with pytest.raises(LeaseLost):
            await backend.claim("c", queue=backend.other_queue)

    @promise()
    async def test_a_claim_returns_the_server_time(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        backend.at(12.5)
        assert (await backend.claim("c")).now_ms == int((START + 12.5) * 1000)

    @promise()
    async def test_a_claim_with_count_zero_takes_nothing(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        assert await backend.take("c", 0) == []
        assert await backend.status("a") == "ready"

    @promise()
    async def test_a_claim_with_count_zero_promotes_due_jobs(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=5)
        backend.at(5)
        assert (await backend.claim("c", 0)).next_due is None
        assert await backend.status("a") == "ready"

    @promise()
    async def test_claims_take_released_jobs_first_then_those_of_dead_consumers_then_new_ones(
        self, backend: BackendUnderTest
    ) -> None:
        await backend.join("c", "d", "e")
        await backend.publish("orphan", "released")
        await backend.take("c", 1)
        await backend.release("d", await backend.take("d", 1))
        await backend.publish("fresh")
        await backend.broker.leave(backend.queue, "c")
        assert ids(await backend.take("e")) == ["released", "orphan", "fresh"]

    @promise()
    async def test_released_jobs_are_claimed_in_the_order_of_acceptance(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b", "c", "d")
        a, b, c, _ = await backend.take("c")
        for entry in (c, a, b):
            await backend.release("c", [entry])
        assert ids(await backend.take("c", 2)) == ["a", "b"]
        assert ids(await backend.take("c", 2)) == ["c"]

    @promise()
    async def test_jobs_of_a_dead_consumer_are_claimed_in_the_order_of_acceptance(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a", "b", "c")
        await backend.take("c")
        await backend.broker.leave(backend.queue, "c")
        assert ids(await backend.take("d", 2)) == ["a", "b"]
        assert ids(await backend.take("d", 2)) == ["c"]

    @promise()
    async def test_a_job_that_becomes_due_is_appended_to_the_queue(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("later", delay=5)
        await backend.publish("now")
        backend.at(5)
        assert ids(await backend.take("c")) == ["now", "later"]

    @promise()
    async def test_due_jobs_are_claimed_in_the_order_of_their_due_times(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("third", delay=3)
        await backend.publish("first", delay=1)
        await backend.publish("second", delay=2)
        backend.at(5)
        assert ids(await backend.take("c")) == ["first", "second", "third"]

    @promise()
    async def test_six_hundred_due_jobs_are_all_delivered(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish(*[f"n{n}" for n in range(600)], delay=5)
        backend.at(5)
        seen: list[str] = []
        while entries := await backend.take("c", 50):
            seen += ids(entries)
        assert sorted(seen) == sorted(f"n{n}" for n in range(600))

    @promise()
    async def test_a_claim_returns_the_time_until_the_next_job_is_due(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", delay=7.5)
        await backend.publish("b", delay=20)
        assert (await backend.claim("c")).next_due == 7.5
        backend.at(5)
        assert (await backend.claim("c")).next_due == 2.5
        backend.at(7.5)
        assert (await backend.claim("c")).next_due == 12.5

    @promise()
    async def test_an_expiry_thousands_of_years_ahead_is_kept_exactly(self, backend: BackendUnderTest) -> None:
        far = 253_402_214_400.123
        await backend.join("c")
        await backend.publish("now", expires_at=far)
        await backend.publish("later", delay=5, expires_at=far)
        assert [entry.expires_ms for entry in await backend.take("c")] == [253_402_214_400_123]
        backend.at(5)
        assert [entry.expires_ms for entry in await backend.take("c")] == [253_402_214_400_123]

    # -- recover -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_recover_returns_claimed_entries_that_the_consumer_does_not_hold(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b", "c", expires=60)
        entries = await backend.take("c")
        recovered = await backend.broker.recover(backend.queue, "c", {entries[1].ref})
        assert recovered == [entries[0], entries[2]]

    @promise()
    async def test_recover_returns_nothing_when_the_consumer_holds_all_its_claims(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b")
        held = {entry.ref for entry in await backend.take("c")}
        assert await backend.broker.recover(backend.queue, "c", held) == []

    @promise()
    async def test_recover_returns_no_entries_of_other_consumers(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a", "b")
        await backend.take("d", 1)
        await backend.release("c", await backend.take("c", 1))
        assert await backend.broker.recover(backend.queue, "c", set()) == []

    @promise()
    async def test_recovering_counts_no_crash(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=1)
        await backend.join("c", "d")
        await backend.take("c")
        for _ in range(3):
            assert [entry.crashes for entry in await backend.broker.recover(backend.queue, "c", set())] == [1]
        await backend.release("c", await backend.broker.recover(backend.queue, "c", set()))
        assert [entry.crashes for entry in await backend.take("d")] == [1]

    @promise()
    async def test_a_recovered_entry_can_be_settled(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.take("c")
        assert await backend.settle("c", await backend.broker.recover(backend.queue, "c", [])) == 1
        assert await backend.broker.recover(backend.queue, "c", []) == []

    @promise()
    async def test_recover_without_a_lease_is_refused(self, backend: BackendUnderTest) -> None:
        with pytest.raises(LeaseLost):
            await backend.broker.recover(backend.queue, "stranger", set())

    # -- release -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_released_job_is_ready_and_counts_no_crash(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a")
        for _ in range(5):
            assert await backend.release("c", await backend.take("c")) == 1
            assert await backend.status("a") == "ready"
        assert [entry.crashes for entry in await backend.take("d")] == [0]

    @promise()
    async def test_releasing_an_entry_twice_releases_it_once(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b")
        entries = await backend.take("c")
        assert await backend.release("c", [entries[0], entries[0]]) == 1
        assert await backend.release("c", entries) == 1
        assert await backend.release("c", entries) == 0
        assert [entry.crashes for entry in await backend.take("c")] == [0, 0]

    @promise()
    async def test_release_skips_settled_entries_and_entries_of_other_consumers(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("mine", "theirs")
        mine, theirs = await backend.take("c", 1), await backend.take("d", 1)
        await backend.settle("c", mine, Kind.DONE)
        assert await backend.release("c", mine + theirs) == 0
        assert await backend.status("theirs") == "running"

    @promise()
    async def test_releasing_no_entries_returns_zero(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        assert await backend.release("c", []) == 0

    @promise()
    async def test_release_without_a_lease_is_refused(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        entries = await backend.take("c")
        await backend.broker.leave(backend.queue, "c")
        with pytest.raises(LeaseLost):
            await backend.release("c", entries)

    @promise()
    async def test_each_claimed_entry_of_a_queue_has_its_own_location(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b")
        locations = [backend.broker.locate(entry.ref) for entry in await backend.take("c")]
        assert len(set(locations)) == 2
        assert sorted(locations, key=lambda location: parse_entry(location.entry)) == locations
        assert not any(location.in_log for location in locations)
