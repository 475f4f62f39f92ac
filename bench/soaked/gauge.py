"""The figures of a soak: memory and open files of each process, memory and keys of the server."""

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
    """Seconds since the start of the soak."""
    jobs: int
    """Jobs accepted so far."""
    figures: dict[str, float]
    """Figures by name, in MB or as counts."""


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
    except OSError:  # the process has exited
        return 0


def _anonymous_bytes(pid: int) -> int:
    """Return the resident memory of the process itself, without mapped files such as the handlers' counts."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


class Course(NamedTuple):
    """A figure over time. Each value is the median of an eighth of the samples."""

    name: str
    start: float
    """At the end of the first quarter, when caches and pools are full."""
    middle: float
    end: float

    @property
    def flat(self) -> bool:
        """Whether it has grown by at most a tenth plus the noise of small figures: 2 MB, or 20. Keys that expire are
        excluded, because their number follows the rate. The report lists those that remain."""
        return "that expire" in self.name or self.end <= self.start * 1.1 + (2.0 if "MB" in self.name else 20.0)


def courses(samples: Sequence[Sample]) -> list[Course]:
    """Return every figure of the samples, of which there must be at least eight."""
    eighth = len(samples) // 8

    def median(name: str, eighths: float) -> float:
        begin = round(eighths * eighth)
        return statistics.median(sample.figures[name] for sample in samples[begin : begin + eighth])

    names = [name for name in samples[0].figures if all(name in sample.figures for sample in samples)]
    last = (len(samples) - eighth) / eighth
    return [Course(name, median(name, 1), median(name, 3.5), median(name, last)) for name in names]
