"""Short functions for the promises of order: messages with an ordering key, in a queue or in the log of a group's topic."""

from __future__ import annotations

from typing import Any

from millstream.broker import Entry, JobView, Post, Receipt
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, ids

KEY = b"k"


async def send(
    backend: BackendUnderTest, *names: str, key: bytes | None = KEY, max_length: int | None = None, **fields: Any
) -> list[Receipt]:
    """Publish messages of one key with given ids: jobs of the queue, or events of the group's topic."""
    posts = [Post(name, name.encode(), "t", key=key, **fields) for name in names]
    if backend.queue.is_queue:
        return await backend.broker.publish(backend.queue, posts, max_length=max_length)
    return await backend.broker.emit(backend.queue.log, posts, max_length=max_length)


async def begin(backend: BackendUnderTest, *names: str, key: bytes | None = KEY) -> Entry:
    """Publish messages of one key. The consumer "c" claims the first; the others are blocked."""
    await backend.join("c", lease=1e6)
    await send(backend, *names, key=key)
    (entry,) = await backend.take("c")
    assert ids([entry]) == [names[0]]
    return entry


async def take_all(backend: BackendUnderTest, consumer: str = "c", count: int = 100) -> list[Entry]:
    """Claim until no more messages are available now. One claim reads only a limited number of blocked messages."""
    found: list[Entry] = []
    while len(found) < count:
        claim = await backend.claim(consumer, count - len(found))
        found += claim.entries
        if claim.next_due != 0:
            break
    return found


async def finish_all(backend: BackendUnderTest, consumer: str = "c") -> list[str]:
    """Claim messages and settle them as done until none is left. Returns their ids in order."""
    done: list[str] = []
    while entries := await take_all(backend, consumer):
        done += ids(entries)
        await backend.settle(consumer, entries)
    return done


async def retry(backend: BackendUnderTest, entry: Entry, delay: float = 5.0, consumer: str = "c", **fields: Any) -> None:
    assert await backend.settle(consumer, [entry], Kind.RETRY, delay=delay, **fields) == 1


async def blocked(backend: BackendUnderTest) -> list[str]:
    """Return the ids of blocked messages, in the order in which the inspector lists them."""
    return [view_id(view) for view in await backend.broker.inspector.jobs(backend.queue, "blocked")]


async def dead(backend: BackendUnderTest, reason: str = "") -> list[str]:
    """Return the ids of the dead letters, oldest first. ``reason`` selects one reason."""
    letters = await backend.broker.inspector.dead_letters(backend.queue)
    return [letter.id for letter in letters if not reason or letter.reason == reason]


def view_id(view: JobView) -> str:
    """Return the id of a view. Bodies in these tests are not encoded messages, so no backend can read an id from them."""
    return view.body.partition(b"#")[0].decode()
