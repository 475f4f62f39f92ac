"""Promises about settling deliveries."""

from __future__ import annotations

from millstream.broker import Receipt
from millstream.model.ending import Ending, decode_ending
from millstream.model.outcome import Kind
from millstream.testing.backend import (
    DEAD_ENDING,
    DONE_ENDING,
    LETTER,
    START,
    BackendUnderTest,
    Promises,
    cause,
    eventually,
    ids,
    outcome,
    promise,
)


class SettlingPromises(Promises):
    @promise()
    async def test_a_done_job_leaves_the_queue(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.publish("a")
        assert await backend.settle("c", await backend.take("c")) == 1
        assert await backend.status("a") == "unknown"
        await backend.broker.leave(backend.queue, "c")
        assert await backend.take("d") == []

    @promise()
    async def test_settling_again_after_a_lost_reply_changes_nothing(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b", "c", "d")
        entries = await backend.take("c")
        outcomes = [outcome(entry, kind, result=b"x") for entry, kind in zip(entries, Kind, strict=True)]
        assert await backend.broker.settle(backend.queue, "c", outcomes) == 4
        before = await backend.broker.inspector.queue(backend.queue)
        assert await backend.broker.settle(backend.queue, "c", outcomes) == 0
        assert await backend.broker.inspector.queue(backend.queue) == before

    @promise()
    async def test_a_second_settle_does_not_change_an_ending(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.send("s", 1, 2)
        done, kept = await backend.take("c")
        await backend.settle("c", [done])
        assert await backend.settle("c", [done, kept], result=DONE_ENDING, result_ttl=60) == 1
        assert [await backend.status("s-1"), await backend.status("s-2")] == ["unknown", "done"]

    @promise()
    async def test_settling_a_retry_again_does_not_affect_the_next_run(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        entries = await backend.take("c")
        await backend.settle("c", entries, Kind.RETRY)
        assert len(await backend.take("c")) == 1
        assert await backend.settle("c", entries, Kind.RETRY) == 0
        assert await backend.status("a") == "running"

    @promise()
    async def test_settling_no_outcomes_returns_zero(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        assert await backend.settle("c", []) == 0

    @promise()
    async def test_a_delivery_listed_twice_in_a_batch_is_settled_once(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        (entry,) = await backend.take("c")
        assert await backend.settle("c", [entry, entry]) == 1

    @promise()
    async def test_one_batch_may_contain_every_kind_of_outcome(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("done", "retry", "dead", "expired")
        entries = await backend.take("c")
        assert (
            await backend.broker.settle(
                backend.queue, "c", [outcome(e, k, delay=5) for e, k in zip(entries, Kind, strict=True)]
            )
            == 4
        )
        state = await backend.broker.inspector.queue(backend.queue)
        assert (state.ready, state.running, state.scheduled, state.dead) == (0, 0, 1, 1)

    # -- results -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_result_is_stored_unchanged(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=60)
        assert await backend.broker.results.get(backend.queue, "a") == DONE_ENDING
        assert await backend.status("a") == "done"

    @promise()
    async def test_a_result_with_ttl_zero_is_not_stored(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), result=DONE_ENDING, result_ttl=0)
        assert await backend.broker.results.get(backend.queue, "a") is None

    @promise()
    async def test_a_job_without_a_result_leaves_nothing_behind(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), result=None, result_ttl=60, given_id=True)
        assert await backend.broker.results.get(backend.queue, "a") is None
        assert await backend.status("a") == "unknown"

    @promise()
    async def test_a_result_is_deleted_after_its_ttl(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b")
        short, long = await backend.take("c")
        await backend.settle("c", [short], result=DONE_ENDING, result_ttl=0.05)
        await backend.settle("c", [long], result=DONE_ENDING, result_ttl=600)

        async def gone() -> bool:
            return await backend.broker.results.get(backend.queue, "a") is None

        await eventually(gone)
        assert await backend.status("a") == "unknown"
        assert await backend.status("b") == "done"

    # -- retry -------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_retry_is_delivered_after_its_delay(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), Kind.RETRY, delay=5)
        assert await backend.status("a") == "scheduled"
        backend.at(4.5)
        assert await backend.take("c") == []
        backend.at(5)
        assert ids(await backend.take("c")) == ["a"]

    @promise()
    async def test_a_retry_without_delay_is_delivered_by_the_next_claim(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", "b")
        await backend.settle("c", await backend.take("c", 1), Kind.RETRY)
        assert await backend.status("a") == "scheduled"
        assert ids(await backend.take("c")) == ["b", "a"]

    @promise()
    async def test_a_retry_is_a_new_entry_with_the_body_and_expiry_of_its_outcome(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", expires=60)
        (first,) = await backend.take("c")
        await backend.settle("c", [first], Kind.RETRY, body=b"a#2")
        (second,) = await backend.take("c")
        assert second.ref != first.ref
        assert (second.body, second.expires_ms) == (b"a#2", first.expires_ms)

    @promise()
    async def test_a_retry_resets_the_crash_count(self, backend: BackendUnderTest) -> None:
        await backend.publish("a")
        await backend.crash("x", lives=1)
        await backend.join("c")
        entries = await backend.take("c")
        assert [entry.crashes for entry in entries] == [1]
        await backend.settle("c", entries, Kind.RETRY)
        assert [entry.crashes for entry in await backend.take("c")] == [0]

    @promise()
    async def test_a_retry_keeps_its_id(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), Kind.RETRY, delay=5, given_id=True)
        assert await backend.publish("a") == [Receipt.EXISTS]
        assert await backend.publish("a", task="u") == [Receipt.CONFLICT]

    @promise()
    async def test_a_full_queue_still_accepts_a_retry(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a", max_length=1)
        entries = await backend.take("c")
        await backend.publish("b")
        assert await backend.settle("c", entries, Kind.RETRY) == 1
        assert sorted(ids(await backend.take("c"))) == ["a", "b"]

    # -- dead --------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_dead_job_leaves_a_dead_letter(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        backend.at(2.5)
        await backend.settle("c", await backend.take("c"), Kind.DEAD, body=b"a#again", task="mail")
        dead = await backend.broker.inspector.dead_letter(backend.queue, "a")
        assert dead is not None
        assert (dead.id, dead.task, dead.queue, cause(dead)) == ("a", "mail", backend.queue, LETTER)
        assert (dead.body, dead.died_at) == (b"a#again", START + 2.5)
        assert await backend.status("a") == "dead"

    @promise()
    async def test_the_ending_of_a_dead_job_is_stored(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", result=DEAD_ENDING, result_ttl=60)
        assert await backend.broker.results.get(backend.queue, "a") == DEAD_ENDING

    @promise()
    async def test_a_dead_job_is_not_claimed_again(self, backend: BackendUnderTest) -> None:
        await backend.join("c", "d")
        await backend.die("c", "a")
        await backend.broker.leave(backend.queue, "c")
        assert await backend.take("d") == []

    @promise(dead_max_count=3)
    async def test_beyond_dead_max_count_the_oldest_dead_letters_are_deleted(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.die("c", "a", "b", "c", "d", "e")
        assert [dead.id for dead in await backend.broker.inspector.dead_letters(backend.queue)] == ["c", "d", "e"]
        assert await backend.status("a") == "unknown"
        assert await backend.broker.inspector.dead_letter(backend.queue, "a") is None
        assert await backend.broker.replay(backend.queue, ["a"]) == []

    @promise(dead_max_age=100.0)
    async def test_a_new_dead_letter_deletes_those_older_than_dead_max_age(self, backend: BackendUnderTest) -> None:
        await backend.join("c", lease=1e6)
        await backend.die("c", "old")
        backend.at(50)
        await backend.die("c", "young")
        backend.at(120)
        await backend.die("c", "new")
        assert [dead.id for dead in await backend.broker.inspector.dead_letters(backend.queue)] == ["young", "new"]
        assert await backend.status("old") == "unknown"

    # -- expired -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_the_ending_of_an_expired_job_has_the_status_expired(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), Kind.EXPIRED, result_ttl=60)
        ending = await backend.broker.results.get(backend.queue, "a")
        assert ending is not None and decode_ending(ending) == Ending("expired")
        assert await backend.status("a") == "expired"

    @promise()
    async def test_an_expired_job_with_result_ttl_zero_leaves_nothing_behind(self, backend: BackendUnderTest) -> None:
        await backend.join("c")
        await backend.publish("a")
        await backend.settle("c", await backend.take("c"), Kind.EXPIRED, result_ttl=0)
        assert await backend.status("a") == "unknown"
