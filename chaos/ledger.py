"""The ledger: the answers that producers received and what handlers did, in append-only files outside the server.

One folder has three files with one line of JSON per event. Each line is written by one call to a file opened with O_APPEND, so
lines of several processes never mix, and a SIGKILL loses no written line. Times are ``time.monotonic()``: one clock for all
processes of a machine, independent of their wall clocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from chaos.history import Enqueue, Fate, Fault, History, How, Run
from millstream import Snooze

ENQUEUES, RUNS, FAULTS = "enqueues", "runs", "faults"

T = TypeVar("T")


class Pen:
    """Appends lines to one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, line: object) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class RunLine(NamedTuple):
    """One line that a handler writes."""

    what: Literal["start"] | How
    key: str
    job_id: str
    pid: int
    attempt: int
    crashes: int
    began: float
    at: float


class Flake(Exception):
    """Raised by a handler on purpose, so that its job is retried."""


class RunPen:
    """In a worker: writes a line when a handler starts, and a line when it ends."""

    def __init__(self, folder: Path) -> None:
        self._pen = Pen(folder / RUNS)

    @contextmanager
    def run(self, key: str, job_id: str, attempt: int, crashes: int) -> Iterator[None]:
        """Record ``end``, ``failed`` after a Flake, ``snoozed`` after a Snooze, or ``broken`` after any other exception."""
        began = time.monotonic()
        line = RunLine("start", key, job_id, os.getpid(), attempt, crashes, began, began)
        self._pen.write(line)
        how: How = "broken"
        try:
            yield
            how = "end"
        except Flake:
            how = "failed"
            raise
        except Snooze:
            how = "snoozed"
            raise
        finally:
            self._pen.write(line._replace(what=how, at=time.monotonic()))


class Ledger:
    """In the suite: records enqueues and faults, and reads everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._enqueues, self._faults = Pen(folder / ENQUEUES), Pen(folder / FAULTS)
        self._tail = Tail(folder / RUNS, RunLine)
        self.starts: list[RunLine] = []
        self.ends: list[RunLine] = []
        """Runs that succeeded."""

    def enqueue(self, key: str, job_id: str, fate: Fate) -> None:
        self._enqueues.write(Enqueue(key, job_id, fate, time.monotonic()))

    def fault(self, fault: Fault) -> None:
        self._faults.write(fault)

    def look(self) -> None:
        """Bring ``starts`` and ``ends`` up to date."""
        for line in self._tail.read():
            if line.what == "start":
                self.starts.append(line)
            elif line.what == "end":
                self.ends.append(line)

    def history(self) -> History:
        return History(
            Tail(self.folder / ENQUEUES, Enqueue).read(),
            _runs(Tail(self.folder / RUNS, RunLine).read()),
            Tail(self.folder / FAULTS, Fault).read(),
        )

    def close(self) -> None:
        self._enqueues.close()
        self._faults.close()


class Tail(Generic[T]):
    """Reads the lines that were appended to a file since the last read."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._at = 0

    def read(self) -> list[T]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._at += len(whole)
        return [self._decoder.decode(line) for line in whole.splitlines()]


def _runs(lines: Iterable[RunLine]) -> list[Run]:
    runs: dict[tuple[str, int, float], Run] = {}
    for line in lines:
        mark = line.key, line.pid, line.began
        if line.what == "start":
            runs[mark] = Run(line.key, line.job_id, line.pid, line.attempt, line.crashes, line.began)
        else:
            runs[mark] = runs[mark]._replace(ended=line.at, how=line.what)
    return sorted(runs.values(), key=lambda run: run.began)
