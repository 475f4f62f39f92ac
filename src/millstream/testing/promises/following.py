"""What those who follow a topic without a group can rely on: every event from their position on, in order, or a count of what
was gone before they came to it."""

from __future__ import annotations

import asyncio

from millstream.broker import Followed, Position, Post, Receipt
from millstream.testing.room import LONG, Promises, Room, ids, promise
from millstream.testing.topic import TOPIC, begin, claim, emit, emit_serials, end, finish, state, take

CREATED, EXISTS, FULL = Receipt.CREATED, Receipt.EXISTS, Receipt.FULL


async def end_of(room: Room) -> Position:
    """Where who follows from now on begins."""
    return (await room.broker.follow(TOPIC, None, 1)).position


async def follow(room: Room, after: Position, count: int = 1000, **options: float) -> Followed:
    return await room.broker.follow(TOPIC, after, count, **options)


async def read(room: Room, after: Position, count: int = 1000) -> tuple[list[str], int]:
    """Whose events were read, and how many were missed."""
    followed = await follow(room, after, count)
    return ids(followed.entries), followed.missed


class FollowingPromises(Promises):
    @promise()
    async def test_who_follows_reads_what_comes_from_now_on_in_order(self, room: Room) -> None:
        await emit(room, "before")
        at = await end_of(room)
        assert await read(room, at) == ([], 0)
        await emit(room, "1", "2")
        await emit_serials(room, "s", 1, 2)
        assert await read(room, at) == (["1", "2", "s-1", "s-2"], 0)

    @promise()
    async def test_who_follows_a_topic_that_nobody_has_published_to_reads_its_first_event(self, room: Room) -> None:
        at = await end_of(room)
        assert await read(room, at) == ([], 0)
        await emit(room, "1")
        assert await read(room, at) == (["1"], 0)

    @promise()
    async def test_reading_goes_on_after_the_last_that_was_read(self, room: Room) -> None:
        at = await end_of(room)
        await emit(room, "1", "2", "3", "4", "5")
        seen: list[str] = []
        for _ in range(4):
            followed = await follow(room, at, 2)
            seen += ids(followed.entries)
            at = followed.position
            assert followed.missed == 0
        assert seen == ["1", "2", "3", "4", "5"]
        await emit(room, "6")
        assert await read(room, at) == (["6"], 0)

    @promise()
    async def test_everyone_who_follows_reads_every_event_beside_groups_that_settle_it(self, room: Room) -> None:
        await begin(room, "a")
        other = await room.another()
        mine, theirs = await end_of(room), (await other.follow(TOPIC, None, 1)).position
        await emit(room, "1", "2")
        assert await finish(room, "a") == ["1", "2"]
        assert await read(room, mine) == (["1", "2"], 0)
        assert ids((await other.follow(TOPIC, theirs, 10)).entries) == ["1", "2"]
        assert await read(room, mine) == (["1", "2"], 0)

    @promise()
    async def test_following_makes_no_group_and_keeps_nothing_back(self, room: Room) -> None:
        await begin(room, "a")
        await end_of(room)
        await emit(room, "1")
        await finish(room, "a")
        room.at(2)
        await claim(room, "a", 0)
        assert ((await state(room)).length, [group.name for group in (await state(room)).groups]) == (0, ["a"])

    @promise()
    async def test_expiry_and_server_time_are_told(self, room: Room) -> None:
        at = await end_of(room)
        await emit(room, "1", expires=5)
        await emit(room, "2")
        room.at(6)
        followed = await follow(room, at)
        assert [entry.expires_ms <= followed.now_ms and entry.expires_ms > 0 for entry in followed.entries] == [True, False]

    @promise()
    async def test_that_a_topic_is_followed_can_be_seen(self, room: Room) -> None:
        await emit(room, "1")
        assert not (await state(room)).followed
        await end_of(room)
        assert (await state(room)).followed

    # -- what was missed ---------------------------------------------------------------------------------------------------

    @promise()
    async def test_what_was_dropped_at_max_length_is_counted_as_missed(self, room: Room) -> None:
        at = await end_of(room)
        await emit(room, *"12345", max_length=3)
        followed = await follow(room, at, 2)
        assert (ids(followed.entries), followed.missed) == (["3", "4"], 2)
        assert await read(room, followed.position) == (["5"], 0)
        await emit(room, *"6789", max_length=3)
        assert await read(room, followed.position) == (["7", "8", "9"], 2)
        assert await read(room, followed.position, 1) == (["7"], 2)

    @promise()
    async def test_what_every_group_has_settled_is_counted_as_missed_once_it_left(self, room: Room) -> None:
        await begin(room, "a")
        at = await end_of(room)
        await emit(room, "1", "2", "3")
        await end(room, "a", await take(room, "a", 2))
        room.at(2)
        await claim(room, "a", 0)
        await emit(room, "4")
        assert await read(room, at) == (["3", "4"], 2)

    @promise()
    async def test_what_retention_ended_is_counted_as_missed(self, room: Room) -> None:
        await room.broker.open_topic(TOPIC, {}, keep=10)
        at = await end_of(room)
        await emit(room, "1", "2")
        room.at(8)
        await emit(room, "3")
        room.at(15)
        await emit(room, "4")
        assert await read(room, at) == (["3", "4"], 2)

    @promise()
    async def test_that_everything_was_missed_is_told_although_nothing_is_left(self, room: Room) -> None:
        await begin(room, "a")
        at = await end_of(room)
        await emit(room, "1", "2", "3")
        await finish(room, "a")
        room.at(2)
        await claim(room, "a", 0)
        followed = await follow(room, at)
        assert (followed.entries, followed.missed) == ([], 3)
        await emit(room, "4")
        assert await read(room, followed.position) == (["4"], 0)

    @promise()
    async def test_who_has_read_an_event_has_not_missed_it(self, room: Room) -> None:
        await begin(room, "a")
        at = await end_of(room)
        await emit(room, "1", "2", "3")
        at = (await follow(room, at, 2)).position
        await finish(room, "a")
        for second in (2, 4):
            room.at(second)
            await claim(room, "a", 0)
        await emit(room, "4")
        assert await read(room, at) == (["4"], 1)

    @promise()
    async def test_what_had_left_before_who_follows_came_is_not_missed(self, room: Room) -> None:
        await room.broker.open_topic(TOPIC, {}, followed=True)
        await emit(room, *"12345", max_length=2)
        at = await end_of(room)
        await emit(room, "6", max_length=2)
        assert await read(room, at) == (["6"], 0)

    @promise()
    async def test_who_follows_reads_first_and_trims_then(self, room: Room) -> None:
        await begin(room, "a")
        at = await end_of(room)
        await emit(room, "1", "2")
        await finish(room, "a")
        room.at(2)
        assert await read(room, at) == (["1", "2"], 0)
        assert (await state(room)).length == 0

    @promise()
    async def test_many_missed_events_are_counted(self, room: Room) -> None:
        at = await end_of(room)
        names = [f"n{n}" for n in range(900)]
        for start in range(0, 900, 150):
            await emit(room, *names[start : start + 150], max_length=250)
        followed = await follow(room, at, 100)
        assert (ids(followed.entries), followed.missed) == (names[650:750], 650)
        await emit(room, *(f"m{n}" for n in range(200)), max_length=250)
        assert await read(room, followed.position) == ([*names[850:], *(f"m{n}" for n in range(200))], 100)

    # -- a topic whose only readers follow it ------------------------------------------------------------------------------

    @promise()
    async def test_a_followed_topic_without_groups_drops_its_oldest_events_at_max_length(self, room: Room) -> None:
        await room.broker.open_topic(TOPIC, {}, followed=True)
        at = await end_of(room)
        names = [f"n{n}" for n in range(500)]
        for start in range(0, 500, 50):
            assert await emit(room, *names[start : start + 50], max_length=120) == [CREATED] * 50
        assert (await state(room)).length == 120
        assert await read(room, at) == (names[-120:], 380)

    @promise()
    async def test_a_followed_topic_without_groups_is_trimmed_by_retention_whoever_publishes(self, room: Room) -> None:
        await room.broker.open_topic(TOPIC, {}, keep_count=3, followed=True)
        for serial in range(1, 31, 3):
            room.at(serial)
            await emit_serials(room, "s", serial, serial + 1, serial + 2)
        assert (await state(room)).length <= 6

    @promise()
    async def test_a_followed_topic_without_groups_knows_generated_ids(self, room: Room) -> None:
        await end_of(room)
        assert await emit_serials(room, "s", 1, max_length=2) == [CREATED]
        assert await emit_serials(room, "s", 2, 3, max_length=2) == [CREATED] * 2
        assert (await state(room)).length == 2
        assert await emit_serials(room, "s", 1, 3, max_length=2) == [EXISTS, EXISTS]
        assert await emit_serials(room, "s", 4, 5, 6, max_length=2) == [CREATED] * 3
        assert (await state(room)).length == 2
        await begin(room, "a")
        assert ids(await take(room, "a")) == ["s-5", "s-6"]

    @promise()
    async def test_a_followed_topic_with_a_group_refuses_as_ever(self, room: Room) -> None:
        await begin(room, "a")
        at = await end_of(room)
        assert await emit_serials(room, "s", 1, 2, max_length=2) == [CREATED, CREATED]
        assert await emit_serials(room, "s", 3, max_length=2) == [FULL]
        assert await emit(room, "1", max_length=2) == [FULL]
        assert await read(room, at) == (["s-1", "s-2"], 0)

    @promise()
    async def test_a_topic_that_was_opened_as_a_followed_one_stays_so(self, room: Room) -> None:
        await room.broker.open_topic(TOPIC, {}, followed=True)
        await room.broker.open_topic(TOPIC, {})
        assert await emit(room, "1", "2", max_length=1) == [CREATED, CREATED]

    @promise()
    async def test_delayed_events_are_not_dropped_for_others(self, room: Room) -> None:
        at = await end_of(room)
        await emit(room, "now", max_length=2)
        assert await emit(room, "later", delay=5, max_length=2) == [CREATED]
        assert await emit(room, "next", max_length=2) == [CREATED]
        assert (await state(room)).length == 1
        assert await emit(room, "last", "too late", delay=5, max_length=2) == [CREATED, FULL]
        assert await emit_serials(room, "s", 1, max_length=2) == [FULL]
        room.at(5)
        assert await read(room, at) == (["last", "later"], 2)

    # -- waiting -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_who_follows_publishes_what_is_due_and_is_told_when_that_is(self, room: Room) -> None:
        at = await end_of(room)
        await emit(room, "later", delay=5)
        followed = await follow(room, at)
        assert (followed.entries, followed.next_due) == ([], 5)
        room.at(5)
        followed = await follow(room, followed.position)
        assert (ids(followed.entries), followed.missed, followed.next_due) == (["later"], 0, None)

    @promise()
    async def test_following_does_not_wait_for_what_is_there(self, room: Room) -> None:
        at = await end_of(room)
        await emit(room, "1")
        assert ids((await follow(room, at, wait=LONG)).entries) == ["1"]

    @promise()
    async def test_an_event_from_another_process_ends_the_wait_of_everyone_who_follows(self, room: Room) -> None:
        at = await end_of(room)
        other = await room.another()
        waiting = [await room.begun(follow(room, at, wait=LONG)) for _ in range(3)]
        await other.emit(TOPIC, [Post("1", b"1")])
        assert [ids(followed.entries) for followed in await asyncio.gather(*waiting)] == [["1"]] * 3

    @promise()
    async def test_an_event_in_bulk_ends_a_wait(self, room: Room) -> None:
        at = await end_of(room)
        waiting = await room.begun(follow(room, at, wait=LONG))
        await emit_serials(room, "s", 1, 2)
        assert ids((await waiting).entries) == ["s-1", "s-2"]

    @promise()
    async def test_a_delayed_event_that_a_group_publishes_ends_a_wait(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "later", delay=5)
        at = await end_of(room)
        waiting = await room.begun(follow(room, at, wait=LONG))
        room.at(5)
        await claim(room, "a", 0)
        assert ids((await waiting).entries) == ["later"]

    @promise()
    async def test_an_event_delayed_to_an_earlier_moment_ends_a_wait(self, room: Room) -> None:
        await emit(room, "late", delay=1000)
        at = await end_of(room)
        waiting = await room.begun(follow(room, at, wait=LONG))
        await emit(room, "later", delay=2000)
        await emit(room, "sooner", delay=10)
        followed = await waiting
        assert (followed.entries, followed.next_due) == ([], 10)
        await emit(room, "soonest", delay=5)
        assert (await follow(room, followed.position, wait=LONG)).next_due == 5

    @promise()
    async def test_a_wait_for_events_ends_when_its_seconds_have_passed(self, room: Room) -> None:
        at = await end_of(room)
        for seconds in (0.0001, 0.02):
            assert (await follow(room, at, wait=seconds)).entries == []

    @promise()
    async def test_a_wait_for_events_may_be_given_up(self, room: Room) -> None:
        at = await end_of(room)
        waiting = await room.begun(follow(room, at, wait=LONG))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await emit(room, "1")
        assert ids((await follow(room, at, wait=LONG)).entries) == ["1"]
