"""The tally of a row: a folder in which worker processes mark what they handled, and from which the judge reads it.

One byte per job in a file that all processes map, so that marking needs no server and no lock, and a job handled twice
shows. Worker processes write, the judge reads.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

SAMPLE = 1_000
"""How many jobs stand for all when the judge asks, every few milliseconds, how far it has come."""

MARKS, STARTS, OPEN, UP = "marks", "starts", "open", "up-"
"""The files: a byte per job, when each started, that the gate is open, and one for every process that has a job."""


def mapped(path: str) -> mmap.mmap:
    """The file as memory shared with every process that maps it."""
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def say_up(folder: str) -> None:
    """In a worker process: leave its id with the judge."""
    with open(os.path.join(folder, f"{UP}{os.getpid()}"), "w"):
        pass


class Tally:
    """The judge's side: a fresh folder, and what is marked in it."""

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
        """About how much of it is handled, from 0 to 1."""
        sample = self._marks[0 : self.jobs : self._stride]
        return 1.0 - sample.count(0) / len(sample)

    @property
    def complete(self) -> bool:
        """Whether every job has been handled. Jobs known to be handled are not looked at again."""
        self._next = self._marks.find(b"\0", self._next)
        if self._next < 0:
            self._next = self.jobs
        return self._next == self.jobs

    def count(self) -> int:
        """How many jobs have been handled."""
        return self.jobs - self._marks[:].count(0)

    def wrong(self) -> str:
        """What is not exact, in words; nothing if every job was handled, and none twice."""
        marks = self._marks[:]
        once, never = marks.count(1), marks.count(0)
        often = self.jobs - once - never
        return ", ".join(
            f"{count} {what}" for count, what in ((never, "never handled"), (often, "handled more than once")) if count
        )

    def processes(self) -> list[int]:
        """The ids of the processes that said they had a job."""
        return [int(path.name.removeprefix(UP)) for path in self.folder.glob(f"{UP}*")]

    def open_gate(self) -> None:
        """Let the handlers that wait at the gate go."""
        (self.folder / OPEN).touch()

    def close(self) -> None:
        """Unmap it."""
        self._marks.close()
