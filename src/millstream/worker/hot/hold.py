"""The messages that a worker process holds: its slots, the buffer in front of them, and which claimer may claim next.

Held = running + buffered + unsettled, and this sum is bounded. The buffer's size follows the measured rate: it holds the
messages that will start within BUFFER_SECONDS. So slow handlers buffer nothing, and leave messages to idle workers. (Measured:
claiming only into free slots drains 55-78k no-op jobs/s, with a buffer 108-132k; an unbounded hold dropped to 11k.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.worker.hot.in_flight import InFlight
    from millstream.worker.hot.lane import Lane

ASYNC, THREAD = 0, 1
"""The kinds of slots: coroutines on the event loop, plain functions in threads."""

STOPPING = "the worker is stopping"

BUFFER_SECONDS = 0.15
"""How far ahead of its handlers a worker claims, in seconds."""

EVEN = (1.0, 1.0)
"""Shares of a queue before its first message: any message may be of either kind."""

A_FEW = 4
"""Size of the first claim from a mixed queue while one of its kinds has no capacity. Each further claim doubles the size, so
that messages of the other kind behind them are found soon."""

READ_PAST = 1_000
"""Maximum number of messages without a slot that are buffered in order to reach messages behind them."""

BUFFER_MAX = 300
"""Maximum number of buffered messages per kind, however fast they run."""

BATCH = 200
"""Maximum number of messages in one claim or settle call: a longer script would block the server for too long."""

BATCH_BYTES = 256 * 1024
"""Approximate maximum number of bytes in one claim or settle call."""


class Hold:
    """The slots, and the queue of claimers that wait for them, shared by all lanes of one worker process."""

    def __init__(self, concurrency: int, threads: int, clock: Callable[[], float]) -> None:
        self.sizes = (concurrency, threads)
        self.free = [concurrency, threads]
        self.ready: tuple[deque[InFlight], deque[InFlight]] = (deque(), deque())
        self.running: set[InFlight] = set()
        self.open = 0
        """Number of running jobs that are open deliveries whose handlers have ended."""
        self.ticked = clock()
        """Time of the worker's last tick. There are twenty per second, unless the process was suspended."""
        self.quiet = asyncio.Event()
        """Set whenever the last running handler ends. A waiter clears it before it waits."""
        self.unsettled = 0
        """Number of outcomes that are not on the server yet."""
        self.shut: set[str] = set()
        """Reasons why no new handler may start: a suspect runs alone, the worker is stopping."""
        self.low = [0, 0]
        """By kind: number of buffered messages at which the claimers claim again."""
        self.started = [0, 0]
        self._bounds = tuple(size + BUFFER_MAX + 2 * BATCH for size in self.sizes)
        self._asked = [0, 0]
        self._turns: deque[tuple[asyncio.Future[None], Sequence[int]]] = deque()
        """Claimers that wait for capacity, and the kinds of slots that they need."""
        self._clock = clock
        self._measured_at = clock()
        self._measured = [0, 0]
        self._rates = [0.0, 0.0]
        self._ahead = [0, 0]

    def drop(self, lane: Lane) -> None:
        """Forget the messages of a lane that have not started."""
        lane.gathered.clear()
        for ready in self.ready:
            others = [job for job in ready if job.lane is not lane]
            if lane.limit is not None:
                lane.active -= len(ready) - len(others)
            ready.clear()
            ready.extend(others)

    async def until_quiet(self, *, but_open: bool = False) -> None:
        """Wait until no job is running. ``but_open`` ignores open deliveries whose handlers have ended."""
        while len(self.running) > (self.open if but_open else 0):
            self.quiet.clear()
            await self.quiet.wait()

    @property
    def in_use(self) -> tuple[int, int]:
        """Number of occupied slots of each kind."""
        return self.sizes[ASYNC] - self.free[ASYNC], self.sizes[THREAD] - self.free[THREAD]

    @property
    def idle(self) -> bool:
        """Whether no job is running, buffered or unsettled."""
        return not (self.running or self.ready[ASYNC] or self.ready[THREAD] or self.unsettled)

    def capacity(
        self, kinds: Sequence[int], buffered: bool, careful: bool = False, shares: Sequence[float] = EVEN, past: int = 0
    ) -> int:
        """Return how many messages a claim may bring now, for a queue whose tasks need these kinds of slots.

        The kind of a message is known only after its claim. ``shares`` is the part of this queue's messages that needed each
        kind, so that a small number of threads does not limit a queue of coroutines. While one kind has no capacity, small
        claims continue, because messages of the other kind may follow. With ``careful`` they do not: messages of a recent claim
        could not start. ``past`` is the estimated number of messages at the front of the queue that cannot start here.
        """
        if self.shut:
            return 0
        self._measure()
        if len(kinds) == 1:
            return self._capacity(kinds[0], buffered)
        capacities = {kind: self._capacity(kind, buffered) for kind in kinds}
        most = max(capacities.values())
        if careful and min(capacities.values()) <= 0:
            return min(capacities.values())
        return min(most, *(int(max(capacity, self._few(kind, past)) / shares[kind]) for kind, capacity in capacities.items()))

    def _few(self, kind: int, past: int) -> int:
        waiting = len(self.ready[kind])
        return min(max(A_FEW, waiting, past), READ_PAST - waiting)

    def _capacity(self, kind: int, buffered: bool) -> int:
        waiting = len(self.ready[kind])
        ahead = self._ahead[kind] if buffered else 0
        if waiting > ahead // 2:
            return 0  # claim in worthwhile batches: only when half of the buffer is used up
        free = self.free[kind] + ahead - waiting - self._asked[kind]
        held = self.sizes[kind] - self.free[kind] + waiting + self.unsettled + self._asked[kind]
        return min(free, self._bounds[kind] - held, BATCH)

    def _measure(self) -> None:
        now = self._clock()
        elapsed = now - self._measured_at
        if elapsed < 0.02:
            return
        for kind in (ASYNC, THREAD):
            rate = (self.started[kind] - self._measured[kind]) / elapsed
            # A lower rate counts immediately, a higher one only by half: after a burst of fast jobs, the worker must not buffer
            # many slow ones.
            self._rates[kind] = rate if rate < self._rates[kind] else (self._rates[kind] + rate) / 2
            self._measured[kind] = self.started[kind]
            self._ahead[kind] = min(int(self._rates[kind] * BUFFER_SECONDS), BUFFER_MAX)
            self.low[kind] = self._ahead[kind] // 2
        self._measured_at = now

    def ask(self, kinds: Sequence[int], count: int) -> None:
        """Reserve capacity for a claim of ``count`` messages in flight. A negative count ends the reservation."""
        for kind in kinds:
            self._asked[kind] += count
        if count < 0:
            self.freed()

    async def turn(
        self,
        kinds: Sequence[int],
        buffered: bool,
        patience: float,
        careful: bool = False,
        shares: Sequence[float] = EVEN,
        past: int = 0,
    ) -> int:
        """Wait until there is capacity that no earlier waiter can use, and return it. Return 0 if there was none within
        ``patience`` seconds."""
        first = all(set(kinds).isdisjoint(others) for _, others in self._turns)
        if first and (capacity := self.capacity(kinds, buffered, careful, shares, past)) > 0:
            return capacity
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while STOPPING not in self.shut:
                    future = asyncio.get_running_loop().create_future()
                    self._turns.append((future, kinds))
                    try:
                        await future
                    finally:
                        if future.cancelled() and (future, kinds) in self._turns:
                            self._turns.remove((future, kinds))
                    if (capacity := self.capacity(kinds, buffered, careful, shares, past)) > 0:
                        return capacity
        return max(0, self.capacity(kinds, buffered, careful, shares, past))

    async def until_freed(self, patience: float) -> None:
        """Wait until capacity may have become free, at most ``patience`` seconds."""
        await self._until_turned((), patience)

    async def _until_turned(self, kinds: Sequence[int], patience: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append((future, kinds))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await future
        finally:
            if future.cancelled() and (future, kinds) in self._turns:
                self._turns.remove((future, kinds))

    def freed(self) -> None:
        """Wake all waiters, in the order in which they asked, because capacity became free."""
        if self._turns:
            turns, self._turns = self._turns, deque()
            for future, _ in turns:
                if not future.done():
                    future.set_result(None)
