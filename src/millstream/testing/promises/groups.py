"""Promises about groups: every group receives every event, and its outcome in one group does not affect the others."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker import Post, Receipt
from millstream.broker.values import BEGINNING, END, SUSPECT_AFTER
from millstream.errors import LeaseLost
from millstream.model.address import Address
from millstream.model.outcome import Kind
from millstream.testing.backend import DONE_ENDING, LONG, START, BackendUnderTest, Promises, ids, outcome, promise
from millstream.testing.topic import TOPIC, A, B, begin, claim, emit, emit_serials, end, finish, group_state, state, take

CREATED = Receipt.CREATED


class GroupPromises(Promises):
    @promise()
    async def test_every_group_receives_every_event_once_and_in_order(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        names = [f"n{n}" for n in range(250)]
        assert await emit(backend, *names) == [CREATED] * 250
        for group in ("a", "b"):
            seen: list[str] = []
            while entries := await take(backend, group, 40):
                seen += ids(entries)
            assert seen == names

    @promise()
    async def test_within_a_group_an_event_goes_to_one_consumer(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("second", queue=A)
        await emit(backend, "1", "2", "3")
        assert ids(await take(backend, "a", 2)) == ["1", "2"]
        assert ids(await backend.take("second", queue=A)) == ["3"]
        assert await take(backend, "a") == []

    @promise()
    async def test_an_event_arrives_unchanged(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        body = bytes(range(256)) * 300
        await backend.broker.emit(TOPIC, [Post("1", body), Post("2", b"")])
        assert [entry.body for entry in await take(backend, "a")] == [body, b""]

    @promise()
    async def test_emitting_an_empty_batch_returns_no_receipts(self, backend: BackendUnderTest) -> None:
        assert await emit(backend) == []
        assert await emit_serials(backend, "s") == []
        assert (await state(backend)).totals == {"published": 0}

    @promise()
    async def test_a_group_created_later_receives_the_kept_events(self, backend: BackendUnderTest) -> None:
        await emit(backend, "1", "2")
        await begin(backend, "a")
        await emit(backend, "3")
        assert ids(await take(backend, "a")) == ["1", "2", "3"]
        await begin(backend, "b")
        assert ids(await take(backend, "b")) == ["1", "2", "3"]

    @promise()
    async def test_a_consumer_that_joins_creates_its_group(self, backend: BackendUnderTest) -> None:
        await emit(backend, "1")
        await backend.join("a", queue=A)
        assert ids(await take(backend, "a")) == ["1"]
        assert await backend.broker.open_topic(TOPIC, {"a": END}) == []

    @promise()
    async def test_a_group_may_start_at_the_end_of_the_log(self, backend: BackendUnderTest) -> None:
        await emit(backend, "1", "2")
        await begin(backend, "a", start=END)
        assert await take(backend, "a") == []
        await emit(backend, "3")
        assert ids(await take(backend, "a")) == ["3"]

    @promise()
    async def test_a_group_may_start_at_a_given_time(self, backend: BackendUnderTest) -> None:
        for second in range(5):
            backend.at(second)
            await emit(backend, f"{second}-1", f"{second}-2")
        await begin(backend, "a", start=START + 3)
        assert ids(await take(backend, "a")) == ["3-1", "3-2", "4-1", "4-2"]

    @promise()
    async def test_a_group_may_start_at_the_position_of_another(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "1", "2", "3")
        await take(backend, "a", 2)
        await begin(backend, "b", start=(await group_state(backend, "a")).position)
        assert ids(await take(backend, "b")) == ["3"]

    @promise()
    async def test_opening_a_topic_returns_the_new_groups_and_moves_no_existing_group(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.open_topic(TOPIC, {"b": BEGINNING, "a": BEGINNING}) == ["b", "a"]
        await begin(backend, "a")
        await emit(backend, "1", "2")
        await take(backend, "a", 1)
        assert await backend.broker.open_topic(TOPIC, {"a": END, "c": END, "b": END}) == ["c"]
        assert ids(await take(backend, "a")) == ["2"]

    @promise()
    async def test_a_topic_and_a_queue_with_the_same_name_are_independent(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("c", queue=Address(TOPIC))
        await emit(backend, "event")
        await backend.publish("job", queue=Address(TOPIC))
        assert ids(await take(backend, "a")) == ["event"]
        assert ids(await backend.take("c", queue=Address(TOPIC))) == ["job"]

    @promise()
    async def test_topics_are_independent_of_each_other(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("c", queue=Address.of_group("other", "a"))
        await emit(backend, "1")
        await emit_serials(backend, "s", 1)
        assert await emit(backend, "1", topic="other") == [CREATED]
        assert await emit_serials(backend, "s", 1, topic="other") == [CREATED]
        assert ids(await backend.take("c", queue=Address.of_group("other", "a"))) == ["1", "s-1"]
        assert ids(await take(backend, "a")) == ["1", "s-1"]

    @promise()
    async def test_a_paused_group_receives_nothing_while_other_groups_continue(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await backend.broker.pause(A)
        await emit(backend, "1")
        given = await claim(backend, "a")
        assert (given.entries, given.paused) == ([], True)
        assert ids(await take(backend, "b")) == ["1"]
        await backend.broker.resume(A)
        assert ids(await take(backend, "a")) == ["1"]

    @promise()
    async def test_a_claim_from_a_group_without_a_lease_there_is_refused(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1")
        with pytest.raises(LeaseLost):
            await backend.claim("a", queue=B)
        assert ids(await take(backend, "b")) == ["1"]

    # -- waiting -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_an_event_ends_waits_in_every_group(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        waiting = [
            await backend.begun(backend.wait_for_work(group, queue=Address.of_group(TOPIC, group))) for group in ("a", "b")
        ]
        await emit(backend, "1")
        assert [ids(entries) for entries in await asyncio.gather(*waiting)] == [["1"], ["1"]]

    @promise()
    async def test_an_event_with_a_generated_id_from_another_process_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        other = await backend.another()
        waiting = await backend.begun(backend.wait_for_work("a", queue=A))
        await other.emit(TOPIC, [Post("s-1", b"s-1", serial=1)], sender="s")
        assert ids(await waiting) == ["s-1"]

    @promise()
    async def test_events_end_the_wait_of_every_consumer_of_a_group(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("second", "third", queue=A)
        waiting = [await backend.begun(backend.wait_for_work(name, 1, queue=A)) for name in ("a", "second", "third")]
        await emit(backend, "1", "2", "3")
        assert sorted(ids([entry for entries in await asyncio.gather(*waiting) for entry in entries])) == ["1", "2", "3"]

    @promise()
    async def test_a_waiting_claim_of_a_new_group_finds_the_kept_events_immediately(self, backend: BackendUnderTest) -> None:
        await emit(backend, "1", "2")
        await begin(backend, "a")
        assert ids(await take(backend, "a", 1, wait=LONG)) == ["1"]
        assert ids(await take(backend, "a", 1, wait=LONG)) == ["2"]

    @promise()
    async def test_an_event_with_an_earlier_due_time_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "late", delay=1000)

        async def until_due_in(seconds: float) -> None:
            while (await claim(backend, "a", wait=LONG)).next_due != seconds:
                pass

        waiting = await backend.begun(until_due_in(10))
        await emit(backend, "soon", delay=10)
        await waiting

    @promise()
    async def test_a_wait_of_next_due_seconds_returns_the_due_event(self, backend: BackendUnderTest) -> None:
        backend.run_clock()
        await begin(backend, "a")
        await emit(backend, "1", delay=0.2)
        given = await claim(backend, "a")
        while not given.entries:
            assert given.next_due is not None
            given = await claim(backend, "a", wait=given.next_due)
        assert ids(given.entries) == ["1"]

    # -- groups are independent --------------------------------------------------------------------------------------------

    @promise()
    async def test_every_kind_of_outcome_affects_only_its_group(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "done", "retry", "dead", "expired")
        entries = await take(backend, "a")
        outcomes = [outcome(entry, kind, delay=5) for entry, kind in zip(entries, Kind, strict=True)]
        assert await backend.broker.settle(A, "a", outcomes) == 4
        assert await backend.broker.settle(A, "a", outcomes) == 0
        queue = await backend.broker.inspector.queue(A)
        assert (queue.ready, queue.running, queue.scheduled, queue.dead) == (0, 0, 1, 1)
        assert {name: count for name, count in queue.totals.items() if count} == {
            "done": 1,
            "retried": 1,
            "dead": 1,
            "expired": 1,
        }
        assert ids(await take(backend, "b")) == ["done", "retry", "dead", "expired"]

    @promise()
    async def test_a_retry_is_delivered_only_to_its_group(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", expires=60)
        first, second = await take(backend, "a")
        await end(backend, "a", [first], Kind.RETRY, delay=5, body=b"1#again")
        await end(backend, "a", [second])
        assert await finish(backend, "b") == ["1", "2"]
        assert await backend.status("1", A) == "scheduled"
        backend.at(5)
        (again,) = await take(backend, "a")
        assert (again.body, again.crashes, again.expires_ms) == (b"1#again", 0, first.expires_ms)
        assert again.ref != first.ref
        assert await take(backend, "b") == []

    @promise()
    async def test_retries_are_delivered_before_new_events(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "1", "2", "3")
        await end(backend, "a", await take(backend, "a", 1), Kind.RETRY, delay=5)
        backend.at(5)
        assert ids(await take(backend, "a", 2)) == ["1", "2"]
        assert ids(await take(backend, "a", 2)) == ["3"]

    @promise()
    async def test_an_event_dies_and_is_replayed_only_in_its_group(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1")
        await end(backend, "a", await take(backend, "a"), Kind.DEAD, body=b"1#again")
        assert await finish(backend, "b") == ["1"]
        dead = await backend.broker.inspector.dead_letter(A, "1")
        assert dead is not None and (dead.queue, dead.body) == (A, b"1#again")
        assert dead.source
        assert await backend.broker.inspector.dead_letters(B) == []
        assert await backend.broker.replay(B, ["1"]) == []
        assert await backend.broker.replay(A, ["1"]) == ["1"]
        assert [entry.body for entry in await take(backend, "a")] == [b"1#again"]
        assert await take(backend, "b") == []

    @promise()
    async def test_released_events_are_claimed_first_in_order_and_count_no_crash(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3", "4")
        first, second, third = await take(backend, "a", 3)
        for entry in (third, first):
            assert await backend.release("a", [entry], queue=A) == 1
        assert await backend.release("a", [first], queue=A) == 0
        again = await take(backend, "a")
        assert [(entry.body, entry.crashes) for entry in again] == [(b"1", 0), (b"3", 0), (b"4", 0)]
        assert await end(backend, "a", [second, *again]) == 4
        assert ids(await take(backend, "b")) == ["1", "2", "3", "4"]

    @promise()
    async def test_a_crash_counts_only_in_its_group(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await backend.join("next", queue=A)
        await emit(backend, "1", "2")
        await take(backend, "a")
        assert await backend.broker.leave(A, "a") == 2
        assert [(entry.body, entry.crashes) for entry in await backend.take("next", queue=A)] == [(b"1", 1), (b"2", 1)]
        assert [(entry.body, entry.crashes) for entry in await take(backend, "b")] == [(b"1", 0), (b"2", 0)]

    @promise()
    async def test_events_of_a_lapsed_consumer_are_redelivered(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("dead", lease=10, queue=A)
        await emit(backend, "1", "2")
        entries = await backend.take("dead", queue=A)
        for seconds in (11, 13):
            backend.at(seconds)
            await claim(backend, "a", 0)
        with pytest.raises(LeaseLost):
            await backend.settle("dead", entries, queue=A)
        taken_over = await take(backend, "a")
        assert [(entry.body, entry.crashes) for entry in taken_over] == [(b"1", 1), (b"2", 1)]
        assert await end(backend, "a", taken_over) == 2

    @promise()
    async def test_a_blameless_leave_releases_events_without_a_crash(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("next", queue=A)
        await emit(backend, "1", "2")
        await take(backend, "a")
        assert await backend.broker.leave(A, "a", blameless=True) == 2
        assert [(entry.body, entry.crashes) for entry in await backend.take("next", queue=A)] == [(b"1", 0), (b"2", 0)]

    @promise()
    async def test_an_event_that_crashes_two_consumers_is_set_aside_to_run_alone(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "1")
        for life in range(SUSPECT_AFTER):
            await backend.join(f"x{life}", queue=A)
            await backend.claim(f"x{life}", queue=A, suspect_after=1000)
            await backend.broker.leave(A, f"x{life}")
        await emit(backend, "2")
        given = await claim(backend, "a")
        assert (ids(given.entries), given.suspects) == (["2"], True)
        assert (await backend.broker.inspector.queue(A)).suspects == 1
        alone = await claim(backend, "a", alone=True)
        assert ([(e.body, e.crashes) for e in alone.entries], alone.suspects) == ([(b"1", SUSPECT_AFTER)], False)
        assert await end(backend, "a", alone.entries) == 1

    @promise()
    async def test_events_of_a_lost_claim_are_recovered(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "0")
        await end(backend, "a", await take(backend, "a"), Kind.RETRY)
        await emit(backend, "1", "2", "3", expires=60)
        retried, first, second, third = await take(backend, "a")
        assert await backend.broker.recover(A, "a", {first.ref}) == [retried, second, third]
        assert await backend.broker.recover(A, "a", {e.ref for e in (retried, first, second, third)}) == []

    @promise()
    async def test_the_ending_of_an_event_can_be_stored(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2")
        await end(backend, "a", await take(backend, "a"), result=DONE_ENDING, result_ttl=60)
        assert await backend.broker.results.get(A, "2") == DONE_ENDING
        assert await backend.broker.results.get(B, "2") is None

    @promise()
    async def test_an_event_is_found_by_id_only_after_a_retry_or_as_a_dead_letter(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "retried", "dead", "running")
        retried, dead, _ = await take(backend, "a")
        await end(backend, "a", [retried], Kind.RETRY, delay=60)
        await end(backend, "a", [dead], Kind.DEAD)
        assert [await backend.status(name, A) for name in ("retried", "dead", "running")] == ["scheduled", "dead", "unknown"]
        assert await backend.broker.promote(A, ["retried"]) == ["retried"]
        assert ids(await take(backend, "a")) == ["retried"]
