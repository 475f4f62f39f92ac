"""Helpers for the tests of apps and clients: a backend and an event loop per test, and a simulated worker."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ParamSpec

import msgspec

from millstream import Millstream
from millstream.broker import Entry, Post
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter
from millstream.model.ending import Ending, encode_ending
from millstream.model.message import ErrorNote, Message, decode_message
from millstream.model.outcome import Kind, Outcome
from millstream.model.types import DeadReason

DEFAULT = Address("default")

P = ParamSpec("P")

PATIENCE = 30.0
"""Seconds after which a waiting test fails."""


@dataclass
class Place:
    """The backend of the apps of this test."""

    url: str = "memory://"


place = Place()


def new_app(**options: Any) -> Millstream:
    """Return an app with its own namespace."""
    return Millstream(place.url, namespace=f"test-{secrets.token_hex(6)}", **options)


Settle = Callable[[Entry, Message], Outcome]


def looped(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on its own event loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE))

    return run


async def until(happened: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.001)


async def until_idle(app: Millstream, address: Address) -> None:
    """Wait until a queue or group has no ready, running, scheduled or blocked message."""
    async with asyncio.timeout(PATIENCE):
        while True:
            state = await app.inspector.queue(address)
            if not (state.ready or state.running or state.scheduled or state.blocked):
                return
            await asyncio.sleep(0.001)


def done(value: Any = None, ttl: float = 600.0) -> Settle:
    """Settle a job as done with this value."""

    def settle(entry: Entry, message: Message) -> Outcome:
        ending = encode_ending(Ending("done", msgspec.Raw(msgspec.msgpack.encode(value))))
        return Outcome(Kind.DONE, entry.ref, message.id, ending if ttl else None, ttl, message.given_id)

    return settle


def dead(reason: DeadReason = "exhausted", error: str = "no luck", ttl: float = 600.0) -> Settle:
    """Settle a job as dead."""

    def settle(entry: Entry, message: Message) -> Outcome:
        letter = DeadLetter(reason, ErrorNote("ValueError", error, "Traceback: …"), 3, 0, message.enqueued_ms)
        return Outcome(
            Kind.DEAD,
            entry.ref,
            message.id,
            encode_ending(Ending("dead", letter=letter)) if ttl else None,
            ttl,
            message.given_id,
            body=entry.body or b"",
            task=message.task,
            letter=letter,
        )

    return settle


def expired(entry: Entry, message: Message) -> Outcome:
    """Settle a job as expired."""
    return Outcome(Kind.EXPIRED, entry.ref, message.id, None, 600.0, message.given_id)


async def work(app: Millstream, settle: Settle, *, queue: Address = DEFAULT) -> list[Message]:
    """Claim all ready jobs, settle them, and return their messages."""
    broker = await app.broker()
    hand = f"hand-{secrets.token_hex(4)}"
    await broker.join(queue, hand, 30.0)
    claim = await broker.claim(queue, hand, 10_000)
    taken = [(entry, decode_message(entry.body or b"")) for entry in claim.entries]
    await broker.settle(queue, hand, [settle(entry, message) for entry, message in taken])
    await broker.leave(queue, hand)
    return [message for _, message in taken]


async def published(app: Millstream) -> dict[str, int]:
    """Return the number of jobs that each queue has ever accepted."""
    return {name: (await app.inspector.queue(name)).totals["published"] for name in await app.inspector.queues()}


class Wire:
    """Records what an app publishes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Post]]] = []
        self.jobs = 0

    @classmethod
    async def tap(cls, app: Millstream) -> Wire:
        """Record the publish calls of the client of this event loop."""
        wire = cls()
        broker = await app.broker()
        publish = broker.publish

        async def listen(queue: Address, posts: Any, **options: Any) -> Any:
            wire.calls.append((queue, list(posts)))
            wire.jobs += len(posts)
            return await publish(queue, posts, **options)

        broker.publish = listen  # type: ignore[method-assign]
        return wire
