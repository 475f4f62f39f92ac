"""The record: a file in which handlers log their own runs, independent of the server.

A run writes one line when it begins and one when it ends. A killed run has no second line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millstream import current_job

PATH_VARIABLE = "MILLSTREAM_DEMO_RECORD"
"""Environment variable with the path of the record, for the worker processes."""

BEGAN, DONE, FAILED = "began", "done", "failed"


@contextmanager
def on_record() -> Generator[None]:
    """Write the beginning and the end of this run to the record. For use inside a handler."""
    _write(BEGAN)
    try:
        yield
    except BaseException:
        _write(FAILED)
        raise
    _write(DONE)


def _write(event: str) -> None:
    job = current_job()
    # All processes of a machine share the clock of time.monotonic. Appending a short line in one write is atomic.
    line = f"{time.monotonic():.6f} {event} {os.getpid()} {job.id} {job.attempt} {job.task}\n"
    file = os.open(os.environ[PATH_VARIABLE], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@dataclass
class Run:
    """One run of a handler. Times in seconds of the monotonic clock."""

    job: str
    task: str
    attempt: int
    pid: int
    began: float
    ended: float | None = None
    done: bool = False


@dataclass
class Record:
    """The content of the record as of the last ``read``."""

    path: Path
    runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict[tuple[str, int], list[Run]])
    """Runs by job and attempt, in the order they began. An attempt with several runs was interrupted and ran again."""
    running: dict[tuple[str, int, int], Run] = field(default_factory=dict[tuple[str, int, int], Run])
    """Runs that have begun and not ended, by job, attempt and process."""
    _read: int = 0

    def read(self) -> None:
        """Read the lines written since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            self._take(line)

    def _take(self, line: str) -> None:
        moment, event, pid, job, attempt, task = line.split(" ", 5)
        key = job, int(attempt), int(pid)
        if event == BEGAN:
            run = self.running[key] = Run(job, task, int(attempt), int(pid), float(moment))
            self.runs.setdefault((job, int(attempt)), []).append(run)
        elif run_ended := self.running.pop(key, None):
            run_ended.ended = float(moment)
            run_ended.done = event == DONE

    def running_in(self, pid: int) -> list[Run]:
        """Return the runs in progress in a process, or those it was running when it died."""
        return [run for run in self.running.values() if run.pid == pid]

    @property
    def pids(self) -> set[int]:
        """The pids of all processes that ran a job."""
        return {run.pid for runs in self.runs.values() for run in runs}
