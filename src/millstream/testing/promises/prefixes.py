"""Promises about groups that are in every topic whose name begins so."""

from __future__ import annotations

from millstream.address import group_address
from millstream.broker import Post
from millstream.broker.contract import BEGINNING, END
from millstream.testing.room import Promises, Room, ids, promise


async def emit(room: Room, topic: str, *event_ids: str) -> None:
    """As a client does: the topic is opened before anything is published to it."""
    await room.broker.open_topic(topic, {})
    await room.broker.emit(topic, [Post(i, i.encode()) for i in event_ids])


async def take(room: Room, topic: str) -> list[str]:
    address = group_address(topic, "audit")
    await room.join(f"c-{topic}", queue=address)
    return ids(await room.take(f"c-{topic}", 100, queue=address))


async def groups(room: Room, topic: str) -> list[str]:
    return [group.name for group in (await room.broker.inspector.topic(topic)).groups]


class PrefixPromises(Promises):
    """``open_prefix`` and ``remove_prefix``."""

    @promise()
    async def test_topics_whose_names_begin_so_have_the_group_and_no_others(self, room: Room) -> None:
        await emit(room, "orders.eu", "1")
        await emit(room, "other.orders.", "2")
        assert await room.broker.open_prefix("orders.", "audit", BEGINNING) == ["orders.eu"]
        assert await groups(room, "orders.eu") == ["audit"]
        assert await groups(room, "other.orders.") == []
        assert await take(room, "orders.eu") == ["1"]

    @promise()
    async def test_a_topic_that_is_opened_later_has_it_before_its_first_event(self, room: Room) -> None:
        await room.broker.open_prefix("orders.", "audit", END)
        await emit(room, "orders.us", "1", "2")
        assert await groups(room, "orders.us") == ["audit"]
        assert await take(room, "orders.us") == ["1", "2"]

    @promise()
    async def test_in_those_that_there_are_it_begins_where_it_is_told_to(self, room: Room) -> None:
        await emit(room, "orders.eu", "1")
        await room.broker.open_prefix("orders.", "audit", END)
        await emit(room, "orders.eu", "2")
        assert await take(room, "orders.eu") == ["2"]

    @promise()
    async def test_a_group_of_it_that_was_removed_from_one_topic_is_made_again_at_the_beginning(self, room: Room) -> None:
        await room.broker.open_prefix("orders.", "audit", END)
        await emit(room, "orders.eu", "1")
        await room.broker.remove_group(group_address("orders.eu", "audit"))
        await room.broker.open_prefix("orders.", "audit", END)
        assert await take(room, "orders.eu") == ["1"]

    @promise()
    async def test_opening_it_again_tells_of_topics_that_are_not_known_and_moves_nothing(self, room: Room) -> None:
        await emit(room, "orders.eu", "1")
        await room.broker.open_prefix("orders.", "audit", BEGINNING)
        await emit(room, "orders.us", "2")
        assert await room.broker.open_prefix("orders.", "audit", END, ["orders.eu"]) == ["orders.us"]
        assert await room.broker.open_prefix("orders.", "audit", END) == ["orders.eu", "orders.us"]
        assert await take(room, "orders.eu") == ["1"]
        assert await take(room, "orders.us") == ["2"]

    @promise()
    async def test_removed_it_is_in_no_topic_and_in_none_to_come(self, room: Room) -> None:
        await emit(room, "orders.eu", "1")
        await room.broker.open_prefix("orders.", "audit", BEGINNING)
        await room.broker.open_prefix("orders", "other", BEGINNING)
        assert await room.broker.remove_prefix("orders.", "audit")
        await emit(room, "orders.us", "2")
        assert await groups(room, "orders.eu") == ["other"]
        assert await groups(room, "orders.us") == ["other"]
        assert not await room.broker.remove_prefix("orders.", "audit")

    @promise()
    async def test_to_remove_a_prefix_that_there_is_not_removes_nothing(self, room: Room) -> None:
        await room.broker.open_topic("orders.eu", {"audit": BEGINNING})
        await room.broker.open_prefix("orders.e", "audit", BEGINNING)
        await room.broker.open_prefix("orders.", "other", BEGINNING)
        await emit(room, "orders.eu", "1")
        assert not await room.broker.remove_prefix("orders.", "audit")
        assert await groups(room, "orders.eu") == ["audit", "other"]
        assert await take(room, "orders.eu") == ["1"]

    @promise()
    async def test_opening_a_topic_tells_only_of_groups_it_was_asked_for(self, room: Room) -> None:
        await room.broker.open_prefix("orders.", "audit", BEGINNING)
        assert await room.broker.open_topic("orders.eu", {"billing": BEGINNING}) == ["billing"]
        assert await groups(room, "orders.eu") == ["audit", "billing"]
