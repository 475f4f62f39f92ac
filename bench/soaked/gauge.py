"""What a soak watches: memory and open files of each process, memory and keys of the server."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import redis

MB = 1_000_000


class Sample(NamedTuple):
    at: float
    """Seconds since the soak began."""
    jobs: int
    """Accepted by then."""
    figures: dict[str, float]
    """By name: MB, or how many."""


class Gauge:
    """Reads /proc, so Linux only."""

    def __init__(self, server: redis.Redis, supervisor: int) -> None:
        self._server = server
        self._supervisor = supervisor
        info: Any = server.info("server")
        self._server_pid = int(info["process_id"])

    def look(self) -> dict[str, float]:
        children = [pid for pid in _pids() if _parent(pid) == self._supervisor]
        memory: Any = self._server.info("memory")
        clients: Any = self._server.info("clients")
        figures: dict[str, float] = {}
        processes = {"producer": os.getpid(), "supervisor": self._supervisor}
        processes |= {f"child {place}": pid for place, pid in enumerate(sorted(children), 1)}
        for name, pid in processes.items():
            figures[f"{name}: memory, MB"] = _anonymous_bytes(pid) / MB
            figures[f"{name}: open files"] = len(os.listdir(f"/proc/{pid}/fd"))
        figures["server: used_memory, MB"] = memory["used_memory"] / MB
        figures["server: memory, MB"] = _anonymous_bytes(self._server_pid) / MB
        figures["server: connections"] = clients["connected_clients"]
        spaces: Any = self._server.info("keyspace")
        keys, expiring = (int(spaces.get("db0", {}).get(name, 0)) for name in ("keys", "expires"))
        figures["server: keys that stay"] = keys - expiring
        figures["server: keys that expire"] = expiring
        return figures


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def _anonymous_bytes(pid: int) -> int:
    """Resident memory that is the process's own: without files that are mapped, as the counts of the handlers are."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


class Course(NamedTuple):
    """A figure over time: medians of an eighth of the samples, each."""

    name: str
    start: float
    """At the end of the first quarter: what fills caches and pools once has done so."""
    middle: float
    end: float

    @property
    def flat(self) -> bool:
        """Whether it has not grown, but for a tenth and what is noise in small figures: 2 MB, or 20. Keys that expire are as
        many as were made within the time for which they are kept: the report lists what is left of them."""
        return "that expire" in self.name or self.end <= self.start * 1.1 + (2.0 if "MB" in self.name else 20.0)


def courses(samples: Sequence[Sample]) -> list[Course]:
    """Every figure of the samples; there must be eight at least."""
    eighth = len(samples) // 8

    def median(name: str, eighths: float) -> float:
        begin = round(eighths * eighth)
        return statistics.median(sample.figures[name] for sample in samples[begin : begin + eighth])

    names = [name for name in samples[0].figures if all(name in sample.figures for sample in samples)]
    last = (len(samples) - eighth) / eighth
    return [Course(name, median(name, 1), median(name, 3.5), median(name, last)) for name in names]
