"""The data of the memory backend: plain records and two small containers. The rules are in ``queue.py`` and ``topic.py``."""

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
"""The sort key of entries. In a topic's log: the millisecond in which the entry was written, and its number within it."""


NO_POSITION: Number = (0, 0)
"""The position of a job that was never ready."""


class Moment(NamedTuple):
    """One reading of the clocks, taken once per call."""

    ms: int
    """Queue time, used for due times, leases and expiry. Tests may set it."""
    wall: float
    """Real time in seconds, used for stored values with a lifetime. Tests cannot set it, like the key expiry of a server."""


class Location(Enum):
    """Where a live job waits or runs."""

    SCHEDULED = "scheduled"
    FRESH = "fresh"
    RELEASED = "released"
    ASIDE = "aside"
    """A suspect that waits to run alone."""
    HELD = "held"
    """Claimed. The job is running while its consumer has a lease, and ready again after that."""
    BLOCKED = "blocked"
    """Another message has the turn of the job's ordering key."""
    NOWHERE = "nowhere"
    """Removed from its location, either to be moved or for good."""


@dataclass(slots=True, eq=False)
class Job:
    """A live job. Once it is ready, it is also an entry of the stream."""

    id: str
    body: bytes
    expires_ms: int
    due_ms: int = 0
    number: Number = (0, 0)
    """The entry's number. Entries of the queue's own stream have 0 as the first part, so they sort before entries of a log.
    Each time the job becomes ready, it gets a new number."""
    ref: bytes = b""
    key: bytes | None = None
    task: str = ""
    position: Number = NO_POSITION
    """Position within its ordering key: the number under which it first became ready. It never changes."""
    claims: int = 0
    """Number of claims minus releases. For a claimed job this is one more than its number of crashes."""
    location: Location = Location.FRESH
    holder: str = ""
    claimed_at: float = 0.0
    """Time of the last claim, by the wall clock."""


@dataclass(slots=True, frozen=True)
class Dead:
    """A dead letter. ``number`` is its position in the list of dead letters."""

    number: int
    id: str
    task: str
    letter: DeadLetter
    body: bytes
    died_ms: int
    source: str
    """The ref of the entry that died."""
    key: bytes | None
    position: Number
    unhandled: DeadLetter | None = None
    """Why the handler of dead letters gave up on this one."""

    def stored(self, queue: Address) -> DeadLetter:
        """Return the dead letter as the inspector shows it."""
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
    """The accepted serials of one sender: all up to the mark, except those in a gap."""

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
    """Values by key, each with a time at which it expires. ``None`` means that the value never expires."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[V, float | None]] = {}
        self._sweep_at = 1024

    def put(self, key: str, value: V, until: float | None, now: float) -> None:
        if len(self._values) >= self._sweep_at:
            self._values = {k: (v, t) for k, (v, t) in self._values.items() if t is None or t > now}
            # Doubling keeps the cost of sweeps per put constant.
            self._sweep_at = max(1024, 2 * len(self._values))
        self._values[key] = (value, until)

    def get(self, key: str, now: float) -> V | None:
        value, until = self._values.get(key, (None, None))
        return value if until is None or until > now else None

    def until(self, key: str) -> float:
        """Return the time at which a value expires, or 0 if it does not exist or never expires."""
        return self._values.get(key, (None, None))[1] or 0.0

    def keep(self, key: str, until: float | None, now: float) -> None:
        """Set a new expiry time for a value. Does nothing if the value does not exist."""
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
    """A caller-given job id."""

    task: str
    request: str
    """The name of the request that created the job."""
    id_ttl: float | None
    """Seconds for which the id is remembered after the job has ended. 0 frees the id as soon as the job ends."""
    freed: bool = False
    """Whether a new request may use the id. If the request that created the job is sent again, the answer is still
    ``CREATED``."""


class Waiter(Generic[V]):
    """The wait of one coroutine. Any thread can end it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[V] = self._loop.create_future()

    def wake(self, value: V) -> None:
        try:
            self._loop.call_soon_threadsafe(self._end, value)
        except RuntimeError:
            pass  # The loop is closed, so the coroutine no longer waits.

    def _end(self, value: V) -> None:
        if not self._future.done():
            self._future.set_result(value)

    async def wait(self, seconds: float | None) -> V:
        """Wait for ``wake`` and return its value. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            return await self._future


class State:
    """All data of one name and namespace. Every read and write holds ``lock``, and nothing awaits while it holds ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Address, MemoryQueue] = {}
        """By address. Includes the groups of topics."""
        self.topics: dict[str, MemoryTopic] = {}
        self.declared: set[Address] = set()
        """Names of queues."""
        self.opened: set[str] = set()
        """Names of topics."""
        self.prefixes: set[tuple[str, str]] = set()
        """Pairs of group and prefix: every topic whose name starts with the prefix has the group."""
        self.workers: Kept[WorkerInfo] = Kept()
        self.shards: dict[str, int] = {}
        """Number of shards, by the address of the base queue or topic."""
        self.fences: dict[str, int] = {}
        """By the address of a shard: the number of shards that publishers must name. 0: nobody may publish."""
        self.control_messages: Kept[list[bytes]] = Kept()
        self.answers: Kept[Any] = Kept()
        """Answers to named requests, by address and request name."""
