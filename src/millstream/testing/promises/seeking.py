"""Promises about moving a group in its topic's log, and about reading its position."""

from __future__ import annotations

import msgspec
import pytest

from millstream.broker import GroupState, JobView, Listed, Post, TopicState
from millstream.broker.values import BEGINNING, END
from millstream.model.address import Address
from millstream.model.message import Message, encode_message
from millstream.model.outcome import Kind, Outcome
from millstream.testing.backend import START, BackendUnderTest, Promises, ids, promise
from millstream.testing.topic import TOPIC, A, B, begin, claim, emit, end, finish, group_state, state, take


async def listed(backend: BackendUnderTest, status: Listed, limit: int) -> list[str]:
    """Return the ids of all jobs in one state of the first group, read in pages."""
    found: list[JobView] = []
    while page := await backend.broker.inspector.jobs(A, status, after=found[-1].cursor if found else "", limit=limit):
        assert len(page) <= limit
        found += page
    return [view.id for view in found]


class SeekingPromises(Promises):
    @promise()
    async def test_a_group_moved_back_receives_the_kept_events_again(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b", keep_count=3)
        await emit(backend, "1", "2", "3", "4", "5")
        await finish(backend, "a")
        await finish(backend, "b")
        backend.at(2)
        await claim(backend, "a")
        assert await backend.broker.seek(A, BEGINNING)
        await emit(backend, "6")
        assert await finish(backend, "a") == ["3", "4", "5", "6"]
        assert await finish(backend, "b") == ["6"]

    @promise()
    async def test_a_group_can_be_moved_to_a_time_or_after_an_entry(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=100)
        places: dict[int, str] = {}
        for second in range(5):
            backend.at(second)
            await emit(backend, str(second))
            await finish(backend, "a")
            places[second] = (await group_state(backend, "a")).position
        await backend.broker.seek(A, START + 3)
        assert await finish(backend, "a") == ["3", "4"]
        await backend.broker.seek(A, places[1])
        assert await finish(backend, "a") == ["2", "3", "4"]

    @promise()
    async def test_a_group_moved_to_a_time_receives_every_event_of_that_millisecond(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=100)
        await emit(backend, "1")
        await finish(backend, "a")
        await backend.broker.seek(A, START + 0.0007)
        assert await finish(backend, "a") == ["1"]

    @promise()
    async def test_a_group_moved_forward_skips_the_events_in_between(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3")
        held = await take(backend, "a", 1)
        assert await backend.broker.seek(A, END)
        await emit(backend, "4")
        assert ids(await take(backend, "a")) == ["4"]
        assert await end(backend, "a", held) == 1
        assert ids(await take(backend, "b")) == ["1", "2", "3", "4"]

    @promise()
    async def test_a_group_moved_to_a_time_no_longer_keeps_older_events_in_the_log(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "1", "2")
        await backend.broker.seek(A, START + 5)
        backend.at(5)
        await emit(backend, "3")
        await claim(backend, "a", 0)
        assert (await state(backend)).length == 1
        assert ids(await take(backend, "a")) == ["3"]

    @promise()
    async def test_an_invalid_position_is_refused(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        for position in ("", "start", "1-2-3", "-1", "1-"):
            with pytest.raises(ValueError, match="position"):
                await backend.broker.seek(A, position)
            with pytest.raises(ValueError, match="position"):
                await backend.broker.open_topic(TOPIC, {"new": position})

    @promise()
    async def test_moving_a_group_back_ends_a_wait(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=10)
        await emit(backend, "1")
        await finish(backend, "a")
        waiting = await backend.begun(backend.wait_for_work("a", queue=A))
        await backend.broker.seek(A, BEGINNING)
        assert ids(await waiting) == ["1"]

    @promise()
    async def test_a_group_moved_back_keeps_events_in_the_log_again(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b", keep_count=2)
        await emit(backend, "1", "2")
        await finish(backend, "a")
        await finish(backend, "b")
        await backend.broker.seek(A, BEGINNING)
        await emit(backend, "3", "4", "5")
        await finish(backend, "b")
        backend.at(2)
        await claim(backend, "b")
        assert await finish(backend, "a") == ["1", "2", "3", "4", "5"]

    @promise()
    async def test_an_event_that_is_read_again_while_it_runs_is_a_new_delivery(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("second", queue=A)
        await emit(backend, "1")
        await take(backend, "a")
        await backend.broker.seek(A, BEGINNING)
        again = await backend.take("second", queue=A)
        assert [(entry.body, entry.crashes) for entry in again] == [(b"1", 0)]
        assert await backend.settle("second", again, queue=A) == 1
        queue = await backend.broker.inspector.queue(A)
        assert (queue.ready, queue.running) == (0, 0)

    @promise()
    async def test_an_abandoned_event_is_delivered_once_after_its_group_is_moved_back(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("left", queue=A)
        await emit(backend, "1", "2", "3", "4")
        await backend.take("left", 3, queue=A)
        await backend.release("left", (await backend.broker.recover(A, "left", []))[1:2], queue=A)
        await backend.broker.seek(A, BEGINNING)
        await backend.broker.leave(A, "left")
        entries = await take(backend, "a")
        assert [(entry.body, entry.crashes) for entry in entries] == [(b"2", 0), (b"1", 1), (b"3", 1), (b"4", 0)]
        assert await end(backend, "a", entries) == 4
        assert await take(backend, "a") == []

    @promise()
    async def test_a_group_moved_back_while_it_holds_later_events_keeps_those_in_between(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a")
        await emit(backend, "1", "2", "3")
        entries = await take(backend, "a")
        await end(backend, "a", entries[:2])
        await backend.broker.seek(A, BEGINNING)
        backend.at(2)
        await claim(backend, "a", 0)
        assert ids(await take(backend, "a")) == ["1", "2", "3"]

    @promise()
    async def test_the_dead_letter_of_an_event_that_is_read_again_stays_until_it_dies_again(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a", keep_count=10)
        await emit(backend, "1")
        await end(backend, "a", await take(backend, "a"), Kind.DEAD, body=b"1#first")
        await backend.broker.seek(A, BEGINNING)
        await finish(backend, "a")
        assert [dead.body for dead in await backend.broker.inspector.dead_letters(A)] == [b"1#first"]
        await backend.broker.seek(A, BEGINNING)
        await end(backend, "a", await take(backend, "a"), Kind.DEAD, body=b"1#second")
        assert [dead.body for dead in await backend.broker.inspector.dead_letters(A)] == [b"1#second"]
        assert await backend.broker.replay(A, ["1"]) == ["1"]
        assert [entry.body for entry in await take(backend, "a")] == [b"1#second"]
        assert await backend.broker.inspector.dead_letters(A) == []

    @promise()
    async def test_an_event_that_is_read_again_and_retried_is_scheduled_once(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=10)
        await emit(backend, "1")
        await end(backend, "a", await take(backend, "a"), Kind.RETRY, delay=5, body=b"1#first")
        await backend.broker.seek(A, BEGINNING)
        await end(backend, "a", await take(backend, "a"), Kind.RETRY, delay=9, body=b"1#second")
        backend.at(5)
        assert await take(backend, "a") == []
        backend.at(9)
        assert [entry.body for entry in await take(backend, "a")] == [b"1#second"]

    @promise()
    async def test_the_dead_letter_of_a_later_delivery_replaces_a_scheduled_retry(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=10)
        await emit(backend, "1")
        await end(backend, "a", await take(backend, "a"), Kind.RETRY, delay=5)
        await backend.broker.seek(A, BEGINNING)
        await end(backend, "a", await take(backend, "a"), Kind.DEAD)
        assert await backend.status("1", A) == "dead"
        backend.at(5)
        given = await claim(backend, "a")
        assert (given.entries, given.next_due) == ([], None)
        assert await backend.broker.replay(A, ["1"]) == ["1"]

    # -- reading -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_topics_are_listed_sorted_and_not_among_the_queues(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic("z", {})
        await backend.join("c", queue=Address.of_group("m", "g"))
        await backend.broker.open_topic("b", {"y": END, "x": BEGINNING})
        assert [name for name in await backend.broker.inspector.topics() if name in ("b", "m", "z")] == ["b", "m", "z"]
        assert not {"b", "m", "z"} & set(await backend.broker.inspector.queues())
        assert [group.name for group in (await backend.broker.inspector.topic("b")).groups] == ["x", "y"]

    @promise()
    async def test_an_unknown_topic_has_empty_counts(self, backend: BackendUnderTest) -> None:
        before = await backend.broker.inspector.topics()
        assert await backend.broker.inspector.topic("none") == TopicState("none", 0, 0, {"published": 0}, [])
        assert await backend.broker.inspector.topics() == before

    @promise()
    async def test_the_counts_of_a_topic_match_those_of_its_groups(self, backend: BackendUnderTest) -> None:
        await begin(backend, "b", "a")
        await backend.join("second", queue=A)
        await emit(backend, *"12345678")
        await emit(backend, "later", delay=60)
        dead, retried, done, released, _, _ = await take(backend, "a", 6)
        await end(backend, "a", [dead], Kind.DEAD)
        await end(backend, "a", [retried], Kind.RETRY, delay=60)
        await end(backend, "a", [done])
        await backend.release("a", [released], queue=A)
        await backend.broker.pause(B)
        seen = await state(backend)
        assert (seen.name, seen.length, seen.delayed, seen.totals) == (TOPIC, 8, 1, {"published": 9})
        a, b = seen.groups
        assert a == GroupState("a", a.position, 2, ready=3, running=2, scheduled=1, dead=1, paused=False, consumers=2)
        assert b == GroupState("b", b.position, 8, ready=8, running=0, scheduled=0, dead=0, paused=True, consumers=1)
        for group in (a, b):
            queue = await backend.broker.inspector.queue(Address.of_group(TOPIC, group.name))
            assert (queue.ready, queue.running, queue.scheduled, queue.dead) == (
                group.ready,
                group.running,
                group.scheduled,
                group.dead,
            )

    @promise()
    async def test_the_lag_of_a_group_is_the_number_of_events_not_yet_delivered_to_it(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await begin(backend, "new", start=END)
        seen: list[int | None] = []
        for count in (0, 2, 1, 2):
            await take(backend, "a", count)
            seen.append((await group_state(backend, "a")).lag)
            await emit(backend, *[f"{len(seen)}-{n}" for n in range(2)])
        assert seen == [0, 0, 1, 1]
        assert (await group_state(backend, "new")).lag == 8
        await backend.broker.seek(A, END)
        assert (await group_state(backend, "a")).lag == 0
        await backend.broker.seek(A, BEGINNING)
        assert (await group_state(backend, "a")).lag == 8

    @promise()
    async def test_events_of_a_group_are_listed_by_state(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("second", queue=A)
        names = ["retried", "mine1", "mine2", "released", "theirs", "new1", "new2"]
        args = msgspec.Raw(b"\xc0")
        await backend.broker.emit(TOPIC, [Post(i, encode_message(Message(i, "t", args, 17))) for i in names])
        (retried,) = await take(backend, "a", 1)
        await backend.broker.settle(A, "a", [Outcome(Kind.RETRY, retried.ref, "retried", body=retried.body or b"")])
        released = (await take(backend, "a", 4))[-1]
        await backend.take("second", 1, queue=A)
        await backend.release("a", [released], queue=A)
        for limit in (1, 2, 100):
            assert await listed(backend, "running", limit) == ["retried", "mine1", "mine2", "theirs"]
            assert await listed(backend, "ready", limit) == ["released", "new1", "new2"]
