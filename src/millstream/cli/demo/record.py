"""The record: what handlers themselves say about their runs, in a file that the server knows nothing of.

A line when a run begins and one when it ends; a run that was killed has no second line.
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
"""Tells the worker's processes where the record is."""

BEGAN, DONE, FAILED = "began", "done", "failed"


@contextmanager
def on_record() -> Generator[None]:
    """Inside a handler: put this run on record."""
    _write(BEGAN)
    try:
        yield
    except BaseException:
        _write(FAILED)
        raise
    _write(DONE)


def _write(event: str) -> None:
    job = current_job()
    # time.monotonic is one clock for all processes of a machine; one write of one short line is never torn or mixed.
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
    """The record so far; ``read`` brings it up to date."""

    path: Path
    runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict[tuple[str, int], list[Run]])
    """By job and attempt, in the order in which they began. More than one: the attempt was made again."""
    running: dict[tuple[str, int, int], Run] = field(default_factory=dict[tuple[str, int, int], Run])
    """By job, attempt and process: what has begun and not ended."""
    _read: int = 0

    def read(self) -> None:
        """Take in what was written since."""
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
        """What a process is running; what it was running, if it is dead."""
        return [run for run in self.running.values() if run.pid == pid]

    @property
    def pids(self) -> set[int]:
        """Every process that ran something."""
        return {run.pid for runs in self.runs.values() for run in runs}
