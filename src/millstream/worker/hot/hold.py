"""What a worker process holds: slots, the buffer before them, and whose turn it is to claim.

Held = running + buffered + unsettled, and it is bounded. The buffer is sized by the measured rate to what will start within
BUFFER_SECONDS, so that slow handlers buffer nothing and idle neighbours are not starved. (Measured: claiming into free slots
only drains 55-78k no-op jobs/s, with a buffer 108-132k; an unbounded hold fell to 11k.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.worker.hot.in_flight import InFlight

ASYNC, THREAD = 0, 1
"""The kinds of slots: coroutines on the loop, functions in threads."""

STOPPING = "the worker is stopping"

BUFFER_SECONDS = 0.15
"""How far ahead of its handlers a worker claims."""

EVEN = (1.0, 1.0)
"""What part of a queue's messages is of each kind while nothing is known: any may be all."""

A_FEW = 4
"""How many messages are claimed first of a mixed queue while one of its kinds has no capacity; then twice as many each time, so
that those of the other kind behind them are found soon."""

READ_PAST = 1_000
"""The most messages without a slot that are buffered on the way to those behind them."""

BUFFER_MAX = 300
"""The most it buffers per kind, however fast they are."""

BATCH = 200
"""The most messages one claim or settle call carries: a longer script would hold the server too long."""

BATCH_BYTES = 256 * 1024
"""And about the most bytes."""


class Hold:
    """Slots and turns, shared by all queues of one worker process."""

    def __init__(self, concurrency: int, threads: int, clock: Callable[[], float]) -> None:
        self.sizes = (concurrency, threads)
        self.free = [concurrency, threads]
        self.ready: tuple[deque[InFlight], deque[InFlight]] = (deque(), deque())
        self.running: set[InFlight] = set()
        self.open = 0
        """How many of these are deliveries that go on without their handlers."""
        self.ticked = clock()
        """When the worker last looked at its deadlines: twenty times a second, unless it stood still."""
        self.quiet = asyncio.Event()
        """Set whenever the last running handler ends; whoever waits for it clears it first."""
        self.unsettled = 0
        """Outcomes not yet on the server."""
        self.shut: set[str] = set()
        """Why no new handler starts: the server is away, a suspect runs alone, the worker is stopping."""
        self.low = [0, 0]
        """With this many or fewer left in the buffer it is time to claim again."""
        self.started = [0, 0]
        self._bounds = tuple(size + BUFFER_MAX + 2 * BATCH for size in self.sizes)
        self._asked = [0, 0]
        self._turns: deque[tuple[asyncio.Future[None], Sequence[int]]] = deque()
        """Who waits for capacity, and of which kinds."""
        self._clock = clock
        self._measured_at = clock()
        self._measured = [0, 0]
        self._rates = [0.0, 0.0]
        self._ahead = [0, 0]

    async def until_quiet(self, *, but_open: bool = False) -> None:
        """Wait until nothing runs; ``but_open``: but for deliveries that go on without their handlers."""
        while len(self.running) > (self.open if but_open else 0):
            self.quiet.clear()
            await self.quiet.wait()

    @property
    def in_use(self) -> tuple[int, int]:
        """How many slots of each kind run something."""
        return self.sizes[ASYNC] - self.free[ASYNC], self.sizes[THREAD] - self.free[THREAD]

    @property
    def idle(self) -> bool:
        """Nothing runs, waits to run, or waits to be settled."""
        return not (self.running or self.ready[ASYNC] or self.ready[THREAD] or self.unsettled)

    def capacity(
        self, kinds: Sequence[int], buffered: bool, careful: bool = False, shares: Sequence[float] = EVEN, past: int = 0
    ) -> int:
        """How many messages a claim may bring now, for a queue whose tasks are of these kinds.

        Of what kind a message is shows only once it is claimed; ``shares`` says what part of this queue's was of each kind, so
        that a few threads do not bound a queue of coroutines. A kind without capacity is counted on to come a few at a time;
        ``careful``: not at all, because those that came last time could not start. ``past``: how many such are known to be
        in front.
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
            return 0  # claim in worthwhile batches: not before half of the buffer is used up
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
            # Falls at once, rises by halves: a burst of quick jobs must not make us hoard slow ones.
            self._rates[kind] = rate if rate < self._rates[kind] else (self._rates[kind] + rate) / 2
            self._measured[kind] = self.started[kind]
            self._ahead[kind] = min(int(self._rates[kind] * BUFFER_SECONDS), BUFFER_MAX)
            self.low[kind] = self._ahead[kind] // 2
        self._measured_at = now

    def ask(self, kinds: Sequence[int], count: int) -> None:
        """A claim for ``count`` is in flight; a negative count: it is over, and what it did not bring is capacity again."""
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
        """Wait until there is capacity and nobody who asked earlier can use it; 0 if ``patience`` seconds went by without."""
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
        """Wait until a slot is free somewhere, but no longer than this."""
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
        """Capacity was made: those who wait look again, in the order they asked."""
        if self._turns:
            turns, self._turns = self._turns, deque()
            for future, _ in turns:
                if not future.done():
                    future.set_result(None)
