"""How many jobs a row takes to run for so many seconds, found by short probes."""

from __future__ import annotations

from contest.judge import Judge, Measured
from contest.roster import Entry
from contest.rows import ROWS, Row

# jobs in a contender's first probe
FIRST = 500
# seconds that a probe has to take to be believed, and how many probes there are at most
PROBE_SECONDS = 0.4
PROBES = 3
# jobs per worker process that a row with many of them has at least: what they hold before the clock starts is a small part
PER_PROCESS = 500
# how many times faster than one process many are taken to be
TOGETHER = 1.5


class Sizes:
    """What the probes found, by contender and row."""

    def __init__(self, judge: Judge, seconds: float, *, fixed: int | None = None) -> None:
        self._judge = judge
        self._seconds = seconds
        self._fixed = fixed
        self._rates: dict[tuple[str, str], float] = {}

    def jobs(self, entry: Entry, row: Row) -> int:
        """A whole number of hundreds. 0 for rows that run by the clock. RowFailed if the probe could not be run."""
        if row.way != "drain":
            return 0
        if self._fixed is not None:
            return self._fixed * row.processes
        if row.processes > 1:
            return max(PER_PROCESS * row.processes, self._sized(TOGETHER * self._rate(entry, ROWS["drain"])))
        return self._sized(self._rate(entry, row))

    def learn(self, entry: Entry, row: Row, measured: Measured) -> None:
        """A measured round is the best probe for the next one, unless something else slowed it down."""
        if row.way == "drain":
            self._rates[entry.name, row.name] = max(measured.value, self._rates.get((entry.name, row.name), 0.0))

    def _sized(self, rate: float) -> int:
        return max(1, round(rate * self._seconds / 100)) * 100

    def _rate(self, entry: Entry, row: Row) -> float:
        known = self._rates.get((entry.name, row.name))
        if known is not None:
            return known
        rate = self._rates.get((entry.name, "drain"), 0.0)
        for _ in range(PROBES):
            jobs = max(FIRST, round(rate * PROBE_SECONDS))
            measured = self._judge.measure(entry, row, jobs=jobs, seconds=PROBE_SECONDS)
            rate = measured.value
            if measured.seconds > PROBE_SECONDS / 2:
                break
        self._rates[entry.name, row.name] = rate
        return rate
