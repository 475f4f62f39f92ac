"""What those who follow a topic without a group can rely on: every event from their position on, in order, or a count of what
was gone before they came to it."""

from __future__ import annotations

import asyncio

from millstream.broker import Followed, Position, Post, Receipt
from millstream.testing.backend import LONG, BackendUnderTest, Promises, ids, promise
from millstream.testing.topic import TOPIC, begin, claim, emit, emit_serials, end, finish, state, take

CREATED, EXISTS, FULL = Receipt.CREATED, Receipt.EXISTS, Receipt.FULL


async def end_of(backend: BackendUnderTest) -> Position:
    """Where who follows from now on begins."""
    return (await backend.broker.follow(TOPIC, None, 1)).position


async def follow(backend: BackendUnderTest, after: Position, count: int = 1000, **options: float) -> Followed:
    return await backend.broker.follow(TOPIC, after, count, **options)


async def read(backend: BackendUnderTest, after: Position, count: int = 1000) -> tuple[list[str], int]:
    """Whose events were read, and how many were missed."""
    followed = await follow(backend, after, count)
    return ids(followed.entries), followed.missed


class FollowingPromises(Promises):
    @promise()
    async def test_who_follows_reads_what_comes_from_now_on_in_order(self, backend: BackendUnderTest) -> None:
        await emit(backend, "before")
        at = await end_of(backend)
        assert await read(backend, at) == ([], 0)
        await emit(backend, "1", "2")
        await emit_serials(backend, "s", 1, 2)
        assert await read(backend, at) == (["1", "2", "s-1", "s-2"], 0)

    @promise()
    async def test_who_follows_a_topic_that_nobody_has_published_to_reads_its_first_event(
        self, backend: BackendUnderTest
    ) -> None:
        at = await end_of(backend)
        assert await read(backend, at) == ([], 0)
        await emit(backend, "1")
        assert await read(backend, at) == (["1"], 0)

    @promise()
    async def test_reading_goes_on_after_the_last_that_was_read(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, "1", "2", "3", "4", "5")
        seen: list[str] = []
        for _ in range(4):
            followed = await follow(backend, at, 2)
            seen += ids(followed.entries)
            at = followed.position
            assert followed.missed == 0
        assert seen == ["1", "2", "3", "4", "5"]
        await emit(backend, "6")
        assert await read(backend, at) == (["6"], 0)

    @promise()
    async def test_everyone_who_follows_reads_every_event_beside_groups_that_settle_it(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        other = await backend.another()
        mine, theirs = await end_of(backend), (await other.follow(TOPIC, None, 1)).position
        await emit(backend, "1", "2")
        assert await finish(backend, "a") == ["1", "2"]
        assert await read(backend, mine) == (["1", "2"], 0)
        assert ids((await other.follow(TOPIC, theirs, 10)).entries) == ["1", "2"]
        assert await read(backend, mine) == (["1", "2"], 0)

    @promise()
    async def test_following_makes_no_group_and_keeps_nothing_back(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await end_of(backend)
        await emit(backend, "1")
        await finish(backend, "a")
        backend.at(2)
        await claim(backend, "a", 0)
        assert ((await state(backend)).length, [group.name for group in (await state(backend)).groups]) == (0, ["a"])

    @promise()
    async def test_expiry_and_server_time_are_told(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, "1", expires=5)
        await emit(backend, "2")
        backend.at(6)
        followed = await follow(backend, at)
        assert [entry.expires_ms <= followed.now_ms and entry.expires_ms > 0 for entry in followed.entries] == [True, False]

    @promise()
    async def test_that_a_topic_is_followed_can_be_seen(self, backend: BackendUnderTest) -> None:
        await emit(backend, "1")
        assert not (await state(backend)).followed
        await end_of(backend)
        assert (await state(backend)).followed

    # -- what was missed ---------------------------------------------------------------------------------------------------

    @promise()
    async def test_what_was_dropped_at_max_length_is_counted_as_missed(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, *"12345", max_length=3)
        followed = await follow(backend, at, 2)
        assert (ids(followed.entries), followed.missed) == (["3", "4"], 2)
        assert await read(backend, followed.position) == (["5"], 0)
        await emit(backend, *"6789", max_length=3)
        assert await read(backend, followed.position) == (["7", "8", "9"], 2)
        assert await read(backend, followed.position, 1) == (["7"], 2)

    @promise()
    async def test_what_every_group_has_settled_is_counted_as_missed_once_it_left(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        at = await end_of(backend)
        await emit(backend, "1", "2", "3")
        await end(backend, "a", await take(backend, "a", 2))
        backend.at(2)
        await claim(backend, "a", 0)
        await emit(backend, "4")
        assert await read(backend, at) == (["3", "4"], 2)

    @promise()
    async def test_what_retention_ended_is_counted_as_missed(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic(TOPIC, {}, keep=10)
        at = await end_of(backend)
        await emit(backend, "1", "2")
        backend.at(8)
        await emit(backend, "3")
        backend.at(15)
        await emit(backend, "4")
        assert await read(backend, at) == (["3", "4"], 2)

    @promise()
    async def test_that_everything_was_missed_is_told_although_nothing_is_left(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        at = await end_of(backend)
        await emit(backend, "1", "2", "3")
        await finish(backend, "a")
        backend.at(2)
        await claim(backend, "a", 0)
        followed = await follow(backend, at)
        assert (followed.entries, followed.missed) == ([], 3)
        await emit(backend, "4")
        assert await read(backend, followed.position) == (["4"], 0)

    @promise()
    async def test_who_has_read_an_event_has_not_missed_it(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        at = await end_of(backend)
        await emit(backend, "1", "2", "3")
        at = (await follow(backend, at, 2)).position
        await finish(backend, "a")
        for second in (2, 4):
            backend.at(second)
            await claim(backend, "a", 0)
        await emit(backend, "4")
        assert await read(backend, at) == (["4"], 1)

    @promise()
    async def test_what_had_left_before_who_follows_came_is_not_missed(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic(TOPIC, {}, followed=True)
        await emit(backend, *"12345", max_length=2)
        at = await end_of(backend)
        await emit(backend, "6", max_length=2)
        assert await read(backend, at) == (["6"], 0)

    @promise()
    async def test_who_follows_reads_first_and_trims_then(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        at = await end_of(backend)
        await emit(backend, "1", "2")
        await finish(backend, "a")
        backend.at(2)
        assert await read(backend, at) == (["1", "2"], 0)
        assert (await state(backend)).length == 0

    @promise()
    async def test_many_missed_events_are_counted(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        names = [f"n{n}" for n in range(900)]
        for start in range(0, 900, 150):
            await emit(backend, *names[start : start + 150], max_length=250)
        followed = await follow(backend, at, 100)
        assert (ids(followed.entries), followed.missed) == (names[650:750], 650)
        await emit(backend, *(f"m{n}" for n in range(200)), max_length=250)
        assert await read(backend, followed.position) == ([*names[850:], *(f"m{n}" for n in range(200))], 100)

    # -- a topic whose only readers follow it ------------------------------------------------------------------------------

    @promise()
    async def test_a_followed_topic_without_groups_drops_its_oldest_events_at_max_length(
        self, backend: BackendUnderTest
    ) -> None:
        await backend.broker.open_topic(TOPIC, {}, followed=True)
        at = await end_of(backend)
        names = [f"n{n}" for n in range(500)]
        for start in range(0, 500, 50):
            assert await emit(backend, *names[start : start + 50], max_length=120) == [CREATED] * 50
        assert (await state(backend)).length == 120
        assert await read(backend, at) == (names[-120:], 380)

    @promise()
    async def test_a_followed_topic_without_groups_is_trimmed_by_retention_whoever_publishes(
        self, backend: BackendUnderTest
    ) -> None:
        await backend.broker.open_topic(TOPIC, {}, keep_count=3, followed=True)
        for serial in range(1, 31, 3):
            backend.at(serial)
            await emit_serials(backend, "s", serial, serial + 1, serial + 2)
        assert (await state(backend)).length <= 6

    @promise()
    async def test_a_followed_topic_without_groups_knows_generated_ids(self, backend: BackendUnderTest) -> None:
        await end_of(backend)
        assert await emit_serials(backend, "s", 1, max_length=2) == [CREATED]
        assert await emit_serials(backend, "s", 2, 3, max_length=2) == [CREATED] * 2
        assert (await state(backend)).length == 2
        assert await emit_serials(backend, "s", 1, 3, max_length=2) == [EXISTS, EXISTS]
        assert await emit_serials(backend, "s", 4, 5, 6, max_length=2) == [CREATED] * 3
        assert (await state(backend)).length == 2
        await begin(backend, "a")
        assert ids(await take(backend, "a")) == ["s-5", "s-6"]

    @promise()
    async def test_a_followed_topic_with_a_group_refuses_as_ever(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        at = await end_of(backend)
        assert await emit_serials(backend, "s", 1, 2, max_length=2) == [CREATED, CREATED]
        assert await emit_serials(backend, "s", 3, max_length=2) == [FULL]
        assert await emit(backend, "1", max_length=2) == [FULL]
        assert await read(backend, at) == (["s-1", "s-2"], 0)

    @promise()
    async def test_a_topic_that_was_opened_as_a_followed_one_stays_so(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic(TOPIC, {}, followed=True)
        await backend.broker.open_topic(TOPIC, {})
        assert await emit(backend, "1", "2", max_length=1) == [CREATED, CREATED]

    @promise()
    async def test_delayed_events_are_not_dropped_for_others(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, "now", max_length=2)
        assert await emit(backend, "later", delay=5, max_length=2) == [CREATED]
        assert await emit(backend, "next", max_length=2) == [CREATED]
        assert (await state(backend)).length == 1
        assert await emit(backend, "last", "too late", delay=5, max_length=2) == [CREATED, FULL]
        assert await emit_serials(backend, "s", 1, max_length=2) == [FULL]
        backend.at(5)
        assert await read(backend, at) == (["last", "later"], 2)

    # -- waiting -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_who_follows_publishes_what_is_due_and_is_told_when_that_is(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, "later", delay=5)
        followed = await follow(backend, at)
        assert (followed.entries, followed.next_due) == ([], 5)
        backend.at(5)
        followed = await follow(backend, followed.position)
        assert (ids(followed.entries), followed.missed, followed.next_due) == (["later"], 0, None)

    @promise()
    async def test_following_does_not_wait_for_what_is_there(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, "1")
        assert ids((await follow(backend, at, wait=LONG)).entries) == ["1"]

    @promise()
    async def test_an_event_from_another_process_ends_the_wait_of_everyone_who_follows(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        other = await backend.another()
        waiting = [await backend.begun(follow(backend, at, wait=LONG)) for _ in range(3)]
        await other.emit(TOPIC, [Post("1", b"1")])
        assert [ids(followed.entries) for followed in await asyncio.gather(*waiting)] == [["1"]] * 3

    @promise()
    async def test_an_event_in_bulk_ends_a_wait(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        waiting = await backend.begun(follow(backend, at, wait=LONG))
        await emit_serials(backend, "s", 1, 2)
        assert ids((await waiting).entries) == ["s-1", "s-2"]

    @promise()
    async def test_a_delayed_event_that_a_group_publishes_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "later", delay=5)
        at = await end_of(backend)
        waiting = await backend.begun(follow(backend, at, wait=LONG))
        backend.at(5)
        await claim(backend, "a", 0)
        assert ids((await waiting).entries) == ["later"]

    @promise()
    async def test_an_event_delayed_to_an_earlier_moment_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await emit(backend, "late", delay=1000)
        at = await end_of(backend)
        waiting = await backend.begun(follow(backend, at, wait=LONG))
        await emit(backend, "later", delay=2000)
        await emit(backend, "sooner", delay=10)
        followed = await waiting
        assert (followed.entries, followed.next_due) == ([], 10)
        await emit(backend, "soonest", delay=5)
        assert (await follow(backend, followed.position, wait=LONG)).next_due == 5

    @promise()
    async def test_a_wait_for_events_ends_when_its_seconds_have_passed(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        for seconds in (0.0001, 0.02):
            assert (await follow(backend, at, wait=seconds)).entries == []

    @promise()
    async def test_a_wait_for_events_may_be_given_up(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        waiting = await backend.begun(follow(backend, at, wait=LONG))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await emit(backend, "1")
        assert ids((await follow(backend, at, wait=LONG)).entries) == ["1"]
