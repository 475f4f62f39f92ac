"""The environment of the promises: a broker, a clock that stands still, and short methods for the usual steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, Self, TypeVar, cast

import msgspec

from millstream.broker import Broker, Claim, Entry, Post, Receipt
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter
from millstream.model.ending import Ending, encode_ending
from millstream.model.message import Attempt, ErrorNote
from millstream.model.outcome import Kind, Outcome
from millstream.model.types import Status

# epoch seconds at which every test starts
START = 1_800_000_000.0

# a test that waits longer than this many seconds fails
PATIENCE = 30.0

# a wait longer than any test: something must end it, or the test fails
LONG = 4 * PATIENCE

QUEUE, OTHER_QUEUE = Address("q"), Address("q2")

DONE_ENDING = encode_ending(Ending("done", msgspec.Raw(b"\x07")))
LETTER = DeadLetter(
    "exhausted",
    ErrorNote("ValueError", "no", "Traceback …"),
    attempts=3,
    crashes=0,
    enqueued_ms=17,
    failures=(Attempt(18.5, "OSError", "not yet", "worker-1", 2), Attempt(19.5, "ValueError", "no", "worker-2", 3)),
)
DEAD_ENDING = encode_ending(Ending("dead", letter=LETTER))

T = TypeVar("T", bound="Promises")


class _Clocked(Protocol):
    def set_clock(self, now: float | None) -> None: ...


class BackendUnderTest:
    """The brokers of one test. Bodies equal ids, so ``ids`` identifies entries of every backend."""

    def __init__(
        self, make_broker: Callable[..., Broker], queue: Address = QUEUE, other_queue: Address = OTHER_QUEUE, **options: Any
    ) -> None:
        self.queue = queue
        self.other_queue = other_queue
        self._make_broker = make_broker
        self._options = options
        self._brokers: list[Broker] = []
        self._time: float | None = START

    async def __aenter__(self) -> Self:
        self.broker = await self.another()
        await self.broker.declare(self.queue)
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self._brokers:
            await broker.close()

    async def another(self) -> Broker:
        """Open another broker on the same queues, as another process would."""
        broker = self._make_broker(**self._options)
        self._brokers.append(broker)
        await broker.open()
        cast(_Clocked, broker).set_clock(self._time)
        return broker

    def at(self, seconds: float) -> None:
        """Set the clock to this many seconds after the start of the test."""
        self._time = START + seconds
        self._tell_time()

    def run_clock(self) -> None:
        """Use real time from now on."""
        self._time = None
        self._tell_time()

    def _tell_time(self) -> None:
        for broker in self._brokers:
            cast(_Clocked, broker).set_clock(self._time)

    async def publish(
        self, *ids: str, queue: Address | None = None, max_length: int | None = None, **fields: Any
    ) -> list[Receipt]:
        """Publish jobs with given ids."""
        fields.setdefault("task", "t")
        return await self.broker.publish(
            queue or self.queue, [Post(i, i.encode(), **fields) for i in ids], max_length=max_length
        )

    async def send(
        self, sender: str, *serials: int, queue: Address | None = None, max_length: int | None = None
    ) -> list[Receipt]:
        """Publish jobs with generated ids."""
        posts = [Post(f"{sender}-{n}", f"{sender}-{n}".encode(), serial=n) for n in serials]
        return await self.broker.publish(queue or self.queue, posts, sender=sender, max_length=max_length)

    async def join(self, *consumers: str, lease: float = 30.0, queue: Address | None = None) -> None:
        for consumer in consumers:
            await self.broker.join(queue or self.queue, consumer, lease)

    async def claim(self, consumer: str, count: int = 100, *, queue: Address | None = None, **options: Any) -> Claim:
        return await self.broker.claim(queue or self.queue, consumer, count, **options)

    async def take(self, consumer: str, count: int = 100, **options: Any) -> list[Entry]:
        return (await self.claim(consumer, count, **options)).entries

    async def wait_for_work(self, consumer: str, count: int = 100, *, queue: Address | None = None) -> list[Entry]:
        """Claim until messages arrive, as a worker does. A single wait may end without a message."""
        while True:
            if entries := await self.take(consumer, count, queue=queue, wait=LONG):
                return entries

    async def settle(
        self, consumer: str, entries: Iterable[Entry], kind: Kind = Kind.DONE, *, queue: Address | None = None, **fields: Any
    ) -> int:
        outcomes = [outcome(entry, kind, **fields) for entry in entries]
        return await self.broker.settle(queue or self.queue, consumer, outcomes)

    async def die(self, consumer: str, *ids: str, **fields: Any) -> None:
        """Publish jobs, claim them and settle them as dead, one by one."""
        for job_id in ids:
            await self.publish(job_id)
            await self.settle(consumer, await self.take(consumer), Kind.DEAD, given_id=True, **fields)

    async def crash(self, consumer: str, lives: int) -> None:
        """Claim everything and give up the lease. Repeat with a new consumer for each of the ``lives``."""
        for life in range(lives):
            name = f"{consumer}{life}"
            await self.join(name)
            await self.claim(name, suspect_after=1000)
            await self.broker.leave(self.queue, name)

    async def release(self, consumer: str, entries: Iterable[Entry], *, queue: Address | None = None) -> int:
        return await self.broker.release(queue or self.queue, consumer, [entry.ref for entry in entries])

    async def status(self, job_id: str, queue: Address | None = None) -> Status:
        return await self.broker.inspector.status(queue or self.queue, job_id)

    async def totals(self) -> dict[str, int]:
        return (await self.broker.inspector.queue(self.queue)).totals

    async def begun(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task and give it time to begin waiting. No promise relies on that."""
        task = asyncio.create_task(coroutine)
        for _ in range(5):
            await self.broker.inspector.queue(self.queue)
            await asyncio.sleep(0)
        return task


