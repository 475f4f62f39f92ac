"""The dead letters of a group, claimed at an address of their own: each is handled once, and gone only when it was."""

from __future__ import annotations

import asyncio

import pytest

from millstream.address import dead_address
from millstream.broker import DeadLetter, Entry
from millstream.broker.contract import OVERDUE_SECONDS
from millstream.broker.letters import open_letter
from millstream.errors import LeaseLost
from millstream.message import decode_message
from millstream.outcome import Kind, Outcome
from millstream.testing.room import LONG, Promises, Room, promise
from millstream.testing.topic import A, B, begin, emit, end, group_state, take

DEAD = dead_address(A)


async def bury(room: Room, *event_ids: str, **fields: object) -> None:
    """Events of group a that die."""
    for event_id in event_ids:
        await emit(room, event_id)
        await end(room, "a", await take(room, "a"), Kind.DEAD, **fields)


def letters(entries: list[Entry]) -> list[DeadLetter]:
    return [open_letter(decode_message(entry.body or b"").args) for entry in entries]


def ids(entries: list[Entry]) -> list[str]:
    return [letter.id for letter in letters(entries)]


async def claimed(room: Room, consumer: str = "c", count: int = 100, **options: object) -> list[Entry]:
    return await room.take(consumer, count, queue=DEAD, **options)


async def handle(room: Room, entries: list[Entry], kind: Kind = Kind.DONE, consumer: str = "c") -> int:
    outcomes = [Outcome(kind, entry.ref, letter.id) for entry, letter in zip(entries, letters(entries), strict=True)]
    return await room.broker.settle(DEAD, consumer, outcomes)


async def listed(room: Room) -> list[str]:
    return [letter.id for letter in await room.broker.inspector.dead_letters(A)]


