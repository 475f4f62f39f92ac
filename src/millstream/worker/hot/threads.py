"""Threads for plain functions. They are daemon threads, so that a function that never returns cannot keep the process alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from millstream.jobs.current import set_current_job
from millstream.worker.hot.in_flight import InFlight

Work = Any
"""A job, or a batch of them."""
Done = Callable[[Work, Any, BaseException | None], None]


class Threads:
    """Runs jobs in at most ``size`` threads, started on demand. Finished jobs return to the event loop in batches."""

    def __init__(self, size: int, call: Callable[[Work], Any], done: Done) -> None:
        self._size = size
        self._call = call
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._finished: list[tuple[Work, Any, BaseException | None]] = []
        self._woken = False
        """The loop was woken to collect finished jobs, and has not done so yet."""
        self._started = 0
        self._busy = 0

    @property
    def busy(self) -> bool:
        """Whether a function is still running. May be read from any thread."""
        return self._busy > len(self._finished)

    def submit(self, job: Work) -> None:
        """Run a job in a thread. The caller counts free threads. Raises RuntimeError if no thread can be started at all."""
        if self._busy >= self._started < self._size:
            try:
                threading.Thread(target=self._work, name=f"millstream-{self._started + 1}", daemon=True).start()
                self._started += 1
            except RuntimeError:
                if not self._started:
                    raise  # otherwise the job waits for one of the running threads
        self._busy += 1
        self._jobs.put(job)

    def close(self) -> None:
        """Let idle threads end."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            value, error = None, None
            try:
                value = copy_context().run(self._run, job)
            except BaseException as raised:
                error = raised
            # One wake-up of the loop collects all jobs that finish before the loop runs.
            with self._lock:
                self._finished.append((job, value, error))
                wake, self._woken = not self._woken, True
            if wake:
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the loop is closed: the worker stopped without waiting for this thread
                    return

    def _run(self, job: Work) -> Any:
        if isinstance(job, InFlight):
            set_current_job(job)
        return self._call(job)

    def _collect(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, []
            self._woken = False
        for job, value, error in finished:
            self._busy -= 1
            self._done(job, value, error)
