"""Promises about retention: how long a topic's log keeps an event, and for which groups."""

from __future__ import annotations

import pytest

from millstream.broker.values import END
from millstream.errors import LeaseLost
from millstream.model.address import Address
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise
from millstream.testing.topic import TOPIC, A, begin, claim, emit, emit_serials, end, finish, state, take


class KeepingPromises(Promises):
    @promise()
    async def test_an_event_stays_in_the_log_until_every_group_has_settled_it(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1", "2", "3")
        await finish(backend, "a")
        held = await take(backend, "b")
        backend.at(2)
        await claim(backend, "a")
        assert (await state(backend)).length == 3
        await end(backend, "b", held[:1] + held[2:])
        backend.at(4)
        await claim(backend, "a")
        assert (await state(backend)).length == 2
        await end(backend, "b", held[1:2])
        backend.at(6)
        await claim(backend, "a")
        assert (await state(backend)).length == 0

    @promise()
    async def test_a_claim_trims_the_log_one_second_after_the_last_trim(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "1")
        await finish(backend, "a")
        backend.at(1)
        await claim(backend, "a", 0)
        assert (await state(backend)).length == 0

    @promise()
    async def test_many_settled_events_are_trimmed_up_to_the_first_unsettled_one(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        for n in range(10):
            await emit(backend, *[f"{n}-{m}" for m in range(150)])
        while len(await finish(backend, "a", 200)):
            pass
        await emit(backend, "held", "next")
        held = await take(backend, "a", 1)
        await finish(backend, "a")
        backend.at(2)
        await claim(backend, "a", 0)
        assert (await state(backend)).length == 2
        assert await end(backend, "a", held) == 1

    @promise()
    async def test_scheduled_retries_and_dead_events_do_not_stay_in_the_log(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "retried", "dead")
        retried, dead = await take(backend, "a")
        await end(backend, "a", [retried], Kind.RETRY, delay=60)
        await end(backend, "a", [dead], Kind.DEAD)
        backend.at(2)
        await claim(backend, "a")
        assert (await state(backend)).length == 0
        backend.at(60)
        assert ids(await take(backend, "a")) == ["retried"]

    @promise()
    async def test_a_topic_without_groups_keeps_every_event(self, backend: BackendUnderTest) -> None:
        await emit(backend, "1", "2")
        backend.at(1000)
        await emit_serials(backend, "s", 1)
        assert (await state(backend)).length == 3

    @promise()
    async def test_a_topic_without_groups_is_trimmed_to_its_retention(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic(TOPIC, {}, keep_count=2)
        await emit(backend, "1", "2", "3")
        backend.at(2)
        await emit_serials(backend, "s", 1)
        await begin(backend, "a", keep_count=2)
        assert ids(await take(backend, "a")) == ["3", "s-1"]

    @promise()
    async def test_keep_retains_settled_events_by_age(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep=10)
        for second in (0, 5, 10):
            backend.at(second)
            await emit(backend, str(second))
            await finish(backend, "a")
        backend.at(12)
        await claim(backend, "a")
        await begin(backend, "b", keep=10)
        assert await finish(backend, "b") == ["5", "10"]
        backend.at(30)
        await claim(backend, "b")
        assert (await state(backend)).length == 0

    @promise()
    async def test_keep_count_retains_settled_events_by_number(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=3)
        await emit(backend, *"123456789")
        await finish(backend, "a")
        backend.at(2)
        await claim(backend, "a")
        await begin(backend, "b", keep_count=3)
        assert ids(await take(backend, "b")) == ["7", "8", "9"]

    @promise()
    async def test_with_keep_and_keep_count_an_event_is_kept_while_both_allow_it(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep=10, keep_count=3)
        await emit(backend, "1", "2")
        backend.at(5)
        await emit(backend, "3", "4")
        await finish(backend, "a")
        backend.at(7)
        await claim(backend, "a")
        assert (await state(backend)).length == 3
        backend.at(12)
        await claim(backend, "a")
        assert (await state(backend)).length == 2

    @promise()
    async def test_retention_never_removes_an_unsettled_event(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b", keep=0.0, keep_count=0)
        await emit(backend, "1", "2", "3")
        await finish(backend, "a")
        backend.at(100)
        await claim(backend, "a")
        assert ids(await take(backend, "b")) == ["1", "2", "3"]

    @promise()
    async def test_joining_does_not_change_the_retention(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep_count=2)
        await backend.join("second", queue=A)
        await emit(backend, "1", "2", "3")
        await finish(backend, "a")
        backend.at(2)
        await claim(backend, "a")
        assert (await state(backend)).length == 2

    @promise()
    async def test_opening_a_topic_without_retention_settings_leaves_the_retention_unchanged(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a", keep=10, keep_count=2)
        await (await backend.another()).open_topic(TOPIC, {})
        await emit(backend, "1", "2", "3")
        await finish(backend, "a")
        backend.at(2)
        await claim(backend, "a")
        assert (await state(backend)).length == 2
        backend.at(12)
        await claim(backend, "a")
        assert (await state(backend)).length == 0

    @promise()
    async def test_retention_can_be_changed_and_zero_disables_it(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", keep=1000)
        await emit(backend, "1", "2", "3")
        await finish(backend, "a")
        for second, keep, keep_count, left in ((2, None, None, 3), (4, None, 2, 2), (6, None, 0, 2), (8, 0, None, 0)):
            await backend.broker.open_topic(TOPIC, {}, keep=keep, keep_count=keep_count)
            backend.at(second)
            await claim(backend, "a")
            assert (await state(backend)).length == left

    @promise()
    async def test_a_topic_without_groups_whose_retention_is_disabled_keeps_every_event(
        self, backend: BackendUnderTest
    ) -> None:
        await backend.broker.open_topic(TOPIC, {}, keep=1, keep_count=1)
        await backend.broker.open_topic(TOPIC, {}, keep=0, keep_count=0)
        await emit(backend, "1", "2")
        backend.at(1000)
        await emit_serials(backend, "s", 1)
        assert (await state(backend)).length == 3

    @promise()
    async def test_a_removed_group_keeps_nothing_in_the_log_and_leaves_nothing_behind(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "slow")
        await emit(backend, "1", "2", "3", "4")
        await finish(backend, "a")
        slow = Address.of_group(TOPIC, "slow")
        dead, retried, _ = await take(backend, "slow", 3)
        await end(backend, "slow", [dead], Kind.DEAD)
        await end(backend, "slow", [retried], Kind.RETRY, delay=5)
        assert await backend.broker.remove_group(slow)
        assert not await backend.broker.remove_group(slow)
        with pytest.raises(LeaseLost):
            await claim(backend, "slow")
        backend.at(2)
        await claim(backend, "a")
        assert (await state(backend)).length == 0
        assert [group.name for group in (await state(backend)).groups] == ["a"]
        assert await backend.broker.inspector.dead_letters(slow) == []
        await begin(backend, "slow")
        await emit(backend, "5")
        backend.at(10)
        assert ids(await take(backend, "slow")) == ["5"]

    @promise()
    async def test_only_a_group_can_be_removed_or_moved(self, backend: BackendUnderTest) -> None:
        assert not await backend.broker.remove_group(Address.of_group("none", "none"))
        assert not await backend.broker.seek(Address.of_group("none", "none"), END)
        for address in (Address("q"), Address("t/")):
            with pytest.raises(ValueError, match="group"):
                await backend.broker.remove_group(address)
            with pytest.raises(ValueError, match="group"):
                await backend.broker.seek(address, END)
