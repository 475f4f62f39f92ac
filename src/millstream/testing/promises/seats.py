"""How many may serve an address, who came later, and who shares its shards."""

from __future__ import annotations

import pytest

from millstream.broker import Attendance, OrderRules
from millstream.errors import LeaseLost
from millstream.outcome import Kind
from millstream.testing.keyed import send
from millstream.testing.promises.leases import LAPSE, MARK
from millstream.testing.room import Promises, Room, ids, promise


async def sit(room: Room, consumer: str, seats: int = 1, lease: float = 10.0) -> int:
    return await room.broker.join(room.queue, consumer, lease, seats=seats)


class SeatPromises(Promises):
    @promise()
    async def test_a_seat_is_refused_while_all_are_taken_and_nothing_is_written(self, room: Room) -> None:
        assert await sit(room, "c") > 0
        before = await room.broker.inspector.queue(room.queue)
        assert await sit(room, "d") == 0
        assert await room.broker.inspector.queue(room.queue) == before
        with pytest.raises(LeaseLost):
            await room.claim("d")

    @promise()
    async def test_there_are_as_many_seats_as_one_says(self, room: Room) -> None:
        granted = [await sit(room, f"c{n}", seats=3) > 0 for n in range(5)]
        assert granted == [True, True, True, False, False]
        assert await sit(room, "more", seats=4) > 0

    @promise()
    async def test_who_asks_for_no_seat_has_one_anyway_and_counts(self, room: Room) -> None:
        await sit(room, "c")
        await room.join("d")
        assert (await room.broker.inspector.queue(room.queue)).consumers == 2
        assert await sit(room, "e", seats=2) == 0

    @promise()
    async def test_a_join_for_a_seat_that_is_sent_again_finds_its_own(self, room: Room) -> None:
        await sit(room, "c")
        assert await sit(room, "c") > 0
        assert (await room.broker.inspector.queue(room.queue)).consumers == 1

    @promise()
    async def test_who_leaves_leaves_a_seat(self, room: Room) -> None:
        await sit(room, "c")
        await room.broker.leave(room.queue, "c")
        assert await sit(room, "d") > 0

    @promise()
    async def test_the_seat_of_one_whose_lease_is_over_is_free_at_the_second_look(self, room: Room) -> None:
        await sit(room, "c", lease=10)
        room.at(10 + MARK)
        assert await sit(room, "d") == 0
        room.at(10 + LAPSE)
        assert await sit(room, "d") > 0
        assert (await room.totals())["lapsed"] == 1

    @promise()
    async def test_one_look_takes_no_seat_however_late_it_comes(self, room: Room) -> None:
        await sit(room, "c", lease=10)
        room.at(10_000)
        assert await sit(room, "d") == 0
        assert await room.broker.renew(room.queue, {"c": 10}) == set()

    @promise()
    async def test_a_renewal_between_the_looks_keeps_the_seat(self, room: Room) -> None:
        await sit(room, "c", lease=10)
        room.at(10 + MARK)
        assert await sit(room, "d") == 0
        await room.broker.renew(room.queue, {"c": 10})
        room.at(10 + LAPSE)
        assert await sit(room, "d") == 0

    @promise()
    async def test_who_takes_a_seat_over_is_given_what_was_held_and_the_one_before_settles_nothing(self, room: Room) -> None:
        await sit(room, "c", lease=10)
        await send(room, "1", "2", key=b"k")
        held = await room.take("c")
        for seconds in (10 + MARK, 10 + LAPSE):
            room.at(seconds)
            await sit(room, "d", lease=1e6)
        with pytest.raises(LeaseLost):
            await room.settle("c", held)
        taken_over = await room.take("d")
        assert [(entry.body, entry.crashes) for entry in taken_over] == [(b"1", 1)]
        await room.settle("d", taken_over)
        assert ids(await room.take("d")) == ["2"]

    @promise()
    async def test_whoever_joins_later_has_the_larger_number(self, room: Room) -> None:
        other = await room.another()
        numbers = [await sit(room, "a", seats=2), await room.broker.join(room.queue, "b", 30)]
        assert await sit(room, "refused", seats=2) == 0
        await room.broker.leave(room.queue, "a")
        numbers += [await other.join(room.queue, "d", 30, seats=2), await other.join(room.queue, "e", 30)]
        assert numbers == sorted(set(numbers)) and numbers[0] > 0

    @promise()
    async def test_numbers_rise_over_a_time_without_anybody(self, room: Room) -> None:
        first = await sit(room, "c")
        await room.broker.leave(room.queue, "c")
        assert await sit(room, "d") > first

    @promise()
    async def test_addresses_have_seats_of_their_own(self, room: Room) -> None:
        await sit(room, "c")
        assert await room.broker.join(room.other_queue, "c", 30, seats=1) > 0

    @promise()
    async def test_who_is_refused_says_nothing_about_order(self, room: Room) -> None:
        await sit(room, "c", lease=1e6)
        assert await room.broker.join(room.queue, "d", 30, seats=1, order=OrderRules(stop=True)) == 0
        await send(room, "1", "2", key=b"k")
        await room.settle("c", await room.take("c"), Kind.DEAD)
        assert ids(await room.take("c")) == ["2"]

    @promise()
    async def test_who_gets_a_seat_says_what_holds_for_order(self, room: Room) -> None:
        await room.broker.join(room.queue, "c", 30, seats=1, order=OrderRules(stop=True))
        await send(room, "1", "2", key=b"k")
        await room.settle("c", await room.take("c"), Kind.DEAD)
        assert await room.take("c") == []

    # -- who shares the shards ---------------------------------------------------------------------------------------------

    @promise()
    async def test_those_who_attend_see_each_other(self, room: Room) -> None:
        assert await room.broker.attend(room.queue, "b", 10) == Attendance(["b"], None)
        other = await room.another()
        assert await other.attend(room.queue, "a", 20) == Attendance(["a", "b"], 10.0)
        room.at(4)
        assert await room.broker.attend(room.queue, "b", 10) == Attendance(["a", "b"], 16.0)

    @promise()
    async def test_who_attends_again_is_a_member_for_so_long_from_then_on(self, room: Room) -> None:
        await room.broker.attend(room.queue, "a", 10)
        await room.broker.attend(room.queue, "b", 1000)
        room.at(5)
        await room.broker.attend(room.queue, "a", 1000)
        assert (await room.broker.attend(room.queue, "b", 10)).next_look == 1000.0

    @promise()
    async def test_who_renews_stays_and_who_does_not_is_forgotten_at_once(self, room: Room) -> None:
        for member in ("a", "b", "c"):
            await room.broker.attend(room.queue, member, 10)
        room.at(8)
        assert await room.broker.renew(room.queue, {"a": 10, "c": 10}) == set()
        room.at(10)
        assert await room.broker.attend(room.queue, "a", 10) == Attendance(["a", "c"], 8.0)
        assert await room.broker.renew(room.queue, {"a": 10, "b": 10}) == {"b"}

    @promise()
    async def test_who_was_forgotten_may_attend_again(self, room: Room) -> None:
        await room.broker.attend(room.queue, "a", 10)
        await room.broker.attend(room.queue, "b", 100)
        room.at(50)
        assert (await room.broker.attend(room.queue, "b", 10)).members == ["b"]
        assert await room.broker.attend(room.queue, "a", 10) == Attendance(["a", "b"], 10.0)

    @promise()
    async def test_who_leaves_attends_no_more(self, room: Room) -> None:
        await room.broker.attend(room.queue, "a", 10)
        await room.broker.attend(room.queue, "b", 10)
        assert await room.broker.leave(room.queue, "a") == 0
        assert await room.broker.leave(room.queue, "never") == 0
        assert await room.broker.attend(room.queue, "b", 10) == Attendance(["b"], None)

    @promise()
    async def test_each_address_has_those_who_attend_there(self, room: Room) -> None:
        await room.broker.attend(room.queue, "a", 10)
        assert await room.broker.attend(room.other_queue, "b", 10) == Attendance(["b"], None)
