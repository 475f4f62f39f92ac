"""Samples of a run: ready and running jobs, and the number of processes, on the clock of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import redis

STREAM, LEASES = "{millstream:q:default}:s", "{millstream:q:default}:leases"


class Sample(NamedTuple):
    """One sample."""

    at: float
    backlog: int
    """Ready and running jobs."""
    processes: int
    """Worker processes that have joined the queue."""


class Watch:
    """Takes a sample at a fixed interval, in a thread, until stopped."""

    def __init__(self, url: str, seconds: float) -> None:
        self.samples: list[Sample] = []
        self._server = redis.Redis.from_url(url)
        self._seconds = seconds
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def until(self, condition: Callable[[Sample], bool], what: str, within: float = 120.0) -> float:
        """Wait until a sample meets the condition. Return when it was taken."""
        began = time.monotonic()
        seen = len(self.samples)
        while time.monotonic() - began < within:
            for sample in self.samples[seen:]:
                if condition(sample):
                    return sample.at
            time.sleep(self._seconds)
        raise TimeoutError(f"waited {within:g} s for {what}")

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._server.close()

    def _main(self) -> None:
        while not self._stopped.wait(self._seconds):
            backlog, processes = self._server.xlen(STREAM), self._server.zcard(LEASES)
            self.samples.append(Sample(self.now, int(backlog), int(processes)))
