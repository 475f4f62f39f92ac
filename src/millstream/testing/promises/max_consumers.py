"""Promises about the number of consumers of an address, the numbers of their joins, and the members that share its shards."""

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
    async def test_a_join_beyond_max_consumers_is_refused_and_writes_nothing(self, backend: BackendUnderTest) -> None:
        assert await join_within(backend, "c") > 0
        before = await backend.broker.inspector.queue(backend.queue)
        assert await join_within(backend, "d") == 0
        assert await backend.broker.inspector.queue(backend.queue) == before
        with pytest.raises(LeaseLost):
            await backend.claim("d")

    @promise()
    async def test_each_join_sets_its_own_max_consumers(self, backend: BackendUnderTest) -> None:
        granted = [await join_within(backend, f"c{n}", max_consumers=3) > 0 for n in range(5)]
        assert granted == [True, True, True, False, False]
        assert await join_within(backend, "more", max_consumers=4) > 0

    @promise()
    async def test_a_join_without_max_consumers_always_succeeds_and_counts(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c")
        await backend.join("d")
        assert (await backend.broker.inspector.queue(backend.queue)).consumers == 2
        assert await join_within(backend, "e", max_consumers=2) == 0

    @promise()
    async def test_a_consumer_that_joins_again_is_not_refused_and_counts_once(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c")
        assert await join_within(backend, "c") > 0
        assert (await backend.broker.inspector.queue(backend.queue)).consumers == 1

    @promise()
    async def test_a_consumer_that_leaves_does_not_count(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c")
        await backend.broker.leave(backend.queue, "c")
        assert await join_within(backend, "d") > 0

    @promise()
    async def test_an_overdue_consumer_counts_until_the_second_lease_check(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c", lease=10)
        backend.at(10 + MARK)
        assert await join_within(backend, "d") == 0
        backend.at(10 + LAPSE)
        assert await join_within(backend, "d") > 0
        assert (await backend.totals())["lapsed"] == 1

    @promise()
    async def test_a_single_lease_check_never_replaces_a_consumer_however_overdue_it_is(
        self, backend: BackendUnderTest
    ) -> None:
        await join_within(backend, "c", lease=10)
        backend.at(10_000)
        assert await join_within(backend, "d") == 0
        assert await backend.broker.renew(backend.queue, {"c": 10}) == set()

    @promise()
    async def test_a_consumer_that_renews_between_the_lease_checks_still_counts(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c", lease=10)
        backend.at(10 + MARK)
        assert await join_within(backend, "d") == 0
        await backend.broker.renew(backend.queue, {"c": 10})
        backend.at(10 + LAPSE)
        assert await join_within(backend, "d") == 0

    @promise()
    async def test_a_consumer_that_replaces_another_takes_over_its_messages_and_the_other_cannot_settle(
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
    async def test_a_later_join_returns_a_larger_number(self, backend: BackendUnderTest) -> None:
        other = await backend.another()
        numbers = [await join_within(backend, "a", max_consumers=2), await backend.broker.join(backend.queue, "b", 30)]
        assert await join_within(backend, "refused", max_consumers=2) == 0
        await backend.broker.leave(backend.queue, "a")
        numbers += [await other.join(backend.queue, "d", 30, max_consumers=2), await other.join(backend.queue, "e", 30)]
        assert numbers == sorted(set(numbers)) and numbers[0] > 0

    @promise()
    async def test_join_numbers_still_rise_after_all_consumers_have_left(self, backend: BackendUnderTest) -> None:
        first = await join_within(backend, "c")
        await backend.broker.leave(backend.queue, "c")
        assert await join_within(backend, "d") > first

    @promise()
    async def test_each_address_counts_its_own_consumers(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c")
        assert await backend.broker.join(backend.other_queue, "c", 30, max_consumers=1) > 0

    @promise()
    async def test_a_refused_join_does_not_change_the_order_rules(self, backend: BackendUnderTest) -> None:
        await join_within(backend, "c", lease=1e6)
        assert await backend.broker.join(backend.queue, "d", 30, max_consumers=1, order=OrderRules(stop=True)) == 0
        await send(backend, "1", "2", key=b"k")
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        assert ids(await backend.take("c")) == ["2"]

    @promise()
    async def test_a_consumer_that_joins_sets_the_order_rules(self, backend: BackendUnderTest) -> None:
        await backend.broker.join(backend.queue, "c", 30, max_consumers=1, order=OrderRules(stop=True))
        await send(backend, "1", "2", key=b"k")
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        assert await backend.take("c") == []

    # -- members -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_members_see_each_other(self, backend: BackendUnderTest) -> None:
        assert await backend.broker.join_members(backend.queue, "b", 10) == Membership(["b"], None)
        other = await backend.another()
        assert await other.join_members(backend.queue, "a", 20) == Membership(["a", "b"], 10.0)
        backend.at(4)
        assert await backend.broker.join_members(backend.queue, "b", 10) == Membership(["a", "b"], 16.0)

    @promise()
    async def test_a_member_that_joins_again_stays_for_its_lease_from_then_on(self, backend: BackendUnderTest) -> None:
        await backend.broker.join_members(backend.queue, "a", 10)
        await backend.broker.join_members(backend.queue, "b", 1000)
        backend.at(5)
        await backend.broker.join_members(backend.queue, "a", 1000)
        assert (await backend.broker.join_members(backend.queue, "b", 10)).next_check == 1000.0

    @promise()
    async def test_a_member_that_does_not_renew_is_removed_at_its_deadline(self, backend: BackendUnderTest) -> None:
        for member in ("a", "b", "c"):
            await backend.broker.join_members(backend.queue, member, 10)
        backend.at(8)
        assert await backend.broker.renew(backend.queue, {"a": 10, "c": 10}) == set()
        backend.at(10)
        assert await backend.broker.join_members(backend.queue, "a", 10) == Membership(["a", "c"], 8.0)
        assert await backend.broker.renew(backend.queue, {"a": 10, "b": 10}) == {"b"}

    @promise()
    async def test_a_member_that_was_removed_may_join_again(self, backend: BackendUnderTest) -> None:
        await backend.broker.join_members(backend.queue, "a", 10)
        await backend.broker.join_members(backend.queue, "b", 100)
        backend.at(50)
        assert (await backend.broker.join_members(backend.queue, "b", 10)).members == ["b"]
        assert await backend.broker.join_members(backend.queue, "a", 10) == Membership(["a", "b"], 10.0)

    @promise()
    async def test_a_member_that_leaves_is_removed(self, backend: BackendUnderTest) -> None:
        await backend.broker.join_members(backend.queue, "a", 10)
        await backend.broker.join_members(backend.queue, "b", 10)
        assert await backend.broker.leave(backend.queue, "a") == 0
        assert await backend.broker.leave(backend.queue, "never") == 0
        assert await backend.broker.join_members(backend.queue, "b", 10) == Membership(["b"], None)

    @promise()
    async def test_each_address_has_its_own_members(self, backend: BackendUnderTest) -> None:
        await backend.broker.join_members(backend.queue, "a", 10)
        assert await backend.broker.join_members(backend.other_queue, "b", 10) == Membership(["b"], None)
