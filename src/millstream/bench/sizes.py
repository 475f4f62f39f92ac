"""How many jobs a row takes to run for so many seconds, found by short probes."""

from __future__ import annotations

from typing import Protocol

from millstream.bench.figures import Measured
from millstream.bench.rows import ROWS, Row

FIRST = 500
"""Jobs in the first probe."""

PROBE_SECONDS = 0.4
"""What a probe has to take to be believed,"""
PROBES = 3
"""and how many of them there are at most."""

PER_PROCESS = 500
"""Jobs per worker process that a row with many of them has at least: what they hold before the clock starts is a small part."""

TOGETHER = 1.5
"""How many times faster than one process many are taken to be."""


class Measure(Protocol):
    """Runs a row once: with so many jobs if it drains, for so long if not."""

    def __call__(self, row: Row, *, jobs: int, seconds: float) -> Measured: ...


class Sizes:
    """What the probes of one contender found, by row."""

    def __init__(self, measure: Measure, seconds: float, *, fixed: int | None = None) -> None:
        self._measure = measure
        self._seconds = seconds
        self._fixed = fixed
        self._rates: dict[str, float] = {}

    def jobs(self, row: Row) -> int:
        """A whole number of hundreds. 0 for rows that run by the clock. RowFailed if the probe could not be run."""
        if row.way != "drain":
            return 0
        if self._fixed is not None:
            return self._fixed * row.processes
        if row.processes > 1:
            return max(PER_PROCESS * row.processes, self._sized(TOGETHER * self._rate(ROWS[0])))
        return self._sized(self._rate(row))

    def learn(self, row: Row, measured: Measured) -> None:
        """A measured round is the best probe for the next one, unless something else slowed it down."""
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
