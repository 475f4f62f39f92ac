"""Finds the number of jobs with which a row runs for the wanted time, by short probes."""

from __future__ import annotations

from typing import Protocol

from millstream.bench.figures import Measured
from millstream.bench.rows import ROWS, Row

FIRST = 500
"""Number of jobs of the first probe."""

PROBE_SECONDS = 0.4
"""Duration that a probe aims at. A probe of half this duration is accepted."""
PROBES = 3
"""Maximum number of probes."""

PER_PROCESS = 500
"""Minimum number of jobs per worker process in a row with many processes. With fewer, the jobs claimed before the clock starts
would be a large part."""

TOGETHER = 1.5
"""Assumed speedup of many processes over one process."""


class Measure(Protocol):
    """Runs a row once: with ``jobs`` jobs if it drains a queue, else for ``seconds``."""

    def __call__(self, row: Row, *, jobs: int, seconds: float) -> Measured: ...


class Sizes:
    """Rates found by the probes of one contender, by row."""

    def __init__(self, measure: Measure, seconds: float, *, fixed: int | None = None) -> None:
        self._measure = measure
        self._seconds = seconds
        self._fixed = fixed
        self._rates: dict[str, float] = {}

    def jobs(self, row: Row) -> int:
        """Return the number of jobs for a row, in hundreds; 0 for a row that runs for a time. Raises RowFailed if the probe
        fails."""
        if row.way != "drain":
            return 0
        if self._fixed is not None:
            return self._fixed * row.processes
        if row.processes > 1:
            return max(PER_PROCESS * row.processes, self._sized(TOGETHER * self._rate(ROWS[0])))
        return self._sized(self._rate(row))

    def learn(self, row: Row, measured: Measured) -> None:
        """Use a measured round as the probe for the next round, unless an earlier one was faster."""
        if row.way == "drain":
            self._rates[row.name] = max(measured.value, self._rates.get(row.name, 0.0))

    def _sized(self, rate: float) -> int:
        return max(1, round(rate * self._seconds / 100)) * 100

    def _rate(self, row: Row) -> float:
        known = self._rates.get(row.name)
        if known is not None:
            return known
        rate = self._rates.get(ROWS[0].name, 0.0)
        for _ in range(PROBES):
            jobs = max(FIRST, round(rate * PROBE_SECONDS))
            measured = self._measure(row, jobs=jobs, seconds=PROBE_SECONDS)
            rate = measured.value
            if measured.seconds > PROBE_SECONDS / 2:
                break
        self._rates[row.name] = rate
        return rate
