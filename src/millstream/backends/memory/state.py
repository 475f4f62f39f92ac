"""What the memory backend holds: plain records and two small containers. The rules are in ``queue.py`` and ``topic.py``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from millstream.broker import WorkerInfo
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter

if TYPE_CHECKING:
    from millstream.backends.memory.queue import MemoryQueue
    from millstream.backends.memory.topic import MemoryTopic

V = TypeVar("V")


Number = tuple[int, int]
"""What entries are ordered by. In a topic's log: the millisecond one was written in, and which of that millisecond's it is."""


NO_POSITION: Number = (0, 0)
"""Of a job that was never ready."""


class Moment(NamedTuple):
    """One reading of the clocks, taken once per verb."""

    ms: int
    """The queue's time, which a test may set: due times, leases, expiry."""
    wall: float
    """What is kept for a while is kept by this one, in seconds; never set, as a server's key expiry cannot be."""


class Location(Enum):
    """Where a job that is alive waits or runs."""

    SCHEDULED = "scheduled"
    FRESH = "fresh"
    RELEASED = "released"
    ASIDE = "aside"
    """A suspect, waiting to run alone."""
    HELD = "held"
    """Claimed: running while the holder has its lease, ready again after."""
    BLOCKED = "blocked"
    """Its key's turn is another's."""
    NOWHERE = "nowhere"
    """It left its place, for another or for good."""


@dataclass(slots=True, eq=False)
class Job:
    """A job that is alive; from its promotion on, also an entry of the stream."""

    id: str
    body: bytes
    expires_ms: int
    due_ms: int = 0
    number: Number = (0, 0)
    """The entry's position: of the queue's own, which come first, the second part; every promotion gives a new one."""
    ref: bytes = b""
    key: bytes | None = None
    task: str = ""
    position: Number = NO_POSITION
    """Its place among those of its key: the first number it was ready under, whatever becomes of it."""
    claims: int = 0
    """How often the entry was claimed, hand-backs deducted: one more than the consumers that died holding it."""
    location: Location = Location.FRESH
    holder: str = ""
    claimed_at: float = 0.0
    """When it was last claimed, by the wall clock."""


@dataclass(slots=True, frozen=True)
class Dead:
    """A dead letter; ``number`` is its place among them."""

    number: int
    id: str
    task: str
    letter: DeadLetter
    body: bytes
    died_ms: int
    source: str
    """The ref it died under."""
    key: bytes | None
    position: Number
    unhandled: DeadLetter | None = None
    """Why its handler gave up."""

    def stored(self, queue: Address) -> DeadLetter:
        """As the inspector shows it."""
        return msgspec.structs.replace(
            self.letter,
            id=self.id,
            task=self.task,
            queue=str(queue),
            died_at=self.died_ms / 1000,
            body=self.body,
            cursor=str(self.number),
            source=self.source,
            key=self.key,
            unhandled=self.unhandled,
        )


@dataclass(slots=True)
class Sender:
    """Which serials of one sender were accepted: all up to the mark, but those in a gap."""

    mark: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """First and last missing serial of each gap."""

    def accepted(self, serial: int) -> bool:
        return 1 <= serial <= self.mark and not any(first <= serial <= last for first, last in self.gaps)

    def accept(self, serial: int) -> None:
        if serial > self.mark:
            if serial > self.mark + 1:
                self.gaps.append((self.mark + 1, serial - 1))
            self.mark = serial
            return
        first, last = next(gap for gap in self.gaps if gap[0] <= serial <= gap[1])
        self.gaps.remove((first, last))
        self.gaps += [(a, b) for a, b in ((first, serial - 1), (serial + 1, last)) if a <= b]


class Kept(Generic[V]):
    """Values by key, each kept until its time; None: until it is taken out."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[V, float | None]] = {}
        self._sweep_at = 1024

    def put(self, key: str, value: V, until: float | None, now: float) -> None:
        if len(self._values) >= self._sweep_at:
            self._values = {k: (v, t) for k, (v, t) in self._values.items() if t is None or t > now}
            # doubling makes the sweeps' cost per put constant
            self._sweep_at = max(1024, 2 * len(self._values))
        self._values[key] = (value, until)

    def get(self, key: str, now: float) -> V | None:
        value, until = self._values.get(key, (None, None))
        return value if until is None or until > now else None

    def until(self, key: str) -> float:
        """When a value expires; 0: never, or it is not there."""
        return self._values.get(key, (None, None))[1] or 0.0

    def keep(self, key: str, until: float | None, now: float) -> None:
        """Change how long a value is kept, if it is there."""
        value = self.get(key, now)
        if value is not None:
            self._values[key] = (value, until)

    def drop(self, key: str) -> None:
        self._values.pop(key, None)

    def __len__(self) -> int:
        return len(self._values)

    def values(self, now: float) -> Iterator[V]:
        return (value for value, until in self._values.values() if until is None or until > now)


class Given(NamedTuple):
    """An id that a caller gave."""

    task: str
    request: str
    """Which one created the job."""
    id_ttl: float | None
    """Seconds for which it is remembered after the job has ended; 0: it is free then."""
    freed: bool = False
    """Another request may have it; this one, sent again, is told that it created the job."""


class Waiter(Generic[V]):
    """One coroutine's wait, which any thread may end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[V] = self._loop.create_future()

    def wake(self, value: V) -> None:
        try:
            self._loop.call_soon_threadsafe(self._end, value)
        except RuntimeError:
            pass  # its loop is closed: nobody waits any more

    def _end(self, value: V) -> None:
        if not self._future.done():
            self._future.set_result(value)

    async def wait(self, seconds: float | None) -> V:
        """What ``wake`` brought. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            return await self._future


class State:
    """All of one name and namespace. Whoever looks or writes holds ``lock``, and never awaits with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Address, MemoryQueue] = {}
        """Groups too, by their addresses."""
        self.topics: dict[str, MemoryTopic] = {}
        self.declared: set[Address] = set()
        """Names of queues."""
        self.opened: set[str] = set()
        """Names of topics."""
        self.prefixes: set[tuple[str, str]] = set()
        """Groups, and how the names of the topics begin that have them."""
        self.workers: Kept[WorkerInfo] = Kept()
        self.shards: dict[str, int] = {}
        """By the address of the whole: how many it has."""
        self.fences: dict[str, int] = {}
        """By the address of a shard: of how many it is one; 0: nobody may publish there."""
        self.control_messages: Kept[list[bytes]] = Kept()
        self.answers: Kept[Any] = Kept()
        """By address and name: what requests were answered."""
