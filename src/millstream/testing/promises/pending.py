"""How many may wait behind a key that waits for a retry."""

from __future__ import annotations

from millstream.broker import OrderRules
from millstream.outcome import Kind
from millstream.testing.keyed import blocked, dead, finish_all, retry, send, take_all
from millstream.testing.room import START, Promises, Room, ids, promise


async def begin(room: Room, *names: str, max_pending: int = 2, stop: bool = False) -> None:
    """A consumer that says how many may wait, and messages of one key."""
    await room.broker.join(room.queue, "c", 1e6, order=OrderRules(stop, max_pending))
    await send(room, *names)


class PendingPromises(Promises):
    @promise()
    async def test_behind_a_retry_only_so_many_wait_and_those_that_come_then_die(self, room: Room) -> None:
        await begin(room, "1")
        await retry(room, (await room.take("c"))[0])
        await send(room, "2", "3", "4", "5")
        assert await take_all(room) == []
        assert await blocked(room) == ["2", "3"]
        assert await dead(room, "pending_full") == ["4", "5"]
        assert await room.status("4") == "dead"

    @promise()
    async def test_behind_one_that_runs_any_number_waits(self, room: Room) -> None:
        await begin(room, "1", "2", "3", "4", "5")
        assert ids(await take_all(room)) == ["1"]
        assert await blocked(room) == ["2", "3", "4", "5"]

    @promise()
    async def test_behind_one_that_was_handed_back_any_number_waits(self, room: Room) -> None:
        await begin(room, "1", "2", "3", "4", "5")
        await room.release("c", await room.take("c", 1))
        assert ids(await take_all(room)) == ["1"]
        assert (await blocked(room), await dead(room)) == (["2", "3", "4", "5"], [])

    @promise()
    async def test_those_that_waited_before_the_retry_stay(self, room: Room) -> None:
        await begin(room, "1", "2", "3", "4")
        (first,) = await take_all(room)
        await retry(room, first)
        await send(room, "5")
        assert await take_all(room) == []
        assert (await blocked(room), await dead(room)) == (["2", "3", "4"], ["5"])
        room.at(5)
        assert await finish_all(room) == ["1", "2", "3", "4"]

    @promise()
    async def test_once_the_retry_is_out_again_any_number_waits(self, room: Room) -> None:
        await begin(room, "1", "2", "3")
        (first,) = await take_all(room)
        await retry(room, first)
        room.at(5)
        assert ids(await room.take("c")) == ["1"]
        await send(room, "4", "5")
        assert await take_all(room) == []
        assert (await blocked(room), await dead(room)) == (["2", "3", "4", "5"], [])

    @promise()
    async def test_other_keys_are_none_of_its_business(self, room: Room) -> None:
        await begin(room, "1")
        await retry(room, (await room.take("c"))[0])
        await send(room, "x1", "x2", "x3", "x4", key=b"x")
        await send(room, "n1", "n2", "n3", key=None)
        assert ids(await take_all(room)) == ["x1", "n1", "n2", "n3"]
        assert (await blocked(room), await dead(room)) == (["x2", "x3", "x4"], [])

    @promise()
    async def test_if_none_may_wait_all_that_come_die(self, room: Room) -> None:
        await begin(room, "1", max_pending=0)
        await retry(room, (await room.take("c"))[0])
        await send(room, "2")
        assert await take_all(room) == []
        assert await dead(room, "pending_full") == ["2"]

    @promise()
    async def test_a_thousand_may_wait_if_nobody_said_how_many(self, room: Room) -> None:
        await room.join("c", lease=1e6)
        await send(room, "1")
        await retry(room, (await room.take("c"))[0])
        for start in range(0, 1002, 167):
            await send(room, *[f"n{n}" for n in range(start, start + 167)])
        assert await take_all(room) == []
        assert (await room.broker.inspector.queue(room.queue)).blocked == 1000
        assert await dead(room, "pending_full") == ["n1000", "n1001"]

    @promise()
    async def test_the_letter_of_one_that_came_too_late_says_so(self, room: Room) -> None:
        await begin(room, "1", max_pending=0)
        await retry(room, (await room.take("c"))[0])
        await send(room, "2")
        await take_all(room)
        (letter,) = await room.broker.inspector.dead_letters(room.queue)
        said = letter.letter
        assert (said.reason, said.error.type, said.attempts, said.crashes, said.enqueued_ms) == (
            "pending_full",
            "OrderError",
            0,
            0,
            0,
        )
        assert said.error.message
        assert (letter.id, letter.task, letter.body, letter.key, letter.died_at) == ("2", "t", b"2", b"k", START)
        assert (await room.totals())["dead"] == 1

    @promise()
    async def test_one_that_came_too_late_can_be_replayed_to_its_old_place(self, room: Room) -> None:
        await begin(room, "1", "2", max_pending=1)
        (first,) = await take_all(room)
        await retry(room, first)
        await send(room, "3")
        await take_all(room)
        room.at(5)
        again = await room.take("c")
        await send(room, "4")
        await take_all(room)
        assert await room.broker.replay(room.queue, ["3"]) == ["3"]
        await take_all(room)
        assert await blocked(room) == ["2", "3", "4"]
        await room.settle("c", again)
        assert await finish_all(room) == ["2", "3", "4"]

    @promise()
    async def test_one_that_came_too_late_stops_nothing(self, room: Room) -> None:
        await begin(room, "1", max_pending=0, stop=True)
        await retry(room, (await room.take("c"))[0])
        await send(room, "2")
        await take_all(room)
        assert await room.broker.inspector.stopped_keys(room.queue) == []
        room.at(5)
        await room.settle("c", await room.take("c"))
        await send(room, "3")
        assert ids(await room.take("c")) == ["3"]

    @promise()
    async def test_how_many_may_wait_is_what_was_said_last(self, room: Room) -> None:
        await begin(room, "1", max_pending=0)
        await room.join("d")
        await room.broker.join(room.queue, "e", 30, order=OrderRules(max_pending=1))
        await retry(room, (await room.take("c"))[0])
        await send(room, "2", "3")
        await take_all(room)
        assert (await blocked(room), await dead(room)) == (["2"], ["3"])

    @promise(dead_max_count=2)
    async def test_letters_of_those_that_came_too_late_are_bounded_like_all(self, room: Room) -> None:
        await begin(room, "1", max_pending=0)
        await retry(room, (await room.take("c"))[0])
        await send(room, "2", "3", "4", "5")
        await take_all(room)
        await room.broker.renew(room.queue, {"c": 1e6})
        assert await dead(room) == ["4", "5"]

    @promise()
    async def test_a_retry_that_dies_makes_room_again(self, room: Room) -> None:
        await begin(room, "1", max_pending=0)
        await retry(room, (await room.take("c"))[0])
        room.at(5)
        await room.settle("c", await room.take("c"), Kind.DEAD)
        await send(room, "2", "3")
        assert ids(await take_all(room)) == ["2"]
        assert await blocked(room) == ["3"]
