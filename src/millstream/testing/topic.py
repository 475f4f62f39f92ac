"""Short words for the promises of topics, and for tests of what only one room can show."""

from __future__ import annotations

from typing import Any

from millstream.address import group_address
from millstream.broker import Claim, Entry, GroupState, Post, Receipt, TopicState
from millstream.broker.contract import BEGINNING, Place
from millstream.outcome import Kind
from millstream.testing.room import Room, ids

TOPIC = "orders"
A, B = group_address(TOPIC, "a"), group_address(TOPIC, "b")


async def emit(room: Room, *event_ids: str, topic: str = TOPIC, **options: Any) -> list[Receipt]:
    """Events whose ids the publisher gave."""
    bounds = {name: options.pop(name) for name in ("max_length",) if name in options}
    return await room.broker.emit(topic, [Post(i, i.encode(), **options) for i in event_ids], **bounds)


async def emit_serials(
    room: Room, sender: str, *serials: int, topic: str = TOPIC, key: bytes | None = None, **bounds: Any
) -> list[Receipt]:
    """Events with generated ids."""
    posts = [Post(f"{sender}-{n}", f"{sender}-{n}".encode(), serial=n, key=key) for n in serials]
    return await room.broker.emit(topic, posts, sender=sender, **bounds)


async def begin(room: Room, *groups: str, start: Place = BEGINNING, **retention: Any) -> None:
    """Groups of the topic, each with one consumer of its name."""
    await room.broker.open_topic(TOPIC, dict.fromkeys(groups, start), **retention)
    for group in groups:
        await room.join(group, lease=1e6, queue=group_address(TOPIC, group))


async def claim(room: Room, group: str, count: int = 1000, **options: Any) -> Claim:
    return await room.claim(group, count, queue=group_address(TOPIC, group), **options)


async def take(room: Room, group: str, count: int = 1000, **options: Any) -> list[Entry]:
    return (await claim(room, group, count, **options)).entries


async def end(room: Room, group: str, entries: list[Entry], kind: Kind = Kind.DONE, **fields: Any) -> int:
    return await room.settle(group, entries, kind, queue=group_address(TOPIC, group), **fields)


async def finish(room: Room, group: str, count: int = 1000) -> list[str]:
    """Claim, and settle as done; whose events these were."""
    entries = await take(room, group, count)
    await end(room, group, entries)
    return ids(entries)


async def state(room: Room) -> TopicState:
    return await room.broker.inspector.topic(TOPIC)


async def group_state(room: Room, name: str) -> GroupState:
    return next(group for group in (await state(room)).groups if group.name == name)
