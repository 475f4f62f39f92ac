"""Order per key in a topic: each group has turns of its own, and what is blocked there holds nothing in the log."""

from __future__ import annotations

from millstream.address import dead_address, group_address
from millstream.broker import Post, Receipt
from millstream.broker.contract import BEGINNING, END, OrderRules
from millstream.broker.letters import open_letter
from millstream.message import decode_message
from millstream.outcome import Kind
from millstream.testing.room import Promises, Room, ids, promise
from millstream.testing.topic import A, B, begin, claim, emit, emit_serials, end, finish, group_state, state, take

KEY = b"k"


async def blocked(room: Room, group: str = A) -> list[str]:
    return [view.body.decode() for view in await room.broker.inspector.jobs(group, "blocked")]


class OrderedGroupPromises(Promises):
    @promise()
    async def test_each_group_has_turns_of_its_own(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1", "2", key=KEY)
        assert await finish(room, "a") == ["1"]
        assert ids(await take(room, "b")) == ["1"]
        assert await finish(room, "a") == ["2"]
        assert await take(room, "b") == []
        assert (await group_state(room, "a")).blocked == 0
        assert (await group_state(room, "b")).blocked == 1

    @promise()
    async def test_a_key_is_stopped_in_one_group(self, room: Room) -> None:
        await begin(room, "a", "b")
        await room.broker.join(A, "second", 30, order=OrderRules(stop=True))
        await emit(room, "1", "2", key=KEY)
        await end(room, "a", await take(room, "a"), Kind.DEAD)
        await end(room, "b", await take(room, "b"), Kind.DEAD)
        assert await take(room, "a") == []
        assert ids(await take(room, "b")) == ["2"]
        assert [(await group_state(room, name)).stopped for name in ("a", "b")] == [1, 0]

    @promise()
    async def test_an_event_that_was_blocked_comes_before_new_ones(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1", "2", key=KEY)
        first = await take(room, "a")
        await emit(room, "x", "y")
        await end(room, "a", first)
        assert ids(await take(room, "a", 2)) == ["2", "x"]

    @promise()
    async def test_blocked_events_hold_nothing_in_the_log(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1", "2", "3", key=KEY)
        (first,) = await take(room, "a")
        await end(room, "a", [first], Kind.RETRY, delay=60)
        room.at(2)
        await claim(room, "a", 0)
        seen = await state(room)
        assert (seen.length, seen.groups[0].blocked, seen.groups[0].scheduled) == (0, 2, 1)
        room.at(60)
        assert [await finish(room, "a") for _ in range(4)] == [["1"], ["2"], ["3"], []]

    @promise()
    async def test_events_that_are_blocked_where_most_are_count_towards_the_length(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1", "2", "3", "4", key=KEY)
        await take(room, "a")
        assert [await finish(room, "b") for _ in range(4)] == [["1"], ["2"], ["3"], ["4"]]
        await end(room, "a", await room.broker.recover(A, "a", []), Kind.RETRY, delay=60)
        room.at(2)
        await claim(room, "a", 0)
        assert (await state(room)).length == 0
        assert await emit(room, "5", key=b"x", max_length=3) == [Receipt.FULL]
        assert await emit(room, "5", key=b"x", max_length=4) == [Receipt.CREATED]
        assert await emit(room, "6", key=b"x", max_length=4) == [Receipt.FULL]
        assert await emit_serials(room, "s", 1, key=b"x", max_length=4) == [Receipt.FULL]

    @promise()
    async def test_a_group_in_numbers_knows_what_is_blocked_and_stopped(self, room: Room) -> None:
        await begin(room, "a")
        await room.broker.join(A, "second", 30, order=OrderRules(stop=True))
        await emit(room, "1", "2", key=b"x")
        await emit(room, "3", "4", "5", key=b"y")
        x, _ = await take(room, "a")
        await end(room, "a", [x], Kind.DEAD)
        seen = await group_state(room, "a")
        assert (seen.ready, seen.running, seen.dead, seen.blocked, seen.stopped) == (0, 1, 2, 2, 1)

    @promise()
    async def test_an_event_dies_of_its_keys_order_under_its_topics_name(self, room: Room) -> None:
        topic = "orders:3"
        group = group_address(topic, "g")
        await room.broker.join(group, "c", 30, order=OrderRules(stop=True))
        await room.broker.emit(topic, [Post(name, name.encode(), key=KEY) for name in ("1", "2")])
        await room.settle("c", await room.take("c", queue=group), Kind.DEAD, queue=group, task="orders")
        letters = await room.broker.inspector.dead_letters(group)
        assert [(letter.id, letter.task, letter.queue) for letter in letters] == [
            ("1", "orders", group),
            ("2", "orders", group),
        ]

    @promise()
    async def test_letters_of_those_that_died_of_their_keys_order_can_be_claimed(self, room: Room) -> None:
        await begin(room, "a")
        await room.broker.join(A, "second", 30, order=OrderRules(stop=True))
        await room.join("undertaker", queue=dead_address(A))
        await emit(room, "1", "2", key=KEY)
        first = await take(room, "a")
        waiting = await room.begun(room.wait_for_work("undertaker", queue=dead_address(A)))
        await end(room, "a", first, Kind.DEAD)
        entries = await waiting
        entries += await room.take("undertaker", queue=dead_address(A))
        letters = [open_letter(decode_message(entry.body or b"").args) for entry in entries]
        assert [(letter.id, letter.letter.reason, letter.key) for letter in letters] == [
            ("1", "exhausted", KEY),
            ("2", "stopped", KEY),
        ]
        await emit(room, "3", key=KEY)
        waiting = await room.begun(room.wait_for_work("undertaker", queue=dead_address(A)))
        assert await take(room, "a") == []
        assert len(await waiting) == 1

    # -- moving back -------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_blocked_event_that_is_given_again_stays_where_it_is(self, room: Room) -> None:
        await begin(room, "a", keep_count=100)
        await emit(room, "1", "2", "3", key=KEY)
        first = await take(room, "a", 1)
        after_the_first = (await group_state(room, "a")).place
        assert await take(room, "a") == []
        await room.broker.seek(A, after_the_first)
        assert await take(room, "a") == []
        assert await blocked(room) == ["2", "3"]
        await end(room, "a", first)
        assert [await finish(room, "a") for _ in range(3)] == [["2"], ["3"], []]

    @promise()
    async def test_an_event_that_is_given_again_takes_its_old_place(self, room: Room) -> None:
        await begin(room, "a", keep_count=100)
        await emit(room, "1", "2", "3", "4", key=KEY)
        for name in ("1", "2"):
            assert await finish(room, "a") == [name]
        third = await take(room, "a")
        assert ids(third) == ["3"]
        await room.broker.seek(A, BEGINNING)
        assert await take(room, "a") == []
        await end(room, "a", third)
        assert [await finish(room, "a") for _ in range(4)] == [["1"], ["2"], ["4"], []]

    @promise()
    async def test_an_event_that_waits_for_a_retry_is_not_given_again_beside_it(self, room: Room) -> None:
        await begin(room, "a", keep_count=100)
        await emit(room, "1", "2", key=KEY)
        await end(room, "a", await take(room, "a"), Kind.RETRY, delay=5, body=b"1#second")
        await room.broker.seek(A, BEGINNING)
        assert await take(room, "a") == []
        room.at(5)
        assert [entry.body for entry in await take(room, "a")] == [b"1#second"]

    @promise()
    async def test_an_event_with_the_turn_that_is_given_again_while_it_runs_is_a_new_delivery(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("second", queue=A)
        await emit(room, "1", "2", key=KEY)
        await take(room, "a")
        await room.broker.seek(A, BEGINNING)
        again = await room.take("second", queue=A)
        assert ids(again) == ["1"]
        assert await room.settle("second", again, queue=A) == 1
        assert ids(await take(room, "a")) == ["2"]

    @promise()
    async def test_a_dead_event_that_is_given_again_and_has_to_wait_is_dead_no_more(self, room: Room) -> None:
        await begin(room, "a", keep_count=100)
        await emit(room, "1", "2", "3", key=KEY)
        await end(room, "a", await take(room, "a"), Kind.DEAD)
        second = await take(room, "a")
        await room.broker.seek(A, BEGINNING)
        assert await take(room, "a") == []
        assert (await blocked(room), await room.broker.inspector.dead_letters(A)) == (["1", "3"], [])
        await end(room, "a", second)
        assert await finish(room, "a") == ["1"]

    @promise()
    async def test_a_dead_event_that_is_given_again_twice_is_a_new_delivery_with_the_turn(self, room: Room) -> None:
        await begin(room, "a", keep_count=100)
        await emit(room, "1", key=KEY)
        await end(room, "a", await take(room, "a"), Kind.DEAD)
        await room.broker.seek(A, BEGINNING)
        assert ids(await take(room, "a")) == ["1"]
        await room.broker.seek(A, BEGINNING)
        again = await take(room, "a")
        assert ids(again) == ["1"]
        await emit(room, "2", key=KEY)
        assert await take(room, "a") == []
        await end(room, "a", again)
        assert ids(await take(room, "a")) == ["2"]

    @promise()
    async def test_a_group_moved_forward_keeps_what_is_blocked(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1", "2", key=KEY)
        first = await take(room, "a")
        await emit(room, "between", key=KEY)
        await room.broker.seek(A, "new")
        await end(room, "a", first)
        assert await finish(room, "a") == ["2"]
        assert await finish(room, "a") == []

    # -- removing ----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_group_that_is_removed_and_made_again_knows_no_turns(self, room: Room) -> None:
        await begin(room, "a", keep_count=100)
        await room.broker.join(A, "second", 30, order=OrderRules(stop=True, max_pending=0))
        await emit(room, "1", "2", key=KEY)
        await emit(room, "x1", "x2", key=b"x")
        one, x = await take(room, "a")
        await end(room, "a", [x], Kind.DEAD)
        await end(room, "a", [one], Kind.RETRY, delay=60)
        assert await room.broker.remove_group(A)
        await begin(room, "a", keep_count=100)
        seen = await group_state(room, "a")
        assert (seen.blocked, seen.stopped, seen.scheduled, seen.dead) == (0, 0, 0, 0)
        assert await room.broker.inspector.stopped_keys(A) == []
        entries = await take(room, "a")
        assert ids(entries) == ["1", "x1"]
        await end(room, "a", entries, Kind.DEAD)
        assert ids(await take(room, "a")) == ["2", "x2"]

    @promise()
    async def test_what_is_removed_from_one_group_is_no_other_groups(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1", "2", key=KEY)
        for group in ("a", "b"):
            await take(room, group)
        await room.broker.remove_group(A)
        assert await blocked(room, B) == ["2"]

    @promise()
    async def test_what_waits_when_its_group_is_moved_back_is_given_once_by_whatever_way(self, room: Room) -> None:
        await begin(room, "a", keep=1e6)
        await emit(room, "1", "2", "3", key=KEY)
        await emit(room, "o1", "o2", "o3", "o4")
        await emit(room, "4", "5", "6", key=KEY)
        await finish_in_ones(room, until="3")
        while ids(entries := await take(room, "a", 1)) != ["4"]:
            await end(room, "a", entries)
        await end(room, "a", entries, Kind.RETRY, body=b"4", delay=5)
        assert await take(room, "a") == []
        assert await blocked(room) == ["5", "6"]
        await room.broker.pause(A)
        room.at(5)
        await claim(room, "a")
        await room.broker.seek(A, BEGINNING)
        await room.broker.resume(A)
        given = await finish_in_ones(room)
        assert given == ["4", "5", "6", "1", "2", "3", "o1", "o2", "o3", "o4"]
        assert (await group_state(room, "a")).ready == 0
        await room.broker.seek(A, BEGINNING)
        assert await finish_in_ones(room) == ["1", "2", "3", "o1", "o2", "o3", "o4", "4", "5", "6"]

    @promise()
    async def test_what_was_handed_back_when_its_group_is_moved_back_is_given_once(self, room: Room) -> None:
        await begin(room, "a", keep=1e6)
        await emit(room, "1", key=KEY)
        await emit(room, "o1", "o2")
        await emit(room, "2", key=b"other")
        await emit(room, "3", key=b"third")
        await finish_in_ones(room, until="o2")
        left = await take(room, "a")
        assert ids(left) == ["2", "3"]
        await room.release("a", left, queue=A)
        await room.broker.seek(A, BEGINNING)
        given = await finish_in_ones(room)
        assert sorted(given) == ["1", "2", "3", "o1", "o2"]

    @promise()
    async def test_a_suspect_that_runs_after_its_group_is_moved_back_is_given_once(self, room: Room) -> None:
        await begin(room, "a", keep=1e6)
        await emit(room, "1", "2")
        await emit(room, "3", key=KEY)
        entries = await take(room, "a")
        await end(room, "a", entries[:-1])
        await end(room, "a", entries[-1:], Kind.RETRY, body=b"3", delay=0)
        for name in ("first", "second"):
            await room.join(name, queue=A)
            assert ids(await room.take(name, queue=A)) == ["3"]
            await room.broker.leave(A, name)
        assert (await claim(room, "a")).suspects
        await room.broker.seek(A, BEGINNING)
        suspect = await room.take("a", alone=True, queue=A)
        assert ids(suspect) == ["3"]
        await end(room, "a", suspect)
        assert await finish_in_ones(room) == ["1", "2"]

    @promise()
    async def test_what_was_given_ahead_is_given_again_by_the_next_move_back(self, room: Room) -> None:
        await begin(room, "a", keep=1e6)
        await emit(room, "1", "o1", "o2")
        await emit(room, "2", key=KEY)
        entries = await take(room, "a")
        await end(room, "a", entries[:-1])
        await end(room, "a", entries[-1:], Kind.RETRY, body=b"2", delay=0)
        await room.broker.seek(A, BEGINNING)
        assert await finish(room, "a", 1) == ["2"]
        await room.broker.seek(A, BEGINNING)
        assert await finish_in_ones(room) == ["1", "o1", "o2", "2"]

    @promise()
    async def test_what_waits_when_its_group_is_moved_back_and_forward_is_not_lost(self, room: Room) -> None:
        await begin(room, "a", keep=1e6)
        await emit(room, "1", "2", "3", key=KEY)
        (first,) = await take(room, "a")
        await end(room, "a", [first], Kind.RETRY, body=b"1", delay=5)
        assert await take(room, "a") == []
        await room.broker.seek(A, BEGINNING)
        assert await take(room, "a", 1) == []
        await room.broker.seek(A, END)
        room.at(5)
        assert await finish_in_ones(room) == ["1", "2", "3"]


async def finish_in_ones(room: Room, until: str = "") -> list[str]:
    """Claim one event and settle it, until there is none, or after one of this name; whose events these were."""
    done: list[str] = []
    while not until or until not in done:
        found = await claim(room, "a", 1)
        if not found.entries and found.next_due != 0:
            break
        await end(room, "a", found.entries)
        done += ids(found.entries)
    return done
