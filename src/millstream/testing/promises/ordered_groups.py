"""Promises about order per key in a topic: each group has its own turns, and blocked events keep nothing in the log."""

from __future__ import annotations

from millstream.broker import Post, Receipt
from millstream.broker.values import BEGINNING, END, OrderRules
from millstream.model.address import Address
from millstream.model.dead_letter import decode_letter
from millstream.model.message import decode_message
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise
from millstream.testing.topic import A, B, begin, claim, emit, emit_serials, end, finish, group_state, state, take

KEY = b"k"


async def blocked(backend: BackendUnderTest, group: Address = A) -> list[str]:
    return [view.body.decode() for view in await backend.broker.inspector.jobs(group, "blocked")]


class OrderedGroupPromises(Promises):
    @promise()
    async def test_each_group_has_its_own_turns(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", key=KEY)
        assert await finish(backend, "a") == ["1"]
        assert ids(await take(backend, "b")) == ["1"]
        assert await finish(backend, "a") == ["2"]
        assert await take(backend, "b") == []
        assert (await group_state(backend, "a")).blocked == 0
        assert (await group_state(backend, "b")).blocked == 1

    @promise()
    async def test_a_key_is_stopped_only_in_its_group(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await backend.broker.join(A, "second", 30, order=OrderRules(stop=True))
        await emit(backend, "1", "2", key=KEY)
        await end(backend, "a", await take(backend, "a"), Kind.DEAD)
        await end(backend, "b", await take(backend, "b"), Kind.DEAD)
        assert await take(backend, "a") == []
        assert ids(await take(backend, "b")) == ["2"]
        assert [(await group_state(backend, name)).stopped for name in ("a", "b")] == [1, 0]

    @promise()
    async def test_an_event_that_was_blocked_is_delivered_before_new_events(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "1", "2", key=KEY)
        first = await take(backend, "a")
        await emit(backend, "x", "y")
        await end(backend, "a", first)
        assert ids(await take(backend, "a", 2)) == ["2", "x"]

    @promise()
    async def test_blocked_events_do_not_keep_entries_in_the_log(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "1", "2", "3", key=KEY)
        (first,) = await take(backend, "a")
        await end(backend, "a", [first], Kind.RETRY, delay=60)
        backend.at(2)
        await claim(backend, "a", 0)
        seen = await state(backend)
        assert (seen.length, seen.groups[0].blocked, seen.groups[0].scheduled) == (0, 2, 1)
        backend.at(60)
        assert [await finish(backend, "a") for _ in range(4)] == [["1"], ["2"], ["3"], []]

    @promise()
    async def test_max_length_counts_the_blocked_events_of_the_group_that_has_most(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3", "4", key=KEY)
        await take(backend, "a")
        assert [await finish(backend, "b") for _ in range(4)] == [["1"], ["2"], ["3"], ["4"]]
        await end(backend, "a", await backend.broker.recover(A, "a", []), Kind.RETRY, delay=60)
        backend.at(2)
        await claim(backend, "a", 0)
        assert (await state(backend)).length == 0
        assert await emit(backend, "5", key=b"x", max_length=3) == [Receipt.FULL]
        assert await emit(backend, "5", key=b"x", max_length=4) == [Receipt.CREATED]
        assert await emit(backend, "6", key=b"x", max_length=4) == [Receipt.FULL]
        assert await emit_serials(backend, "s", 1, key=b"x", max_length=4) == [Receipt.FULL]

    @promise()
    async def test_the_counts_of_a_group_include_blocked_events_and_stopped_keys(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.broker.join(A, "second", 30, order=OrderRules(stop=True))
        await emit(backend, "1", "2", key=b"x")
        await emit(backend, "3", "4", "5", key=b"y")
        x, _ = await take(backend, "a")
        await end(backend, "a", [x], Kind.DEAD)
        seen = await group_state(backend, "a")
        assert (seen.ready, seen.running, seen.dead, seen.blocked, seen.stopped) == (0, 1, 2, 2, 1)

    @promise()
    async def test_the_dead_letter_of_an_event_of_a_stopped_key_names_the_base_topic_as_task(
        self, backend: BackendUnderTest
    ) -> None:
        topic = "orders:3"
        group = Address.of_group(topic, "g")
        await backend.broker.join(group, "c", 30, order=OrderRules(stop=True))
        await backend.broker.emit(topic, [Post(name, name.encode(), key=KEY) for name in ("1", "2")])
        await backend.settle("c", await backend.take("c", queue=group), Kind.DEAD, queue=group, task="orders")
        letters = await backend.broker.inspector.dead_letters(group)
        assert [(letter.id, letter.task, letter.queue) for letter in letters] == [
            ("1", "orders", group),
            ("2", "orders", group),
        ]

    @promise()
    async def test_dead_letters_of_a_stopped_key_can_be_claimed(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.broker.join(A, "second", 30, order=OrderRules(stop=True))
        await backend.join("handler", queue=A.dead)
        await emit(backend, "1", "2", key=KEY)
        first = await take(backend, "a")
        waiting = await backend.begun(backend.wait_for_work("handler", queue=A.dead))
        await end(backend, "a", first, Kind.DEAD)
        entries = await waiting
        entries += await backend.take("handler", queue=A.dead)
        letters = [decode_letter(decode_message(entry.body or b"").args) for entry in entries]
        assert [(letter.id, letter.reason, letter.key) for letter in letters] == [
            ("1", "exhausted", KEY),
            ("2", "stopped", KEY),
        ]
        await emit(backend, "3", key=KEY)
        waiting = await backend.begun(backend.wait_for_work("handler", queue=A.dead))
        assert await take(backend, "a") == []
        assert len(await waiting) == 1

    # -- seek --------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_blocked_event_that_is_read_again_after_a_seek_keeps_its_position(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=100)
        await emit(backend, "1", "2", "3", key=KEY)
        first = await take(backend, "a", 1)
        after_the_first = (await group_state(backend, "a")).position
        assert await take(backend, "a") == []
        await backend.broker.seek(A, after_the_first)
        assert await take(backend, "a") == []
        assert await blocked(backend) == ["2", "3"]
        await end(backend, "a", first)
        assert [await finish(backend, "a") for _ in range(3)] == [["2"], ["3"], []]

    @promise()
    async def test_an_event_that_is_read_again_after_a_seek_gets_its_old_position(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=100)
        await emit(backend, "1", "2", "3", "4", key=KEY)
        for name in ("1", "2"):
            assert await finish(backend, "a") == [name]
        third = await take(backend, "a")
        assert ids(third) == ["3"]
        await backend.broker.seek(A, BEGINNING)
        assert await take(backend, "a") == []
        await end(backend, "a", third)
        assert [await finish(backend, "a") for _ in range(4)] == [["1"], ["2"], ["4"], []]

    @promise()
    async def test_an_event_that_waits_for_a_retry_is_not_delivered_twice_after_a_seek(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=100)
        await emit(backend, "1", "2", key=KEY)
        await end(backend, "a", await take(backend, "a"), Kind.RETRY, delay=5, body=b"1#second")
        await backend.broker.seek(A, BEGINNING)
        assert await take(backend, "a") == []
        backend.at(5)
        assert [entry.body for entry in await take(backend, "a")] == [b"1#second"]

    @promise()
    async def test_an_event_with_the_turn_that_is_read_again_while_it_runs_is_a_new_delivery(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a")
        await backend.join("second", queue=A)
        await emit(backend, "1", "2", key=KEY)
        await take(backend, "a")
        await backend.broker.seek(A, BEGINNING)
        again = await backend.take("second", queue=A)
        assert ids(again) == ["1"]
        assert await backend.settle("second", again, queue=A) == 1
        assert ids(await take(backend, "a")) == ["2"]

    @promise()
    async def test_a_dead_event_that_is_read_again_after_a_seek_and_blocked_is_no_longer_dead(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a", keep_count=100)
        await emit(backend, "1", "2", "3", key=KEY)
        await end(backend, "a", await take(backend, "a"), Kind.DEAD)
        second = await take(backend, "a")
        await backend.broker.seek(A, BEGINNING)
        assert await take(backend, "a") == []
        assert (await blocked(backend), await backend.broker.inspector.dead_letters(A)) == (["1", "3"], [])
        await end(backend, "a", second)
        assert await finish(backend, "a") == ["1"]

    @promise()
    async def test_a_dead_event_that_is_read_again_after_two_seeks_is_a_new_delivery_with_the_turn(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a", keep_count=100)
        await emit(backend, "1", key=KEY)
        await end(backend, "a", await take(backend, "a"), Kind.DEAD)
        await backend.broker.seek(A, BEGINNING)
        assert ids(await take(backend, "a")) == ["1"]
        await backend.broker.seek(A, BEGINNING)
        again = await take(backend, "a")
        assert ids(again) == ["1"]
        await emit(backend, "2", key=KEY)
        assert await take(backend, "a") == []
        await end(backend, "a", again)
        assert ids(await take(backend, "a")) == ["2"]

    @promise()
    async def test_a_group_moved_forward_keeps_its_blocked_events(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "1", "2", key=KEY)
        first = await take(backend, "a")
        await emit(backend, "between", key=KEY)
        await backend.broker.seek(A, "new")
        await end(backend, "a", first)
        assert await finish(backend, "a") == ["2"]
        assert await finish(backend, "a") == []

    # -- removing ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_group_that_is_removed_and_created_again_has_no_turns(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=100)
        await backend.broker.join(A, "second", 30, order=OrderRules(stop=True, max_pending=0))
        await emit(backend, "1", "2", key=KEY)
        await emit(backend, "x1", "x2", key=b"x")
        one, x = await take(backend, "a")
        await end(backend, "a", [x], Kind.DEAD)
        await end(backend, "a", [one], Kind.RETRY, delay=60)
        assert await backend.broker.remove_group(A)
        await begin(backend, "a", keep_count=100)
        seen = await group_state(backend, "a")
        assert (seen.blocked, seen.stopped, seen.scheduled, seen.dead) == (0, 0, 0, 0)
        assert await backend.broker.inspector.stopped_keys(A) == []
        entries = await take(backend, "a")
        assert ids(entries) == ["1", "x1"]
        await end(backend, "a", entries, Kind.DEAD)
        assert ids(await take(backend, "a")) == ["2", "x2"]

    @promise()
    async def test_removing_a_group_keeps_the_blocked_events_of_other_groups(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", key=KEY)
        for group in ("a", "b"):
            await take(backend, group)
        await backend.broker.remove_group(A)
        assert await blocked(backend, B) == ["2"]

    @promise()
    async def test_events_that_wait_when_their_group_is_moved_back_are_delivered_once(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep=1e6)
        await emit(backend, "1", "2", "3", key=KEY)
        await emit(backend, "o1", "o2", "o3", "o4")
        await emit(backend, "4", "5", "6", key=KEY)
        await finish_in_ones(backend, until="3")
        while ids(entries := await take(backend, "a", 1)) != ["4"]:
            await end(backend, "a", entries)
        await end(backend, "a", entries, Kind.RETRY, body=b"4", delay=5)
        assert await take(backend, "a") == []
        assert await blocked(backend) == ["5", "6"]
        await backend.broker.pause(A)
        backend.at(5)
        await claim(backend, "a")
        await backend.broker.seek(A, BEGINNING)
        await backend.broker.resume(A)
        given = await finish_in_ones(backend)
        assert given == ["4", "5", "6", "1", "2", "3", "o1", "o2", "o3", "o4"]
        assert (await group_state(backend, "a")).ready == 0
        await backend.broker.seek(A, BEGINNING)
        assert await finish_in_ones(backend) == ["1", "2", "3", "o1", "o2", "o3", "o4", "4", "5", "6"]

    @promise()
    async def test_released_events_are_delivered_once_after_their_group_is_moved_back(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep=1e6)
        await emit(backend, "1", key=KEY)
        await emit(backend, "o1", "o2")
        await emit(backend, "2", key=b"other")
        await emit(backend, "3", key=b"third")
        await finish_in_ones(backend, until="o2")
        left = await take(backend, "a")
        assert ids(left) == ["2", "3"]
        await backend.release("a", left, queue=A)
        await backend.broker.seek(A, BEGINNING)
        given = await finish_in_ones(backend)
        assert sorted(given) == ["1", "2", "3", "o1", "o2"]

    @promise()
    async def test_a_suspect_is_delivered_once_after_its_group_is_moved_back(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep=1e6)
        await emit(backend, "1", "2")
        await emit(backend, "3", key=KEY)
        entries = await take(backend, "a")
        await end(backend, "a", entries[:-1])
        await end(backend, "a", entries[-1:], Kind.RETRY, body=b"3", delay=0)
        for name in ("first", "second"):
            await backend.join(name, queue=A)
            assert ids(await backend.take(name, queue=A)) == ["3"]
            await backend.broker.leave(A, name)
        assert (await claim(backend, "a")).suspects
        await backend.broker.seek(A, BEGINNING)
        suspect = await backend.take("a", alone=True, queue=A)
        assert ids(suspect) == ["3"]
        await end(backend, "a", suspect)
        assert await finish_in_ones(backend) == ["1", "2"]

    @promise()
    async def test_an_event_delivered_ahead_of_the_log_is_delivered_again_after_the_next_seek_back(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a", keep=1e6)
        await emit(backend, "1", "o1", "o2")
        await emit(backend, "2", key=KEY)
        entries = await take(backend, "a")
        await end(backend, "a", entries[:-1])
        await end(backend, "a", entries[-1:], Kind.RETRY, body=b"2", delay=0)
        await backend.broker.seek(A, BEGINNING)
        assert await finish(backend, "a", 1) == ["2"]
        await backend.broker.seek(A, BEGINNING)
        assert await finish_in_ones(backend) == ["1", "o1", "o2", "2"]

    @promise()
    async def test_events_that_wait_are_not_lost_when_their_group_is_moved_back_and_forward(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a", keep=1e6)
        await emit(backend, "1", "2", "3", key=KEY)
        (first,) = await take(backend, "a")
        await end(backend, "a", [first], Kind.RETRY, body=b"1", delay=5)
        assert await take(backend, "a") == []
        await backend.broker.seek(A, BEGINNING)
        assert await take(backend, "a", 1) == []
        await backend.broker.seek(A, END)
        backend.at(5)
        assert await finish_in_ones(backend) == ["1", "2", "3"]


async def finish_in_ones(backend: BackendUnderTest, until: str = "") -> list[str]:
    """Claim events one by one and settle them, until none is left or ``until`` is settled. Returns their ids."""
    done: list[str] = []
    while not until or until not in done:
        found = await claim(backend, "a", 1)
        if not found.entries and found.next_due != 0:
            break
        await end(backend, "a", found.entries)
        done += ids(found.entries)
    return done
