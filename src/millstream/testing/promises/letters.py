"""The dead letters of a group, claimed at an address of their own: each is handled once, and gone only when it was."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker import Entry
from millstream.broker.values import OVERDUE_SECONDS
from millstream.errors import LeaseLost
from millstream.model.dead_letter import DeadLetter, decode_letter
from millstream.model.message import decode_message
from millstream.model.outcome import Kind, Outcome
from millstream.testing.backend import LONG, BackendUnderTest, Promises, promise
from millstream.testing.topic import A, B, begin, emit, end, group_state, take

DEAD = A.dead


async def make_dead(backend: BackendUnderTest, *event_ids: str, **fields: object) -> None:
    """Events of group a that die."""
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


async def listed(backend: BackendUnderTest) -> list[str]:
    return [letter.id for letter in await backend.broker.inspector.dead_letters(A)]


class LetterPromises(Promises):
    @promise()
    async def test_letters_are_claimed_as_they_are_stored_also_those_that_died_before(self, backend: BackendUnderTest) -> None:
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
    async def test_a_letter_is_in_the_list_until_it_was_handled(self, backend: BackendUnderTest) -> None:
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
    async def test_a_letter_is_given_to_one_consumer(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2", "3")
        await backend.join("c", "d", queue=DEAD)
        assert ids(await claimed(backend, "c", 2)) == ["1", "2"]
        assert ids(await claimed(backend, "d")) == ["3"]
        assert await claimed(backend, "c") == []

    @promise()
    async def test_letters_of_one_group_are_no_others(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await make_dead(backend, "1")
        await backend.join("c", queue=B.dead)
        await backend.join("c", queue=DEAD)
        assert await backend.take("c", queue=B.dead) == []
        assert ids(await claimed(backend)) == ["1"]

    @promise()
    async def test_what_a_consumer_held_that_left_or_lapsed_is_given_again(self, backend: BackendUnderTest) -> None:
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
    async def test_a_letter_that_is_handed_back_is_given_again_without_blame(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        assert await backend.release("c", await claimed(backend), queue=DEAD) == 1
        (entry,) = await claimed(backend)
        assert (ids([entry]), entry.crashes) == (["1"], 0)

    @promise()
    async def test_a_letter_that_was_not_handled_stays_and_is_given_no_more(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2")
        await backend.join("c", queue=DEAD)
        entries = await claimed(backend)
        assert await handle(backend, entries, Kind.DEAD) == 2
        assert await listed(backend) == ["1", "2"]
        assert await claimed(backend) == []
        assert (await backend.broker.inspector.queue(DEAD)).ready == 0
        assert await backend.broker.replay(A, ["1"]) == ["1"] and await backend.broker.purge(A, ["2"]) == ["2"]
        assert [entry.body for entry in await take(backend, "a")] == [b"1"]

    @promise()
    async def test_settling_twice_is_settling_once(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        entries = await claimed(backend)
        assert [await handle(backend, entries), await handle(backend, entries)] == [1, 0]
        assert (await backend.broker.inspector.queue(DEAD)).totals["done"] == 1

    @promise()
    async def test_a_consumer_without_its_lease_changes_nothing(self, backend: BackendUnderTest) -> None:
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

    # -- what others do to letters meanwhile -------------------------------------------------------------------------------

    @promise()
    async def test_an_event_that_was_replayed_meanwhile_lives_on(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        held = await claimed(backend)
        assert await backend.broker.replay(A, ["1"]) == ["1"]
        assert await handle(backend, held) == 1
        assert await backend.status("1", A) == "ready"
        assert [entry.body for entry in await take(backend, "a")] == [b"1"]

    @promise()
    async def test_a_letter_of_one_that_died_again_meanwhile_is_handled_too(self, backend: BackendUnderTest) -> None:
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
    async def test_a_letter_that_is_gone_is_given_to_nobody(self, backend: BackendUnderTest) -> None:
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
    async def test_a_claim_whose_answer_was_lost_is_found_again_but_not_what_is_gone(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "held", "lost", "purged")
        await backend.join("c", queue=DEAD)
        held, lost, _ = await claimed(backend)
        await backend.broker.purge(A, ["purged"])
        assert await backend.broker.recover(DEAD, "c", {held.ref}) == [lost]
        assert (await backend.broker.inspector.queue(DEAD)).running == 2

    @promise(dead_max_count=2)
    async def test_there_are_never_too_many_letters(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("c", queue=DEAD)
        await make_dead(backend, "1")
        held = await claimed(backend)
        await make_dead(backend, "2", "3", "4")
        assert await listed(backend) == ["3", "4"]
        assert await handle(backend, held) == 1
        assert ids(await claimed(backend)) == ["3", "4"]

    @promise(dead_max_age=60.0)
    async def test_letters_become_too_old_also_where_they_are_handled(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", lease=1e6, queue=DEAD)
        await backend.broker.leave(A, "a")
        backend.at(61)
        await backend.broker.renew(DEAD, {"c": 1e6})
        assert await listed(backend) == []
        assert await claimed(backend) == []

    @promise()
    async def test_a_paused_group_gives_no_letters(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1")
        await backend.join("c", queue=DEAD)
        await backend.broker.pause(A)
        claim = await backend.claim("c", queue=DEAD)
        assert (claim.entries, claim.paused) == ([], True)
        await backend.broker.resume(A)
        assert ids(await claimed(backend)) == ["1"]

    @promise()
    async def test_a_group_that_is_removed_takes_its_letters_with_it(self, backend: BackendUnderTest) -> None:
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

    # -- waiting, and what is seen of it -----------------------------------------------------------------------------------

    @promise()
    async def test_a_death_wakes_who_waits_for_letters(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("c", queue=DEAD)
        waiting = await backend.begun(backend.wait_for_work("c", queue=DEAD))
        await make_dead(backend, "1")
        assert ids(await waiting) == ["1"]

    @promise()
    async def test_a_waiting_claim_can_be_nudged(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("c", queue=DEAD)
        waiting = await backend.begun(backend.claim("c", queue=DEAD, wait=LONG))
        while not waiting.done():
            await backend.broker.nudge(DEAD, "c")
            await asyncio.sleep(0)
        assert (await waiting).entries == []

    @promise()
    async def test_a_letter_that_took_consumers_down_is_set_aside(self, backend: BackendUnderTest) -> None:
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
    async def test_letters_are_seen_in_numbers_and_the_groups_own_are_as_before(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await make_dead(backend, "1", "2", "3")
        state = await backend.broker.inspector.queue(DEAD)
        assert (state.ready, state.dead) == (0, 3), "nobody has ever been there to handle them"
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
        assert (await backend.broker.inspector.queue(DEAD)).ready == 1, "it waits for whoever comes back"