class Promises:
    """The base class of all promises."""

    queue = QUEUE
    other_queue = OTHER_QUEUE
    """Addresses at which the promises of queues are tested. They may also be those of groups."""

    def make_broker(self, **options: Any) -> Broker:
        """Return a broker that is not open yet. All brokers of one test share the same queues.

        Options: id_ttl, dead_max_age, dead_max_count.
        """
        raise NotImplementedError


def promise(**options: Any) -> Callable[[Callable[[T, BackendUnderTest], Coroutine[Any, Any, None]]], Callable[[T], None]]:
    """Turn ``async def test(self, backend)`` into a plain test function. The options go to ``make_broker``."""

    def decorate(test: Callable[[T, BackendUnderTest], Coroutine[Any, Any, None]]) -> Callable[[T], None]:
        def run(self: T) -> None:
            async def main() -> None:
                async with (
                    asyncio.timeout(PATIENCE),
                    BackendUnderTest(self.make_broker, self.queue, self.other_queue, **options) as backend,
                ):
                    await test(self, backend)

            asyncio.run(main())

        # not functools.wraps: pytest would follow it and look for a fixture named `backend`
        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        return run

    return decorate


def ids(entries: Iterable[Entry]) -> list[str]:
    """Return the ids of the entries."""
    return [(entry.body or b"").partition(b"#")[0].decode() for entry in entries]


def cause(letter: DeadLetter) -> DeadLetter:
    """Return the letter as the worker wrote it, without the fields that the backend added."""
    return DeadLetter(letter.reason, letter.error, letter.attempts, letter.crashes, letter.enqueued_ms, letter.failures)


def outcome(entry: Entry, kind: Kind, **fields: Any) -> Outcome:
    """Return a complete outcome of one kind. The fields override its defaults."""
    (job_id,) = ids([entry])
    if kind is Kind.RETRY:
        fields = {"body": entry.body, "expires_ms": entry.expires_ms, **fields}
    if kind is Kind.DEAD:
        fields = {"body": entry.body, "task": "t", "letter": LETTER, **fields}
    return Outcome(kind, entry.ref, job_id, **fields)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait in real time, for example until a stored value expires. The timeout of the test limits the wait."""
    while not await condition():
        await asyncio.sleep(0.01)
