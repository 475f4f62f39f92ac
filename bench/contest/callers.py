"""The callers of the enqueueing rows, as coroutines and as threads: each library is called the way its users call it.

Arguments come from the command line. A timed command prints {"jobs", "seconds"}. The clock starts when the client is open.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from itertools import count
from time import perf_counter
from typing import Any

from contest import told
from contest.contender import Client

# jobs of the latency row that are not counted, while connections and caches are set up
WARM_UP = 20
# shortest and longest pause in seconds between two jobs of the latency row: long enough for the system to become idle
PAUSE = (0.005, 0.025)
# seconds between two checks whether the job has started
LOOK = 0.0005
# seconds to wait for the start of a job before the row fails
LOST = 20.0


class Clock:
    """Yields job numbers until the time is over."""

    def __init__(self, seconds: str) -> None:
        self.start = perf_counter()
        self._end = self.start + float(seconds)

    @property
    def over(self) -> bool:
        return perf_counter() >= self._end

    def numbers(self) -> Iterator[int]:
        for number in count():
            if self.over:
                return
            yield number

    def stop(self, jobs: int) -> dict[str, Any]:
        return {"jobs": jobs, "seconds": perf_counter() - self.start}


class Probe:
    """Measures one job after the other, from before the enqueue call to the first line of its handler."""

    def __init__(self, seconds: str) -> None:
        self._seconds = float(seconds)
        self._end = float("inf")
        self._before = 0.0
        self._latencies: list[float] = []

    def numbers(self) -> Iterator[int]:
        for number in range(len(told.starts)):
            if number == WARM_UP:
                self._end = perf_counter() + self._seconds
            if perf_counter() > self._end:
                return
            self._before = perf_counter()
            yield number

    def started(self, number: int) -> bool:
        start: float = told.starts[number]
        if start:
            self._latencies.append(start - self._before)
        elif perf_counter() - self._before > LOST:
            raise TimeoutError(f"job {number} did not start within {LOST:.0f} s")
        return bool(start)

    @staticmethod
    def pause() -> float:
        return random.uniform(*PAUSE)

    def stop(self) -> dict[str, Any]:
        return {"jobs": len(self._latencies), "latencies": self._latencies[WARM_UP:]}


class Coroutines:
    def __init__(self, client: Client) -> None:
        self._send = client.send
        self._send_many = client.send_many
        self._chunk = client.chunk

    async def fill(self, first: str, jobs: str) -> dict[str, Any]:
        numbers = range(int(first), int(first) + int(jobs))
        if self._send_many is None:
            await self._callers(iter(numbers))
        else:
            for start in range(0, len(numbers), self._chunk):
                await self._send_many(numbers[start : start + self._chunk])
        return {}

    async def bulk(self, seconds: str) -> dict[str, Any]:
        if self._send_many is None:
            return await self.concurrent(seconds)
        clock, sent = Clock(seconds), 0
        while not clock.over:
            await self._send_many(range(sent, sent + self._chunk))
            sent += self._chunk
        return clock.stop(sent)

    async def concurrent(self, seconds: str) -> dict[str, Any]:
        clock = Clock(seconds)
        return clock.stop(await self._callers(clock.numbers()))

    publish = pipelined = bulk

    async def sequential(self, seconds: str) -> dict[str, Any]:
        clock, sent = Clock(seconds), 0
        for number in clock.numbers():
            await self._send(number)
            sent += 1
        return clock.stop(sent)

    async def latency(self, seconds: str) -> dict[str, Any]:
        probe = Probe(seconds)
        for number in probe.numbers():
            await self._send(number)
            while not probe.started(number):
                await asyncio.sleep(LOOK)
            await asyncio.sleep(probe.pause())
        return probe.stop()

    async def _callers(self, numbers: Iterator[int]) -> int:
        async def caller() -> int:
            sent = 0
            for number in numbers:
                await self._send(number)
                sent += 1
            return sent

        return sum(await asyncio.gather(*(caller() for _ in range(told.CONCURRENCY))))


class Threads:
    """Like ``Coroutines``. Without a bulk call, it fills one job after the other, which is faster than from threads."""

    def __init__(self, client: Client) -> None:
        self._send = client.send
        self._send_many = client.send_many
        self._chunk = client.chunk

    def fill(self, first: str, jobs: str) -> dict[str, Any]:
        numbers = range(int(first), int(first) + int(jobs))
        if self._send_many is None:
            for number in numbers:
                self._send(number)
        else:
            for start in range(0, len(numbers), self._chunk):
                self._send_many(numbers[start : start + self._chunk])
        return {}

    def bulk(self, seconds: str) -> dict[str, Any]:
        if self._send_many is None:
            return self.sequential(seconds)
        clock, sent = Clock(seconds), 0
        while not clock.over:
            self._send_many(range(sent, sent + self._chunk))
            sent += self._chunk
        return clock.stop(sent)

    def concurrent(self, seconds: str) -> dict[str, Any]:
        clock = Clock(seconds)
        numbers, taking, sent = clock.numbers(), threading.Lock(), list[int]()

        def caller() -> None:
            mine = 0
            while True:
                with taking:
                    number = next(numbers, None)
                if number is None:
                    sent.append(mine)
                    return
                self._send(number)
                mine += 1

        threads = [threading.Thread(target=caller) for _ in range(told.CONCURRENCY)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return clock.stop(sum(sent))

    def sequential(self, seconds: str) -> dict[str, Any]:
        clock, sent = Clock(seconds), 0
        for number in clock.numbers():
            self._send(number)
            sent += 1
        return clock.stop(sent)

    def latency(self, seconds: str) -> dict[str, Any]:
        probe = Probe(seconds)
        for number in probe.numbers():
            self._send(number)
            while not probe.started(number):
                time.sleep(LOOK)
            time.sleep(probe.pause())
        return probe.stop()
