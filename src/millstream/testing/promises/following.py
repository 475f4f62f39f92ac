"""Promises to followers, which read a topic without a group: every event after their position, in order, and a count of events
that left the log before they were read.
"""

from __future__ import annotations

import asyncio

from millstream.broker import Followed, Position, Post, Receipt
from millstream.testing.backend import LONG, BackendUnderTest, Promises, ids, promise
from millstream.testing.topic import TOPIC, begin, claim, emit, emit_serials, end, finish, state, take

CREATED, EXISTS, FULL = Receipt.CREATED, Receipt.EXISTS, Receipt.FULL


async def end_of(backend: BackendUnderTest) -> Position:
    """Return the position of a follower that starts now."""
    return (await backend.broker.follow(TOPIC, None, 1)).position


async def follow(backend: BackendUnderTest, after: Position, count: int = 1000, **options: float) -> Followed:
    return await backend.broker.follow(TOPIC, after, count, **options)


async def read(backend: BackendUnderTest, after: Position, count: int = 1000) -> tuple[list[str], int]:
    """Return the ids of the events read, and the number of missed events."""
    followed = await follow(backend, after, count)
    return ids(followed.entries), followed.missed


class FollowingPromises(Promises):
    @promise()
    async def test_a_follower_reads_new_events_in_order(self, backend: BackendUnderTest) -> None:
        await emit(backend, "before")
        at = await end_of(backend)
        assert await read(backend, at) == ([], 0)
        await emit(backend, "1", "2")
        await emit_serials(backend, "s", 1, 2)
        assert await read(backend, at) == (["1", "2", "s-1", "s-2"], 0)

    @promise()
    async def test_a_follower_of_a_new_topic_reads_its_first_event(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        assert await read(backend, at) == ([], 0)
        await emit(backend, "1")
        assert await read(backend, at) == (["1"], 0)

    @promise()
    async def test_a_follower_continues_after_the_last_event_it_read(self, backend: BackendUnderTest) -> None:
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
    async def test_every_follower_reads_every_event_even_if_a_group_settles_it(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        other = await backend.another()
        mine, theirs = await end_of(backend), (await other.follow(TOPIC, None, 1)).position
        await emit(backend, "1", "2")
        assert await finish(backend, "a") == ["1", "2"]
        assert await read(backend, mine) == (["1", "2"], 0)
        assert ids((await other.follow(TOPIC, theirs, 10)).entries) == ["1", "2"]
        assert await read(backend, mine) == (["1", "2"], 0)

    @promise()
    async def test_following_creates_no_group_and_keeps_no_event_in_the_log(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await end_of(backend)
        await emit(backend, "1")
        await finish(backend, "a")
        backend.at(2)
        await claim(backend, "a", 0)
        assert ((await state(backend)).length, [group.name for group in (await state(backend)).groups]) == (0, ["a"])

    @promise()
    async def test_a_follower_gets_expiry_times_and_the_server_time(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, "1", expires=5)
        await emit(backend, "2")
        backend.at(6)
        followed = await follow(backend, at)
        assert [entry.expires_ms <= followed.now_ms and entry.expires_ms > 0 for entry in followed.entries] == [True, False]

    @promise()
    async def test_the_state_of_a_topic_says_whether_it_is_followed(self, backend: BackendUnderTest) -> None:
        await emit(backend, "1")
        assert not (await state(backend)).followed
        await end_of(backend)
        assert (await state(backend)).followed

    # -- missed events -----------------------------------------------------------------------------------------------------

    @promise()
    async def test_events_dropped_at_max_length_are_counted_as_missed(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, *"12345", max_length=3)
        followed = await follow(backend, at, 2)
        assert (ids(followed.entries), followed.missed) == (["3", "4"], 2)
        assert await read(backend, followed.position) == (["5"], 0)
        await emit(backend, *"6789", max_length=3)
        assert await read(backend, followed.position) == (["7", "8", "9"], 2)
        assert await read(backend, followed.position, 1) == (["7"], 2)

    @promise()
    async def test_trimmed_events_that_every_group_has_settled_are_counted_as_missed(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        at = await end_of(backend)
        await emit(backend, "1", "2", "3")
        await end(backend, "a", await take(backend, "a", 2))
        backend.at(2)
        await claim(backend, "a", 0)
        await emit(backend, "4")
        assert await read(backend, at) == (["3", "4"], 2)

    @promise()
    async def test_events_removed_by_retention_are_counted_as_missed(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic(TOPIC, {}, keep=10)
        at = await end_of(backend)
        await emit(backend, "1", "2")
        backend.at(8)
        await emit(backend, "3")
        backend.at(15)
        await emit(backend, "4")
        assert await read(backend, at) == (["3", "4"], 2)

    @promise()
    async def test_missed_events_are_counted_even_if_the_log_is_empty(self, backend: BackendUnderTest) -> None:
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
    async def test_events_that_a_follower_has_read_are_not_missed(self, backend: BackendUnderTest) -> None:
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
    async def test_events_that_left_the_log_before_a_follower_started_are_not_missed(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic(TOPIC, {}, followed=True)
        await emit(backend, *"12345", max_length=2)
        at = await end_of(backend)
        await emit(backend, "6", max_length=2)
        assert await read(backend, at) == (["6"], 0)

    @promise()
    async def test_a_follow_reads_before_it_trims(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        at = await end_of(backend)
        await emit(backend, "1", "2")
        await finish(backend, "a")
        backend.at(2)
        assert await read(backend, at) == (["1", "2"], 0)
        assert (await state(backend)).length == 0

    @promise()
    async def test_hundreds_of_missed_events_are_counted_exactly(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        names = [f"n{n}" for n in range(900)]
        for start in range(0, 900, 150):
            await emit(backend, *names[start : start + 150], max_length=250)
        followed = await follow(backend, at, 100)
        assert (ids(followed.entries), followed.missed) == (names[650:750], 650)
        await emit(backend, *(f"m{n}" for n in range(200)), max_length=250)
        assert await read(backend, followed.position) == ([*names[850:], *(f"m{n}" for n in range(200))], 100)

    # -- topics with followers but no groups -------------------------------------------------------------------------------

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
    async def test_publishing_trims_a_followed_topic_without_groups_to_its_retention(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic(TOPIC, {}, keep_count=3, followed=True)
        for serial in range(1, 31, 3):
            backend.at(serial)
            await emit_serials(backend, "s", serial, serial + 1, serial + 2)
        assert (await state(backend)).length <= 6

    @promise()
    async def test_a_followed_topic_without_groups_recognises_generated_ids(self, backend: BackendUnderTest) -> None:
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
    async def test_a_followed_topic_with_a_group_refuses_events_at_max_length(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        at = await end_of(backend)
        assert await emit_serials(backend, "s", 1, 2, max_length=2) == [CREATED, CREATED]
        assert await emit_serials(backend, "s", 3, max_length=2) == [FULL]
        assert await emit(backend, "1", max_length=2) == [FULL]
        assert await read(backend, at) == (["s-1", "s-2"], 0)

    @promise()
    async def test_a_topic_opened_as_followed_stays_followed(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic(TOPIC, {}, followed=True)
        await backend.broker.open_topic(TOPIC, {})
        assert await emit(backend, "1", "2", max_length=1) == [CREATED, CREATED]

    @promise()
    async def test_delayed_events_are_not_dropped_at_max_length(self, backend: BackendUnderTest) -> None:
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
    async def test_a_follow_publishes_due_events_and_says_when_the_next_is_due(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, "later", delay=5)
        followed = await follow(backend, at)
        assert (followed.entries, followed.next_due) == ([], 5)
        backend.at(5)
        followed = await follow(backend, followed.position)
        assert (ids(followed.entries), followed.missed, followed.next_due) == (["later"], 0, None)

    @promise()
    async def test_a_follow_with_wait_returns_immediately_if_an_event_is_available(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        await emit(backend, "1")
        assert ids((await follow(backend, at, wait=LONG)).entries) == ["1"]

    @promise()
    async def test_an_event_from_another_process_ends_the_wait_of_every_follower(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        other = await backend.another()
        waiting = [await backend.begun(follow(backend, at, wait=LONG)) for _ in range(3)]
        await other.emit(TOPIC, [Post("1", b"1")])
        assert [ids(followed.entries) for followed in await asyncio.gather(*waiting)] == [["1"]] * 3

    @promise()
    async def test_events_with_generated_ids_end_the_wait_of_a_follower(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        waiting = await backend.begun(follow(backend, at, wait=LONG))
        await emit_serials(backend, "s", 1, 2)
        assert ids((await waiting).entries) == ["s-1", "s-2"]

    @promise()
    async def test_a_delayed_event_published_by_a_claim_ends_the_wait_of_a_follower(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "later", delay=5)
        at = await end_of(backend)
        waiting = await backend.begun(follow(backend, at, wait=LONG))
        backend.at(5)
        await claim(backend, "a", 0)
        assert ids((await waiting).entries) == ["later"]

    @promise()
    async def test_an_event_with_an_earlier_due_time_ends_the_wait_of_a_follower(self, backend: BackendUnderTest) -> None:
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
    async def test_the_wait_of_a_follower_ends_after_the_given_time(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        for seconds in (0.0001, 0.02):
            assert (await follow(backend, at, wait=seconds)).entries == []

    @promise()
    async def test_the_wait_of_a_follower_can_be_cancelled(self, backend: BackendUnderTest) -> None:
        at = await end_of(backend)
        waiting = await backend.begun(follow(backend, at, wait=LONG))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await emit(backend, "1")
        assert ids((await follow(backend, at, wait=LONG)).entries) == ["1"]
