"""Short words for the promises of order: messages with a key, in a queue or in the log that a group reads."""

from __future__ import annotations

from typing import Any

from millstream.broker import Entry, JobView, Post, Receipt
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, ids

KEY = b"k"


async def send(
    backend: BackendUnderTest, *names: str, key: bytes | None = KEY, max_length: int | None = None, **fields: Any
) -> list[Receipt]:
    """Messages of one key, their ids given: jobs of the queue, or events of the group's topic."""
    posts = [Post(name, name.encode(), "t", key=key, **fields) for name in names]
    if backend.queue.is_queue:
        return await backend.broker.publish(backend.queue, posts, max_length=max_length)
    return await backend.broker.emit(backend.queue.log, posts, max_length=max_length)


async def begin(backend: BackendUnderTest, *names: str, key: bytes | None = KEY) -> Entry:
    """Messages of one key, the first of which is out, claimed by a consumer named "c"; the others are blocked."""
    await backend.join("c", lease=1e6)
    await send(backend, *names, key=key)
    (entry,) = await backend.take("c")
    assert ids([entry]) == [names[0]]
    return entry


async def take_all(backend: BackendUnderTest, consumer: str = "c", count: int = 100) -> list[Entry]:
    """Claim until it is said that nothing is to be found at once: one claim reads on behind blocked ones only so far."""
    found: list[Entry] = []
    while len(found) < count:
        claim = await backend.claim(consumer, count - len(found))
        found += claim.entries
        if claim.next_due != 0:
            break
    return found


async def finish_all(backend: BackendUnderTest, consumer: str = "c") -> list[str]:
    """Claim and settle as done, until nothing is left; in which order."""
    done: list[str] = []
    while entries := await take_all(backend, consumer):
        done += ids(entries)
        await backend.settle(consumer, entries)
    return done


async def retry(backend: BackendUnderTest, entry: Entry, delay: float = 5.0, consumer: str = "c", **fields: Any) -> None:
    assert await backend.settle(consumer, [entry], Kind.RETRY, delay=delay, **fields) == 1


async def blocked(backend: BackendUnderTest) -> list[str]:
    """Who waits for the turn, as listed."""
    return [view_id(view) for view in await backend.broker.inspector.jobs(backend.queue, "blocked")]


async def dead(backend: BackendUnderTest, reason: str = "") -> list[str]:
    """Whose letters there are, oldest first; of one reason, if it is said."""
    letters = await backend.broker.inspector.dead_letters(backend.queue)
    return [letter.id for letter in letters if not reason or letter.reason == reason]


def view_id(view: JobView) -> str:
    """Whose view it is: bodies of these tests are no messages from which a backend could read it."""
    return view.body.partition(b"#")[0].decode()
