"""How many may serve an address, who came later, and who shares its shards."""

from __future__ import annotations

import pytest

from millstream.broker import Membership, OrderRules
from millstream.errors import LeaseLost
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise
from millstream.testing.keyed import send
from millstream.testing.promises.leases import LAPSE, MARK


async def join_within(backend: BackendUnderTest, consumer: str, max_consumers: int = 1, lease: float = 10.0) -> int:
    return await backend.broker.join(backend.queue, consumer, lease, max_consumers=max_consumers)


class MaxConsumersPromises(Promises):
    @promise()
    async def test_a_seat_is_refused_while_all_are_taken_and_nothing_is_written(self, backend: BackendUnderTest) -> None:
        assert await join_within(backend, "c") > 0
        before = await backend.broker.inspector.queue(backend.queue)
        assert await join_within(backend, "d") == 0
        assert await backend.broker.inspector.queue(backend.queue) == before
        with pytest.raises(LeaseLost):
            await backend.claim("d")

    @promise()
    async def test_there_are_as_many_seats_as_one_says(self, backend: BackendUnderTest) -> None:
        granted = [await join_within(backend, f"c{n}", max_consumers=3) > 0 for n in range(5)]
        assert granted == [True, True, True, False, False]
        assert await join_within(backend, "more", max_consumers=4) > 0

    @promise()
    async def test_who_asks_for_no_seat_has_one_anyway_and_counts(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c")
        await backend.join("d")
        assert (await backend.broker.inspector.queue(backend.queue)).consumers == 2
        assert await join_within(backend, "e", max_consumers=2) == 0

    @promise()
    async def test_a_join_for_a_seat_that_is_sent_again_finds_its_own(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c")
        assert await join_within(backend, "c") > 0
        assert (await backend.broker.inspector.queue(backend.queue)).consumers == 1

    @promise()
    async def test_who_leaves_leaves_a_seat(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c")
        await backend.broker.leave(backend.queue, "c")
        assert await join_within(backend, "d") > 0

    @promise()
    async def test_the_seat_of_one_whose_lease_is_over_is_free_at_the_second_look(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c", lease=10)
        backend.at(10 + MARK)
        assert await join_within(backend, "d") == 0
        backend.at(10 + LAPSE)
        assert await join_within(backend, "d") > 0
        assert (await backend.totals())["lapsed"] == 1

    @promise()
    async def test_one_look_takes_no_seat_however_late_it_comes(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c", lease=10)
        backend.at(10_000)
        assert await join_within(backend, "d") == 0
        assert await backend.broker.renew(backend.queue, {"c": 10}) == set()

    @promise()
    async def test_a_renewal_between_the_looks_keeps_the_seat(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c", lease=10)
        backend.at(10 + MARK)
        assert await join_within(backend, "d") == 0
        await backend.broker.renew(backend.queue, {"c": 10})
        backend.at(10 + LAPSE)
        assert await join_within(backend, "d") == 0

    @promise()
    async def test_who_takes_a_seat_over_is_given_what_was_held_and_the_one_before_settles_nothing(
        self, backend: BackendUnderTest
    ) -> None:
        await join_within(backend, "c", lease=10)
        await send(backend, "1", "2", key=b"k")
        held = await backend.take("c")
        for seconds in (10 + MARK, 10 + LAPSE):
            backend.at(seconds)
            await join_within(backend, "d", lease=1e6)
        with pytest.raises(LeaseLost):
            await backend.settle("c", held)
        taken_over = await backend.take("d")
        assert [(entry.body, entry.crashes) for entry in taken_over] == [(b"1", 1)]
        await backend.settle("d", taken_over)
        assert ids(await backend.take("d")) == ["2"]

    @promise()
    async def test_whoever_joins_later_has_the_larger_number(self, backend: BackendUnderTest) -> None:
        other = await backend.another()
        numbers = [await join_within(backend, "a", max_consumers=2), await backend.broker.join(backend.queue, "b", 30)]
        assert await join_within(backend, "refused", max_consumers=2) == 0
        await backend.broker.leave(backend.queue, "a")
        numbers += [await other.join(backend.queue, "d", 30, max_consumers=2), await other.join(backend.queue, "e", 30)]
        assert numbers == sorted(set(numbers)) and numbers[0] > 0

    @promise()
    async def test_numbers_rise_over_a_time_without_anybody(self, backend: BackendUnderTest) -> None:
        first = await join_within(backend, "c")
        await backend.broker.leave(backend.queue, "c")
        assert await join_within(backend, "d") > first

    @promise()
    async def test_addresses_have_seats_of_their_own(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c")
        assert await backend.broker.join(backend.other_queue, "c", 30, max_consumers=1) > 0

    @promise()
    async def test_who_is_refused_says_nothing_about_order(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c", lease=1e6)
        assert await backend.broker.join(backend.queue, "d", 30, max_consumers=1, order=OrderRules(stop=True)) == 0
        await send(backend, "1", "2", key=b"k")
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_who_gets_a_seat_says_what_holds_for_order(self, backend: BackendUnderTest) -> None:
        await backend.broker.join(backend.queue, "c", 30, max_consumers=1, order=OrderRules(stop=True))
        await send(backend, "1", "2", key=b"k")
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        assert await backend.take("c") == []

    # -- who shares the shards ---------------------------------------------------------------------------------------------

    @promise()
    async def test_those_who_attend_see_each_other(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.join_members(backend.queue, "b", 10) == Membership(["b"], None)
        other = await backend.another()
        assert await other.join_members(backend.queue, "a", 20) == Membership(["a", "b"], 10.0)
        backend.at(4)
        assert await backend.broker.join_members(backend.queue, "b", 10) == Membership(["a", "b"], 16.0)

    @promise()
    async def test_who_attends_again_is_a_member_for_so_long_from_then_on(self, backend: BackendUnderTest) -> None:
        await backend.broker.join_members(backend.queue, "a", 10)
        await backend.broker.join_members(backend.queue, "b", 1000)
        backend.at(5)
        await backend.broker.join_members(backend.queue, "a", 1000)
        assert (await backend.broker.join_members(backend.queue, "b", 10)).next_check == 1000.0

    @promise()
    async def test_who_renews_stays_and_who_does_not_is_forgotten_at_once(self, backend: BackendUnderTest) -> None:
        for member in ("a", "b", "c"):
            await backend.broker.join_members(backend.queue, member, 10)
        backend.at(8)
        assert await backend.broker.renew(backend.queue, {"a": 10, "c": 10}) == set()
        backend.at(10)
        assert await backend.broker.join_members(backend.queue, "a", 10) == Membership(["a", "c"], 8.0)
        assert await backend.broker.renew(backend.queue, {"a": 10, "b": 10}) == {"b"}

    @promise()
    async def test_who_was_forgotten_may_attend_again(self, backend: BackendUnderTest) -> None:
        await backend.broker.join_members(backend.queue, "a", 10)
        await backend.broker.join_members(backend.queue, "b", 100)
        backend.at(50)
        assert (await backend.broker.join_members(backend.queue, "b", 10)).members == ["b"]
        assert await backend.broker.join_members(backend.queue, "a", 10) == Membership(["a", "b"], 10.0)

    @promise()
    async def test_who_leaves_attends_no_more(self, backend: BackendUnderTest) -> None:
        await backend.broker.join_members(backend.queue, "a", 10)
        await backend.broker.join_members(backend.queue, "b", 10)
        assert await backend.broker.leave(backend.queue, "a") == 0
        assert await backend.broker.leave(backend.queue, "never") == 0
        assert await backend.broker.join_members(backend.queue, "b", 10) == Membership(["b"], None)

    @promise()
    async def test_each_address_has_those_who_attend_there(self, backend: BackendUnderTest) -> None:
        await backend.broker.join_members(backend.queue, "a", 10)
        assert await backend.broker.join_members(backend.other_queue, "b", 10) == Membership(["b"], None)