class LetterPromises(Promises):
    @promise()
    async def test_letters_are_claimed_as_they_are_stored_also_those_that_died_before(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1", body=b"1#again")
        await room.join("c", queue=DEAD)
        await bury(room, "2")
        entries = await claimed(room)
        assert letters(entries) == await room.broker.inspector.dead_letters(A)
        first = letters(entries)[0]
        assert (first.id, first.queue, first.body, first.letter.reason) == ("1", A, b"1#again", "exhausted")
        assert [decode_message(entry.body or b"").id for entry in entries] == ["1", "2"]
        assert [entry.crashes for entry in entries] == [0, 0]

    @promise()
    async def test_a_letter_is_in_the_list_until_it_was_handled(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1", "2")
        await room.join("c", queue=DEAD)
        entries = await claimed(room)
        assert await listed(room) == ["1", "2"] and await room.status("1", A) == "dead"
        assert await handle(room, entries[:1]) == 1
        assert await listed(room) == ["2"] and await room.status("1", A) == "unknown"
        assert await room.broker.inspector.dead_letter(A, "1") is None
        assert (await group_state(room, "a")).dead == 1

    @promise()
    async def test_a_letter_is_given_to_one_consumer(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1", "2", "3")
        await room.join("c", "d", queue=DEAD)
        assert ids(await claimed(room, "c", 2)) == ["1", "2"]
        assert ids(await claimed(room, "d")) == ["3"]
        assert await claimed(room, "c") == []

    @promise()
    async def test_letters_of_one_group_are_no_others(self, room: Room) -> None:
        await begin(room, "a", "b")
        await bury(room, "1")
        await room.join("c", queue=dead_address(B))
        await room.join("c", queue=DEAD)
        assert await room.take("c", queue=dead_address(B)) == []
        assert ids(await claimed(room)) == ["1"]

    @promise()
    async def test_what_a_consumer_held_that_left_or_lapsed_is_given_again(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1", "2")
        await room.join("left", queue=DEAD)
        await room.join("late", lease=5.0, queue=DEAD)
        await room.join("c", queue=DEAD)
        await claimed(room, "left", 1)
        await claimed(room, "late", 1)
        assert await room.broker.leave(DEAD, "left") == 1
        found = await claimed(room)
        assert (ids(found), found[0].crashes) == (["1"], 1)
        await handle(room, found)
        room.at(6)
        await room.claim("c", 0, queue=DEAD)
        room.at(6 + OVERDUE_SECONDS)
        assert ids(await claimed(room)) == ["2"]
        with pytest.raises(LeaseLost):
            await handle(room, found, consumer="late")

    @promise()
    async def test_a_letter_that_is_handed_back_is_given_again_without_blame(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1")
        await room.join("c", queue=DEAD)
        assert await room.release("c", await claimed(room), queue=DEAD) == 1
        (entry,) = await claimed(room)
        assert (ids([entry]), entry.crashes) == (["1"], 0)

    @promise()
    async def test_a_letter_that_was_not_handled_stays_and_is_given_no_more(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1", "2")
        await room.join("c", queue=DEAD)
        entries = await claimed(room)
        assert await handle(room, entries, Kind.DEAD) == 2
        assert await listed(room) == ["1", "2"]
        assert await claimed(room) == []
        assert (await room.broker.inspector.queue(DEAD)).ready == 0
        assert await room.broker.replay(A, ["1"]) == ["1"] and await room.broker.purge(A, ["2"]) == ["2"]
        assert [entry.body for entry in await take(room, "a")] == [b"1"]

    @promise()
    async def test_settling_twice_is_settling_once(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1")
        await room.join("c", queue=DEAD)
        entries = await claimed(room)
        assert [await handle(room, entries), await handle(room, entries)] == [1, 0]
        assert (await room.broker.inspector.queue(DEAD)).totals["done"] == 1

    @promise()
    async def test_a_consumer_without_its_lease_changes_nothing(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1")
        await room.join("c", queue=DEAD)
        entries = await claimed(room)
        await room.broker.leave(DEAD, "c")
        with pytest.raises(LeaseLost):
            await handle(room, entries)
        with pytest.raises(LeaseLost):
            await claimed(room)
        assert await listed(room) == ["1"]

    # -- what others do to letters meanwhile -------------------------------------------------------------------------------

    @promise()
    async def test_an_event_that_was_replayed_meanwhile_lives_on(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1")
        await room.join("c", queue=DEAD)
        held = await claimed(room)
        assert await room.broker.replay(A, ["1"]) == ["1"]
        assert await handle(room, held) == 1
        assert await room.status("1", A) == "ready"
        assert [entry.body for entry in await take(room, "a")] == [b"1"]

    @promise()
    async def test_a_letter_of_one_that_died_again_meanwhile_is_handled_too(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1")
        await room.join("c", queue=DEAD)
        held = await claimed(room)
        await room.broker.replay(A, ["1"])
        await end(room, "a", await take(room, "a"), Kind.DEAD, body=b"1#newer")
        await handle(room, held)
        assert await room.status("1", A) == "dead"
        newer = await claimed(room)
        assert [letter.body for letter in letters(newer)] == [b"1#newer"]
        await handle(room, newer)
        assert await listed(room) == []

    @promise()
    async def test_a_letter_that_is_gone_is_given_to_nobody(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "held", "released", "never given", "stays")
        await room.join("d", "c", queue=DEAD)
        await claimed(room, "d", 1)
        await room.release("c", await claimed(room, "c", 1), queue=DEAD)
        await room.broker.purge(A, ["held", "released", "never given"])
        await room.broker.leave(DEAD, "d")
        assert ids(await claimed(room)) == ["stays"]
        assert await listed(room) == ["stays"]
        state = await room.broker.inspector.queue(DEAD)
        assert (state.ready, state.running) == (0, 1)

    @promise()
    async def test_a_claim_whose_answer_was_lost_is_found_again_but_not_what_is_gone(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "held", "lost", "purged")
        await room.join("c", queue=DEAD)
        held, lost, _ = await claimed(room)
        await room.broker.purge(A, ["purged"])
        assert await room.broker.recover(DEAD, "c", {held.ref}) == [lost]
        assert (await room.broker.inspector.queue(DEAD)).running == 2

    @promise(dead_max_count=2)
    async def test_there_are_never_too_many_letters(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("c", queue=DEAD)
        await bury(room, "1")
        held = await claimed(room)
        await bury(room, "2", "3", "4")
        assert await listed(room) == ["3", "4"]
        assert await handle(room, held) == 1
        assert ids(await claimed(room)) == ["3", "4"]

    @promise(dead_max_age=60.0)
    async def test_letters_become_too_old_also_where_they_are_handled(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1")
        await room.join("c", lease=1e6, queue=DEAD)
        await room.broker.leave(A, "a")
        room.at(61)
        await room.broker.renew(DEAD, {"c": 1e6})
        assert await listed(room) == []
        assert await claimed(room) == []

    @promise()
    async def test_a_paused_group_gives_no_letters(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1")
        await room.join("c", queue=DEAD)
        await room.broker.pause(A)
        claim = await room.claim("c", queue=DEAD)
        assert (claim.entries, claim.paused) == ([], True)
        await room.broker.resume(A)
        assert ids(await claimed(room)) == ["1"]

    @promise()
    async def test_a_group_that_is_removed_takes_its_letters_with_it(self, room: Room) -> None:
        await begin(room, "a", "b")
        await bury(room, "1")
        await room.join("c", queue=DEAD)
        held = await claimed(room)
        await room.broker.remove_group(A)
        with pytest.raises(LeaseLost):
            await handle(room, held)
        await begin(room, "a")
        await room.join("d", queue=DEAD)
        assert await claimed(room, "d") == []
        assert await listed(room) == []

    # -- waiting, and what is seen of it -----------------------------------------------------------------------------------

    @promise()
    async def test_a_death_wakes_who_waits_for_letters(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("c", queue=DEAD)
        waiting = await room.begun(room.wait_for_work("c", queue=DEAD))
        await bury(room, "1")
        assert ids(await waiting) == ["1"]

    @promise()
    async def test_a_waiting_claim_can_be_nudged(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("c", queue=DEAD)
        waiting = await room.begun(room.claim("c", queue=DEAD, wait=LONG))
        while not waiting.done():
            await room.broker.nudge(DEAD, "c")
            await asyncio.sleep(0)
        assert (await waiting).entries == []

    @promise()
    async def test_a_letter_that_took_consumers_down_is_set_aside(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1")
        for name in ("x", "y"):
            await room.join(name, queue=DEAD)
            assert len(await claimed(room, name)) == 1
            await room.broker.leave(DEAD, name)
        await room.join("c", queue=DEAD)
        claim = await room.claim("c", queue=DEAD)
        assert (claim.entries, claim.suspects) == ([], True)
        assert (await room.broker.inspector.queue(DEAD)).suspects == 1
        (entry,) = await claimed(room, alone=True)
        assert entry.crashes == 2
        assert await handle(room, [entry]) == 1

    @promise()
    async def test_letters_are_seen_in_numbers_and_the_groups_own_are_as_before(self, room: Room) -> None:
        await begin(room, "a")
        await bury(room, "1", "2", "3")
        state = await room.broker.inspector.queue(DEAD)
        assert (state.ready, state.dead) == (0, 3), "nobody has ever been there to handle them"
        await room.join("c", queue=DEAD)
        assert (await room.broker.inspector.queue(DEAD)).ready == 3
        entries = await claimed(room, count=2)
        state = await room.broker.inspector.queue(DEAD)
        assert (state.ready, state.running, state.scheduled, state.dead, state.consumers) == (1, 2, 0, 3, 1)
        await handle(room, entries)
        state = await room.broker.inspector.queue(DEAD)
        assert (state.ready, state.running, state.dead, state.totals["done"]) == (1, 0, 1, 2)
        group = await room.broker.inspector.queue(A)
        assert (group.dead, group.consumers, group.totals["dead"], group.totals["done"]) == (1, 1, 3, 0)
        assert await room.broker.inspector.queues() == ["q"]
        assert [group.name for group in (await room.broker.inspector.topic("orders")).groups] == ["a"]
        await room.broker.leave(DEAD, "c")
        assert (await room.broker.inspector.queue(DEAD)).ready == 1, "it waits for whoever comes back"
