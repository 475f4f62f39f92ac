"""How long a topic's log keeps an event, and for whom."""

from __future__ import annotations

import pytest

from millstream.address import group_address
from millstream.broker.contract import END
from millstream.errors import LeaseLost
from millstream.outcome import Kind
from millstream.testing.room import Promises, Room, ids, promise
from millstream.testing.topic import TOPIC, A, begin, claim, emit, emit_serials, end, finish, state, take


class KeepingPromises(Promises):
    @promise()
    async def test_an_event_stays_until_every_group_has_settled_it(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1", "2", "3")
        await finish(room, "a")
        held = await take(room, "b")
        room.at(2)
        await claim(room, "a")
        assert (await state(room)).length == 3
        await end(room, "b", held[:1] + held[2:])
        room.at(4)
        await claim(room, "a")
        assert (await state(room)).length == 2
        await end(room, "b", held[1:2])
        room.at(6)
        await claim(room, "a")
        assert (await state(room)).length == 0

    @promise()
    async def test_a_claim_a_second_after_the_last_trim_is_enough(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1")
        await finish(room, "a")
        room.at(1)
        await claim(room, "a", 0)
        assert (await state(room)).length == 0

    @promise()
    async def test_many_events_leave_too(self, room: Room) -> None:
        await begin(room, "a")
        for n in range(10):
            await emit(room, *[f"{n}-{m}" for m in range(150)])
        while len(await finish(room, "a", 200)):
            pass
        await emit(room, "held", "next")
        held = await take(room, "a", 1)
        await finish(room, "a")
        room.at(2)
        await claim(room, "a", 0)
        assert (await state(room)).length == 2
        assert await end(room, "a", held) == 1

    @promise()
    async def test_what_waits_for_a_retry_or_is_dead_does_not_stay_in_the_log(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "retried", "dead")
        retried, dead = await take(room, "a")
        await end(room, "a", [retried], Kind.RETRY, delay=60)
        await end(room, "a", [dead], Kind.DEAD)
        room.at(2)
        await claim(room, "a")
        assert (await state(room)).length == 0
        room.at(60)
        assert ids(await take(room, "a")) == ["retried"]

    @promise()
    async def test_a_topic_without_groups_keeps_everything(self, room: Room) -> None:
        await emit(room, "1", "2")
        room.at(1000)
        await emit_serials(room, "s", 1)
        assert (await state(room)).length == 3

    @promise()
    async def test_a_topic_without_groups_keeps_no_more_than_its_retention(self, room: Room) -> None:
        await room.broker.open_topic(TOPIC, {}, keep_count=2)
        await emit(room, "1", "2", "3")
        room.at(2)
        await emit_serials(room, "s", 1)
        await begin(room, "a", keep_count=2)
        assert ids(await take(room, "a")) == ["3", "s-1"]

    @promise()
    async def test_history_is_kept_by_age(self, room: Room) -> None:
        await begin(room, "a", keep=10)
        for second in (0, 5, 10):
            room.at(second)
            await emit(room, str(second))
            await finish(room, "a")
        room.at(12)
        await claim(room, "a")
        await begin(room, "b", keep=10)
        assert await finish(room, "b") == ["5", "10"]
        room.at(30)
        await claim(room, "b")
        assert (await state(room)).length == 0

    @promise()
    async def test_history_is_kept_by_count(self, room: Room) -> None:
        await begin(room, "a", keep_count=3)
        await emit(room, *"123456789")
        await finish(room, "a")
        room.at(2)
        await claim(room, "a")
        await begin(room, "b", keep_count=3)
        assert ids(await take(room, "b")) == ["7", "8", "9"]

    @promise()
    async def test_history_of_bounded_age_and_count_is_kept_while_both_allow_it(self, room: Room) -> None:
        await begin(room, "a", keep=10, keep_count=3)
        await emit(room, "1", "2")
        room.at(5)
        await emit(room, "3", "4")
        await finish(room, "a")
        room.at(7)
        await claim(room, "a")
        assert (await state(room)).length == 3
        room.at(12)
        await claim(room, "a")
        assert (await state(room)).length == 2

    @promise()
    async def test_history_never_includes_less_than_what_is_not_settled(self, room: Room) -> None:
        await begin(room, "a", "b", keep=0.0, keep_count=0)
        await emit(room, "1", "2", "3")
        await finish(room, "a")
        room.at(100)
        await claim(room, "a")
        assert ids(await take(room, "b")) == ["1", "2", "3"]

    @promise()
    async def test_a_consumer_that_joins_changes_no_retention(self, room: Room) -> None:
        await begin(room, "a", keep_count=2)
        await room.join("second", queue=A)
        await emit(room, "1", "2", "3")
        await finish(room, "a")
        room.at(2)
        await claim(room, "a")
        assert (await state(room)).length == 2

    @promise()
    async def test_who_opens_a_topic_and_says_nothing_of_its_retention_leaves_it_as_it_is(self, room: Room) -> None:
        await begin(room, "a", keep=10, keep_count=2)
        await (await room.another()).open_topic(TOPIC, {})
        await emit(room, "1", "2", "3")
        await finish(room, "a")
        room.at(2)
        await claim(room, "a")
        assert (await state(room)).length == 2
        room.at(12)
        await claim(room, "a")
        assert (await state(room)).length == 0

    @promise()
    async def test_retention_is_another_once_someone_says_so_and_ends_with_0(self, room: Room) -> None:
        await begin(room, "a", keep=1000)
        await emit(room, "1", "2", "3")
        await finish(room, "a")
        for second, keep, keep_count, left in ((2, None, None, 3), (4, None, 2, 2), (6, None, 0, 2), (8, 0, None, 0)):
            await room.broker.open_topic(TOPIC, {}, keep=keep, keep_count=keep_count)
            room.at(second)
            await claim(room, "a")
            assert (await state(room)).length == left

    @promise()
    async def test_a_topic_without_groups_and_retention_keeps_everything_again(self, room: Room) -> None:
        await room.broker.open_topic(TOPIC, {}, keep=1, keep_count=1)
        await room.broker.open_topic(TOPIC, {}, keep=0, keep_count=0)
        await emit(room, "1", "2")
        room.at(1000)
        await emit_serials(room, "s", 1)
        assert (await state(room)).length == 3

    @promise()
    async def test_a_group_that_is_removed_holds_nothing_back_and_leaves_nothing(self, room: Room) -> None:
        await begin(room, "a", "slow")
        await emit(room, "1", "2", "3", "4")
        await finish(room, "a")
        slow = group_address(TOPIC, "slow")
        dead, retried, _ = await take(room, "slow", 3)
        await end(room, "slow", [dead], Kind.DEAD)
        await end(room, "slow", [retried], Kind.RETRY, delay=5)
        assert await room.broker.remove_group(slow)
        assert not await room.broker.remove_group(slow)
        with pytest.raises(LeaseLost):
            await claim(room, "slow")
        room.at(2)
        await claim(room, "a")
        assert (await state(room)).length == 0
        assert [group.name for group in (await state(room)).groups] == ["a"]
        assert await room.broker.inspector.dead_letters(slow) == []
        await begin(room, "slow")
        await emit(room, "5")
        room.at(10)
        assert ids(await take(room, "slow")) == ["5"]

    @promise()
    async def test_only_a_group_can_be_removed_or_moved(self, room: Room) -> None:
        assert not await room.broker.remove_group(group_address("none", "none"))
        assert not await room.broker.seek(group_address("none", "none"), END)
        for address in ("q", "t>"):
            with pytest.raises(ValueError, match="group"):
                await room.broker.remove_group(address)
            with pytest.raises(ValueError, match="group"):
                await room.broker.seek(address, END)
