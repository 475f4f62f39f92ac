"""The tally of a row: a folder in which worker processes mark the jobs they handled, for the judge to read.

The marks are one byte per job in a file that all processes map into memory. So marking needs no server and no lock, and a job
that was handled twice is visible. Worker processes write, the judge reads.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

SAMPLE = 1_000
"""Size of the sample with which the judge estimates the progress every few milliseconds."""

MARKS, STARTS, OPEN, UP = "marks", "starts", "open", "up-"
"""File names: one byte per job, the start time of each job, a flag that the gate is open, and the prefix of the file of each
process that has a job."""


def mapped(path: str) -> mmap.mmap:
    """Map a file into memory shared with all processes that map it."""
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def say_up(folder: str) -> None:
    """Register the pid of this worker process for the judge."""
    with open(os.path.join(folder, f"{UP}{os.getpid()}"), "w"):
        pass


class Tally:
    """The judge's view of a fresh folder and the marks in it."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder = folder
        self.jobs = jobs
        (folder / MARKS).write_bytes(bytes(jobs))
        (folder / STARTS).write_bytes(bytes(8 * jobs))
        self._marks = mapped(str(folder / MARKS))
        self._stride = max(1, jobs // SAMPLE)
        self._next = 0

    @property
    def share(self) -> float:
        """Estimated share of handled jobs, from 0 to 1."""
        sample = self._marks[0 : self.jobs : self._stride]
        return 1.0 - sample.count(0) / len(sample)

    @property
    def complete(self) -> bool:
        """Whether every job has been handled. Jobs known to be handled are not checked again."""
        self._next = self._marks.find(b"\0", self._next)
        if self._next < 0:
            self._next = self.jobs
        return self._next == self.jobs

    def count(self) -> int:
        """Return the number of handled jobs."""
        return self.jobs - self._marks[:].count(0)

    def wrong(self) -> str:
        """Return why the row is not exact, or an empty string if every job was handled exactly once."""
        marks = self._marks[:]
        once, never = marks.count(1), marks.count(0)
        often = self.jobs - once - never
        return ", ".join(
            f"{count} {what}" for count, what in ((never, "never handled"), (often, "handled more than once")) if count
        )

    def processes(self) -> list[int]:
        """Return the pids of the processes that registered."""
        return [int(path.name.removeprefix(UP)) for path in self.folder.glob(f"{UP}*")]

    def open_gate(self) -> None:
        """Release the handlers that wait at the gate."""
        (self.folder / OPEN).touch()

    def close(self) -> None:
        """Unmap the marks."""
        self._marks.close()
