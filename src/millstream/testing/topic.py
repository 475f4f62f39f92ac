"""Short functions for the promises of topics, and for topic tests of a single backend."""

from __future__ import annotations

from typing import Any

from millstream.broker import Claim, Entry, GroupState, Post, Receipt, TopicState
from millstream.broker.values import BEGINNING, LogPosition
from millstream.model.address import Address
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, ids

TOPIC = "orders"
A, B = Address.of_group(TOPIC, "a"), Address.of_group(TOPIC, "b")


async def emit(backend: BackendUnderTest, *event_ids: str, topic: str = TOPIC, **options: Any) -> list[Receipt]:
    """Emit events with given ids."""
    bounds = {name: options.pop(name) for name in ("max_length",) if name in options}
    return await backend.broker.emit(topic, [Post(i, i.encode(), **options) for i in event_ids], **bounds)


async def emit_serials(
    backend: BackendUnderTest, sender: str, *serials: int, topic: str = TOPIC, key: bytes | None = None, **bounds: Any
) -> list[Receipt]:
    """Emit events with generated ids."""
    posts = [Post(f"{sender}-{n}", f"{sender}-{n}".encode(), serial=n, key=key) for n in serials]
    return await backend.broker.emit(topic, posts, sender=sender, **bounds)


async def begin(backend: BackendUnderTest, *groups: str, start: LogPosition = BEGINNING, **retention: Any) -> None:
    """Open the topic with these groups. Each gets one consumer with the group's name."""
    await backend.broker.open_topic(TOPIC, dict.fromkeys(groups, start), **retention)
    for group in groups:
        await backend.join(group, lease=1e6, queue=Address.of_group(TOPIC, group))


async def claim(backend: BackendUnderTest, group: str, count: int = 1000, **options: Any) -> Claim:
    return await backend.claim(group, count, queue=Address.of_group(TOPIC, group), **options)


async def take(backend: BackendUnderTest, group: str, count: int = 1000, **options: Any) -> list[Entry]:
    return (await claim(backend, group, count, **options)).entries


async def end(backend: BackendUnderTest, group: str, entries: list[Entry], kind: Kind = Kind.DONE, **fields: Any) -> int:
    return await backend.settle(group, entries, kind, queue=Address.of_group(TOPIC, group), **fields)


async def finish(backend: BackendUnderTest, group: str, count: int = 1000) -> list[str]:
    """Claim events and settle them as done. Returns their ids."""
    entries = await take(backend, group, count)
    await end(backend, group, entries)
    return ids(entries)


async def state(backend: BackendUnderTest) -> TopicState:
    return await backend.broker.inspector.topic(TOPIC)


async def group_state(backend: BackendUnderTest, name: str) -> GroupState:
    return next(group for group in (await state(backend)).groups if group.name == name)
