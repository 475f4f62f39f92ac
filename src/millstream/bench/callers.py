"""Who enqueues or publishes: in bulk, 100 at once, one by one, or one job at a time through a worker that waits for it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple

from millstream.bench.figures import RowFailed
from millstream.bench.tasks import CONCURRENCY

CHUNK = 10_000
"""Jobs per bulk call."""

SAMPLE = 10
"""Jobs of each bulk call that are looked at afterwards."""

WARM_UP = 20
"""Jobs of the latency row that are not counted, while connections and caches are made."""

PAUSE_SECONDS = (0.005, 0.025)
"""Between two jobs of the latency row, at least and at most: long enough for the system to fall idle."""

LOOK_SECONDS = 0.0005
"""Between two looks whether the job has started."""

LOST_SECONDS = 20.0
"""That one job may take to start before the row is given up."""


class Sent(NamedTuple):
    """What a caller did."""

    jobs: int
    seconds: float


class Callers:
    """Sends numbers by the verbs of an app that is open. The clock of a timed verb starts when it is called."""

    def __init__(
        self, send: Callable[[int], Awaitable[Any]], send_many: Callable[[Sequence[int]], Awaitable[list[Any]]]
    ) -> None:
        self._send = send
        self._send_many = send_many

    async def fill(self, jobs: int, *, first: int = 0) -> list[Any]:
        """Send so many, not timed; some of them, as the app gave them."""
        sample: list[Any] = []
        for start in range(first, first + jobs, CHUNK):
            sent = await self._send_many(range(start, min(first + jobs, start + CHUNK)))
            sample += sent[:SAMPLE]
        return sample

    async def bulk(self, seconds: float) -> Sent:
        """One call for many."""
        before, sent = perf_counter(), 0
        while perf_counter() - before < seconds:
            await self._send_many(range(sent, sent + CHUNK))
            sent += CHUNK
        return Sent(sent, perf_counter() - before)

    async def concurrent(self, seconds: float) -> Sent:
        """Many callers at once, each one job after the other."""
        before = perf_counter()
        numbers = _until(before + seconds)

        async def caller() -> int:
            sent = 0
            for number in numbers:
                await self._send(number)
                sent += 1
            return sent

        sent = sum(await asyncio.gather(*(caller() for _ in range(CONCURRENCY))))
        return Sent(sent, perf_counter() - before)

    async def sequential(self, seconds: float) -> Sent:
        """One caller."""
        before, sent = perf_counter(), 0
        for number in _until(before + seconds):
            await self._send(number)
            sent += 1
        return Sent(sent, perf_counter() - before)

    async def latencies(self, seconds: float, starts: memoryview[float]) -> list[float]:
        """Seconds from before the call that enqueues to the first line of the handler, one job at a time."""
        found: list[float] = []
        end = float("inf")
        for number in range(len(starts)):
            if number == WARM_UP:
                end = perf_counter() + seconds
            before = perf_counter()
            if before > end:
                break
            await self._send(number)
            while not starts[number]:
                if perf_counter() - before > LOST_SECONDS:
                    raise RowFailed(f"job {number} has not started within {LOST_SECONDS:.0f} s")
                await asyncio.sleep(LOOK_SECONDS)
            found.append(starts[number] - before)
            await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
        return found


def _until(end: float) -> Iterator[int]:
    for number in count():
        if perf_counter() >= end:
            return
        yield number
