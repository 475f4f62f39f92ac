"""Promises about dead letters of a group that are claimed at their own address: each is handled once and deleted only then."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from millstream.broker import Entry
from millstream.broker.letters import without_letter
from millstream.broker.values import OVERDUE_SECONDS
from millstream.errors import LeaseLost
from millstream.model.dead_letter import DeadLetter, decode_letter
from millstream.model.message import ErrorNote, decode_message, encode_message
from millstream.model.outcome import Kind, Outcome
from millstream.testing.backend import LONG, PATIENCE, BackendUnderTest, Promises, promise
from millstream.testing.topic import A, B, begin, emit, end, group_state, take

DEAD = A.dead

UNHANDLED = DeadLetter("exhausted", ErrorNote("ValueError", "no luck", "Traceback …"), attempts=3, crashes=0, enqueued_ms=0)


async def make_dead(backend: BackendUnderTest, *event_ids: str, **fields: object) -> None:
    """Publish events that die in group a."""
    for event_id in event_ids:
        await emit(backend, event_id)
        await end(backend, "a", await take(backend, "a"), Kind.DEAD, **fields)


def letters(entries: list[Entry]) -> list[DeadLetter]:
    return [decode_letter(decode_message(entry.body or b"").args) for entry in entries]


def ids(entries: list[Entry]) -> list[str]:
    return [letter.id for letter in letters(entries)]


async def claimed(backend: BackendUnderTest, consumer: str = "c", count: int = 100, **options: object) -> list[Entry]:
    return await backend.take(consumer, count, queue=DEAD, **options)


async def handle(backend: BackendUnderTest, entries: list[Entry], kind: Kind = Kind.DONE, consumer: str = "c") -> int:
    outcomes = [Outcome(kind, entry.ref, letter.id) for entry, letter in zip(entries, letters(entries), strict=True)]
    return await backend.broker.settle(DEAD, consumer, outcomes)


async def fail(backend: BackendUnderTest, entries: list[Entry], delay: float, consumer: str = "c") -> int:
    """Settle the entries as failed, with another attempt after ``delay`` seconds."""
    messages = [without_letter(decode_message(entry.body or b"")) for entry in entries]
    bodies = [encode_message(msgspec.structs.replace(message, attempt=message.attempt + 1)) for message in messages]
    outcomes = [
        Outcome(Kind.RETRY, entry.ref, message.id, body=body, delay=delay)
        for entry, message, body in zip(entries, messages, bodies, strict=True)
    ]
    return await backend.broker.settle(DEAD, consumer, outcomes)


async def give_up(backend: BackendUnderTest, entries: list[Entry], consumer: str = "c") -> int:
    outcomes = [
        Outcome(Kind.DEAD, entry.ref, letter.id, letter=UNHANDLED)
        for entry, letter in zip(entries, letters(entries), strict=True)
    ]
    return await backend.broker.settle(DEAD, consumer, outcomes)


def attempts(entries: list[Entry]) -> list[int]:
    return [decode_message(entry.body or b"").attempt for entry in entries]


async def listed(backend: BackendUnderTest) -> list[str]:
    return [letter.id for letter in await backend.broker.inspector.dead_letters(A)]


class LetterPromises(Promises):
    @promise()
    async def test_dead_letters_from_before_and_after_a_join_are_claimed_as_stored(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", body=b"1#again")
        await backend.join("c", queue=DEAD)
        await make_dead(backend, "2")
        entries = await claimed(backend)
        assert letters(entries) == await backend.broker.inspector.dead_letters(A)
        first = letters(entries)[0]
        assert (first.id, first.queue, first.body, first.reason) == ("1", A, b"1#again", "exhausted")
        assert [decode_message(entry.body or b"").id for entry in entries] == ["1", "2"]
        assert [entry.crashes for entry in entries] == [0, 0]

    @promise()
    async def test_a_dead_letter_stays_in_the_list_until_it_is_handled(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2")
        await backend.join("c", queue=DEAD)
        entries = await claimed(backend)
        assert await listed(backend) == ["1", "2"] and await backend.status("1", A) == "dead"
        assert await handle(backend, entries[:1]) == 1
        assert await listed(backend) == ["2"] and await backend.status("1", A) == "unknown"
        assert await backend.broker.inspector.dead_letter(A, "1") is None
        assert (await group_state(backend, "a")).dead == 1

    @promise()
    async def test_a_dead_letter_is_delivered_to_one_consumer(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2", "3")
        await backend.join("c", "d", queue=DEAD)
        assert ids(await claimed(backend, "c", 2)) == ["1", "2"]
        assert ids(await claimed(backend, "d")) == ["3"]
        assert await claimed(backend, "c") == []

    @promise()
    async def test_dead_letters_are_delivered_only_at_the_address_of_their_group(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await make_dead(backend, "1")
        await backend.join("c", queue=B.dead)
        await backend.join("c", queue=DEAD)
        assert await backend.take("c", queue=B.dead) == []
        assert ids(await claimed(backend)) == ["1"]

    @promise()
    async def test_dead_letters_of_a_consumer_that_left_or_lapsed_are_redelivered(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2")
        await backend.join("left", queue=DEAD)
        await backend.join("late", lease=5.0, queue=DEAD)
        await backend.join("c", queue=DEAD)
        await claimed(backend, "left", 1)
        await claimed(backend, "late", 1)
        assert await backend.broker.leave(DEAD, "left") == 1
        found = await claimed(backend)
        assert (ids(found), found[0].crashes) == (["1"], 1)
        await handle(backend, found)
        backend.at(6)
        await backend.claim("c", 0, queue=DEAD)
        backend.at(6 + OVERDUE_SECONDS)
        assert ids(await claimed(backend)) == ["2"]
        with pytest.raises(LeaseLost):
            await handle(backend, found, consumer="late")

    @promise()
    async def test_a_released_dead_letter_is_redelivered_without_a_crash(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        assert await backend.release("c", await claimed(backend), queue=DEAD) == 1
        (entry,) = await claimed(backend)
        assert (ids([entry]), entry.crashes) == (["1"], 0)

    # -- failed handlers ---------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_dead_letter_whose_handler_failed_stays_in_the_list_and_is_retried(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", body=b"1#again")
        await backend.join("c", lease=1e6, queue=DEAD)
        (first,) = await claimed(backend)
        assert await fail(backend, [first], delay=10.0) == 1
        assert await listed(backend) == ["1"] and await backend.status("1", A) == "dead"
        early = await backend.claim("c", queue=DEAD)
        assert (early.entries, early.next_due) == ([], 10.0)
        backend.at(10)
        assert await backend.broker.inspector.due(DEAD) == 1
        (again,) = await claimed(backend)
        message = decode_message(again.body or b"")
        assert (again.ref, again.crashes, message.attempt) == (first.ref, 0, 2)
        assert letters([again]) == letters([first]) == await backend.broker.inspector.dead_letters(A)
        assert await handle(backend, [again]) == 1
        assert await listed(backend) == []

    @promise()
    async def test_dead_letters_that_wait_for_a_retry_are_counted_as_scheduled(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2", "3")
        await backend.join("c", lease=1e6, queue=DEAD)
        await fail(backend, await claimed(backend, count=2), delay=10.0)
        state = await backend.broker.inspector.queue(DEAD)
        assert (state.ready, state.running, state.scheduled, state.dead, state.totals["retried"]) == (1, 0, 2, 3, 2)
        assert (await group_state(backend, "a")).scheduled == 0
        backend.at(10)
        await backend.claim("c", 0, queue=DEAD)
        state = await backend.broker.inspector.queue(DEAD)
        assert (state.ready, state.running, state.scheduled, state.dead) == (3, 0, 0, 3)

    @promise()
    async def test_due_retries_of_dead_letters_are_delivered_before_new_dead_letters(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2", "3")
        await backend.join("c", lease=1e6, queue=DEAD)
        await fail(backend, await claimed(backend, count=2), delay=10.0)
        backend.at(10)
        assert ids(await claimed(backend)) == ["1", "2", "3"]

    @promise()
    async def test_the_attempt_number_of_a_dead_letter_survives_crashes_and_releases(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", "left", lease=1e6, queue=DEAD)
        await fail(backend, await claimed(backend), delay=0.0)
        held = await claimed(backend)
        assert await backend.broker.recover(DEAD, "c", set()) == held
        await fail(backend, held, delay=0.0)
        assert attempts(await claimed(backend, "left")) == [3]
        await backend.broker.leave(DEAD, "left")
        (again,) = await claimed(backend)
        assert (attempts([again]), again.crashes) == ([3], 1)
        assert await backend.release("c", [again], queue=DEAD) == 1
        assert attempts(await claimed(backend)) == [3]

    @promise()
    async def test_a_retry_of_a_dead_letter_resets_the_crash_count(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("gone", "c", lease=1e6, queue=DEAD)
        await claimed(backend, "gone")
        await backend.broker.leave(DEAD, "gone")
        (entry,) = await claimed(backend)
        assert entry.crashes == 1
        await fail(backend, [entry], delay=0.0)
        assert [entry.crashes for entry in await claimed(backend)] == [0]

    @promise()
    async def test_a_dead_letter_with_an_earlier_due_time_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2")
        await backend.join("c", "d", lease=1e6, queue=DEAD)
        first, second = await claimed(backend)
        await fail(backend, [first], delay=1000.0)

        async def plan() -> None:
            while (await backend.claim("d", queue=DEAD, wait=LONG)).next_due != 10.0:
                pass  # an earlier change ended the wait

        planning = await backend.begun(plan())
        await fail(backend, [second], delay=10.0)
        async with asyncio.timeout(PATIENCE):
            await planning

    @promise()
    async def test_an_unhandled_dead_letter_is_marked_and_not_delivered_again(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2")
        await backend.join("c", queue=DEAD)
        entries = await claimed(backend)
        assert await give_up(backend, entries[:1]) == 1
        marked, other = await backend.broker.inspector.dead_letters(A)
        assert (marked.unhandled, other.unhandled) == (UNHANDLED, None)
        assert marked == msgspec.structs.replace(letters(entries)[0], unhandled=UNHANDLED)
        assert await backend.broker.inspector.dead_letter(A, "1") == marked
        view = await backend.broker.inspector.job(A, "1")
        assert view is not None and view.letter == marked
        assert await claimed(backend) == []
        state = await backend.broker.inspector.queue(DEAD)
        assert (state.ready, state.running, state.scheduled, state.dead, state.totals["dead"]) == (0, 1, 0, 2, 1)

    @promise()
    async def test_a_dead_letter_marked_after_a_retry_is_not_retried_again(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", lease=1e6, queue=DEAD)
        await fail(backend, await claimed(backend), delay=0.0)
        await give_up(backend, await claimed(backend))
        backend.at(1000)
        assert await claimed(backend) == []
        assert [letter.unhandled for letter in await backend.broker.inspector.dead_letters(A)] == [UNHANDLED]

    @promise()
    async def test_a_dead_letter_settled_as_dead_without_a_letter_is_not_marked(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", lease=1e6, queue=DEAD)
        await fail(backend, await claimed(backend), delay=0.0)
        assert await handle(backend, await claimed(backend), Kind.DEAD) == 1
        assert [letter.unhandled for letter in await backend.broker.inspector.dead_letters(A)] == [None]
        for seconds in range(0, 30, 3):
            backend.at(seconds)
            assert await claimed(backend) == []

    @promise()
    async def test_a_replayed_event_that_dies_again_has_a_new_dead_letter(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "marked", "waits")
        await backend.join("c", lease=1e6, queue=DEAD)
        marked, waits = await claimed(backend)
        await give_up(backend, [marked])
        await fail(backend, [waits], delay=10.0)
        assert await backend.broker.replay(A, ["marked", "waits"]) == ["marked", "waits"]
        state = await backend.broker.inspector.queue(DEAD)
        assert (state.ready, state.scheduled, state.dead) == (0, 0, 0)
        await end(backend, "a", await take(backend, "a"), Kind.DEAD)
        assert [letter.unhandled for letter in await backend.broker.inspector.dead_letters(A)] == [None, None]
        entries = await claimed(backend)
        assert (ids(entries), attempts(entries)) == (["marked", "waits"], [1, 1])
        await fail(backend, entries, delay=10.0)
        backend.at(10)
        assert ids(await claimed(backend)) == ["marked", "waits"], "each dead letter must be delivered once"

    @promise()
    async def test_a_dead_letter_purged_while_it_waits_for_a_retry_is_not_delivered(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", lease=1e6, queue=DEAD)
        await fail(backend, await claimed(backend), delay=10.0)
        assert await backend.broker.purge(A, ["1"]) == ["1"]
        claim = await backend.claim("c", queue=DEAD)
        assert (claim.entries, claim.next_due) == ([], None)
        backend.at(10)
        assert await claimed(backend) == []

    @promise()
    async def test_a_replaced_dead_letter_is_neither_retried_nor_marked_when_its_handler_fails(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2")
        await backend.join("c", lease=1e6, queue=DEAD)
        first, second = await claimed(backend)
        await backend.broker.replay(A, ["1", "2"])
        await end(backend, "a", await take(backend, "a"), Kind.DEAD)
        assert [await fail(backend, [first], delay=0.0), await give_up(backend, [second])] == [1, 1]
        assert [letter.unhandled for letter in await backend.broker.inspector.dead_letters(A)] == [None, None]
        entries = await claimed(backend)
        assert (ids(entries), attempts(entries)) == (["1", "2"], [1, 1])
        assert (await backend.broker.inspector.queue(DEAD)).totals["retried"] == 0

    @promise(dead_max_count=2, dead_max_age=60.0)
    async def test_scheduled_and_marked_dead_letters_obey_the_limits_of_count_and_age(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2")
        await backend.join("c", lease=1e6, queue=DEAD)
        first, second = await claimed(backend)
        await fail(backend, [first], delay=10.0)
        await give_up(backend, [second])
        await make_dead(backend, "3")
        assert await listed(backend) == ["2", "3"]
        assert (await backend.broker.inspector.queue(DEAD)).scheduled == 0
        backend.at(61)
        await backend.broker.renew(DEAD, {"c": 1e6})
        assert await listed(backend) == []
        assert await claimed(backend) == []

    @promise()
    async def test_removing_a_group_deletes_its_dead_letters_that_wait_for_a_retry(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await make_dead(backend, "1")
        await backend.join("c", lease=1e6, queue=DEAD)
        await fail(backend, await claimed(backend), delay=10.0)
        await backend.broker.remove_group(A)
        await begin(backend, "a")
        await backend.join("d", lease=1e6, queue=DEAD)
        assert (await backend.broker.inspector.queue(DEAD)).scheduled == 0
        backend.at(10)
        assert await claimed(backend, "d") == []

    @promise()
    async def test_a_paused_group_delivers_no_due_retry_of_a_dead_letter(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", lease=1e6, queue=DEAD)
        await fail(backend, await claimed(backend), delay=10.0)
        await backend.broker.pause(A)
        backend.at(10)
        assert await claimed(backend) == []
        await backend.broker.resume(A)
        assert attempts(await claimed(backend)) == [2]

    @promise()
    async def test_settling_a_dead_letter_twice_has_no_further_effect(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        entries = await claimed(backend)
        assert [await handle(backend, entries), await handle(backend, entries)] == [1, 0]
        assert (await backend.broker.inspector.queue(DEAD)).totals["done"] == 1

    @promise()
    async def test_a_consumer_without_a_lease_cannot_claim_or_settle_dead_letters(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        entries = await claimed(backend)
        await backend.broker.leave(DEAD, "c")
        with pytest.raises(LeaseLost):
            await handle(backend, entries)
        with pytest.raises(LeaseLost):
            await claimed(backend)
        assert await listed(backend) == ["1"]

    # -- dead letters that change while they are held ----------------------------------------------------------------------

    @promise()
    async def test_settling_a_dead_letter_does_not_affect_its_replayed_event(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        held = await claimed(backend)
        assert await backend.broker.replay(A, ["1"]) == ["1"]
        assert await handle(backend, held) == 1
        assert await backend.status("1", A) == "ready"
        assert [entry.body for entry in await take(backend, "a")] == [b"1"]

    @promise()
    async def test_the_new_dead_letter_of_a_replayed_event_is_delivered_too(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        held = await claimed(backend)
        await backend.broker.replay(A, ["1"])
        await end(backend, "a", await take(backend, "a"), Kind.DEAD, body=b"1#newer")
        await handle(backend, held)
        assert await backend.status("1", A) == "dead"
        newer = await claimed(backend)
        assert [letter.body for letter in letters(newer)] == [b"1#newer"]
        await handle(backend, newer)
        assert await listed(backend) == []

    @promise()
    async def test_a_purged_dead_letter_is_not_delivered(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "held", "released", "never given", "stays")
        await backend.join("d", "c", queue=DEAD)
        await claimed(backend, "d", 1)
        await backend.release("c", await claimed(backend, "c", 1), queue=DEAD)
        await backend.broker.purge(A, ["held", "released", "never given"])
        await backend.broker.leave(DEAD, "d")
        assert ids(await claimed(backend)) == ["stays"]
        assert await listed(backend) == ["stays"]
        state = await backend.broker.inspector.queue(DEAD)
        assert (state.ready, state.running) == (0, 1)

    @promise()
    async def test_recover_returns_lost_claims_of_dead_letters_but_no_purged_ones(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "held", "lost", "purged")
        await backend.join("c", queue=DEAD)
        held, lost, _ = await claimed(backend)
        await backend.broker.purge(A, ["purged"])
        assert await backend.broker.recover(DEAD, "c", {held.ref}) == [lost]
        assert (await backend.broker.inspector.queue(DEAD)).running == 2

    @promise(dead_max_count=2)
    async def test_dead_max_count_applies_to_claimed_dead_letters_too(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("c", queue=DEAD)
        await make_dead(backend, "1")
        held = await claimed(backend)
        await make_dead(backend, "2", "3", "4")
        assert await listed(backend) == ["3", "4"]
        assert await handle(backend, held) == 1
        assert ids(await claimed(backend)) == ["3", "4"]

    @promise(dead_max_age=60.0)
    async def test_dead_max_age_applies_to_dead_letters_with_a_handler_too(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", lease=1e6, queue=DEAD)
        await backend.broker.leave(A, "a")
        backend.at(61)
        await backend.broker.renew(DEAD, {"c": 1e6})
        assert await listed(backend) == []
        assert await claimed(backend) == []

    @promise()
    async def test_a_paused_group_delivers_no_dead_letters(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        await backend.broker.pause(A)
        claim = await backend.claim("c", queue=DEAD)
        assert (claim.entries, claim.paused) == ([], True)
        await backend.broker.resume(A)
        assert ids(await claimed(backend)) == ["1"]

    @promise()
    async def test_removing_a_group_deletes_its_dead_letters(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        held = await claimed(backend)
        await backend.broker.remove_group(A)
        with pytest.raises(LeaseLost):
            await handle(backend, held)
        await begin(backend, "a")
        await backend.join("d", queue=DEAD)
        assert await claimed(backend, "d") == []
        assert await listed(backend) == []

    # -- waiting and inspection --------------------------------------------------------------------------------------------

    @promise()
    async def test_a_new_dead_letter_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("c", queue=DEAD)
        waiting = await backend.begun(backend.wait_for_work("c", queue=DEAD))
        await make_dead(backend, "1")
        assert ids(await waiting) == ["1"]

    @promise()
    async def test_a_nudge_ends_a_wait_for_dead_letters(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("c", queue=DEAD)
        waiting = await backend.begun(backend.claim("c", queue=DEAD, wait=LONG))
        while not waiting.done():
            await backend.broker.nudge(DEAD, "c")
            await asyncio.sleep(0)
        assert (await waiting).entries == []

    @promise()
    async def test_a_dead_letter_that_crashes_two_consumers_is_set_aside(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        for name in ("x", "y"):
            await backend.join(name, queue=DEAD)
            assert len(await claimed(backend, name)) == 1
            await backend.broker.leave(DEAD, name)
        await backend.join("c", queue=DEAD)
        claim = await backend.claim("c", queue=DEAD)
        assert (claim.entries, claim.suspects) == ([], True)
        assert (await backend.broker.inspector.queue(DEAD)).suspects == 1
        (entry,) = await claimed(backend, alone=True)
        assert entry.crashes == 2
        assert await handle(backend, [entry]) == 1

    @promise()
    async def test_dead_letters_have_counts_of_their_own_beside_those_of_the_group(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2", "3")
        state = await backend.broker.inspector.queue(DEAD)
        assert (state.ready, state.dead) == (0, 3), "no consumer has ever joined this address"
        await backend.join("c", queue=DEAD)
        assert (await backend.broker.inspector.queue(DEAD)).ready == 3
        entries = await claimed(backend, count=2)
        state = await backend.broker.inspector.queue(DEAD)
        assert (state.ready, state.running, state.scheduled, state.dead, state.consumers) == (1, 2, 0, 3, 1)
        await handle(backend, entries)
        state = await backend.broker.inspector.queue(DEAD)
        assert (state.ready, state.running, state.dead, state.totals["done"]) == (1, 0, 1, 2)
        group = await backend.broker.inspector.queue(A)
        assert (group.dead, group.consumers, group.totals["dead"], group.totals["done"]) == (1, 1, 3, 0)
        assert await backend.broker.inspector.queues() == ["q"]
        assert [group.name for group in (await backend.broker.inspector.topic("orders")).groups] == ["a"]
        await backend.broker.leave(DEAD, "c")
        assert (await backend.broker.inspector.queue(DEAD)).ready == 1, "the dead letter waits for the next consumer"
