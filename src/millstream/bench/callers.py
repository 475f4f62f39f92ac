"""Callers that enqueue or publish: in bulk, 100 concurrently, one after another, or one at a time to an idle worker."""

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
"""Number of jobs of each bulk call that are checked afterwards."""

WARM_UP = 20
"""Number of jobs at the start of the latency row that are not counted: they open connections and fill caches."""

PAUSE_SECONDS = (0.005, 0.025)
"""Minimum and maximum pause between two jobs of the latency row: long enough for the system to become idle."""

LOOK_SECONDS = 0.0005
"""Interval between checks whether the job has started."""

LOST_SECONDS = 20.0
"""How long a job may take to start before the row fails."""


class Sent(NamedTuple):
    """Number of jobs sent by a caller, and the time it took."""

    jobs: int
    seconds: float


class Callers:
    """Sends numbers with the methods of an open app. The clock of a timed method starts when it is called."""

    def __init__(
        self, send: Callable[[int], Awaitable[Any]], send_many: Callable[[Sequence[int]], Awaitable[list[Any]]]
    ) -> None:
        self._send = send
        self._send_many = send_many

    async def fill(self, jobs: int, *, first: int = 0) -> list[Any]:
        """Send ``jobs`` jobs, not timed. Return a sample of the sent jobs."""
        sample: list[Any] = []
        for start in range(first, first + jobs, CHUNK):
            sent = await self._send_many(range(start, min(first + jobs, start + CHUNK)))
            sample += sent[:SAMPLE]
        return sample

    async def bulk(self, seconds: float) -> Sent:
        """Send in bulk calls for ``seconds``."""
        before, sent = perf_counter(), 0
        while perf_counter() - before < seconds:
            await self._send_many(range(sent, sent + CHUNK))
            sent += CHUNK
        return Sent(sent, perf_counter() - before)

    async def concurrent(self, seconds: float) -> Sent:
        """Send from CONCURRENCY concurrent callers, each one job after another, for ``seconds``."""
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
        """Send from one caller, one job after another, for ``seconds``."""
        before, sent = perf_counter(), 0
        for number in _until(before + seconds):
            await self._send(number)
            sent += 1
        return Sent(sent, perf_counter() - before)

    async def latencies(self, seconds: float, starts: memoryview[float]) -> list[float]:
        """Return the seconds from before each enqueue to the first line of its handler, one job at a time."""
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
                    raise RowFailed(f"job {number} did not start within {LOST_SECONDS:.0f} s")
                await asyncio.sleep(LOOK_SECONDS)
            found.append(starts[number] - before)
            await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
        return found


def _until(end: float) -> Iterator[int]:
    for number in count():
        if perf_counter() >= end:
            return
        yield number
