"""Threads for plain functions: daemons, so that one that never returns cannot keep the process alive."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from millstream.current import CurrentJob, set_current_job

Done = Callable[[CurrentJob, Any, BaseException | None], None]


class Threads:
    """Runs jobs in at most ``size`` threads, started as they are needed. Finished jobs come back to the loop in batches."""

    def __init__(self, size: int, call: Callable[[CurrentJob], Any], done: Done) -> None:
        self._size = size
        self._call = call
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[CurrentJob | None] = SimpleQueue()
        self._finished: deque[tuple[CurrentJob, Any, BaseException | None]] = deque()
        self._started = 0
        self._busy = 0

    def submit(self, job: CurrentJob) -> None:
        """Run a job; the caller keeps count of free threads."""
        self._busy += 1
        if self._busy > self._started < self._size:
            self._started += 1
            threading.Thread(target=self._work, name=f"millstream-{self._started}", daemon=True).start()
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
            # One wake-up of the loop serves all that finish before it gets there. Append first, then look: the other way round
            # the loop could empty the deque in between and this job would wait for the next one to finish.
            self._finished.append((job, value, error))
            if len(self._finished) == 1:
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the loop is closed: the worker has stopped without us
                    return

    def _run(self, job: CurrentJob) -> Any:
        set_current_job(job)
        return self._call(job)

    def _collect(self) -> None:
        finished = self._finished
        while finished:
            job, value, error = finished.popleft()
            self._busy -= 1
            self._done(job, value, error)
