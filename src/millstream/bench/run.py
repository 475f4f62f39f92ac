"""A run of several rows in several rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from millstream.bench.figures import Measured, RowFailed
from millstream.bench.judge import Judge
from millstream.bench.rows import Row
from millstream.bench.sizes import Sizes


@dataclass
class Found:
    """The results of all rounds of one row."""

    row: Row
    rounds: list[Measured] = field(default_factory=list[Measured])
    failures: list[str] = field(default_factory=list[str])

    def values(self, figure: str = "") -> list[float]:
        """Return one value per round: the main figure, or the named additional figure."""
        return [each.more[figure] if figure else each.value for each in self.rounds]

    def median(self, figure: str = "") -> float | None:
        """Return the median over the rounds, or ``None`` if the row could not be run."""
        values = self.values(figure)
        return median(values) if values else None

    @property
    def wrong(self) -> list[str]:
        """Why the figures are not reliable: failures, and rounds that were not exact."""
        return self.failures + [each.note for each in self.rounds if not each.exact]


def measure(judge: Judge, rows: Sequence[Row], *, rounds: int, seconds: float, told: Callable[[int, str], None]) -> list[Found]:
    """Measure all rows, round after round. ``told`` receives the number of rows finished since its last call, and the name of
    the current row.

    A row that cannot be run is recorded as a failure, and the other rows continue.
    """
    sizes = Sizes(judge.measure, seconds)
    found = {row.name: Found(row) for row in rows}
    for _ in range(rounds):
        for row in rows:
            told(0, row.name)
            try:
                measured = judge.measure(row, jobs=sizes.jobs(row), seconds=seconds)
            except RowFailed as error:
                found[row.name].failures.append(str(error))
            else:
                sizes.learn(row, measured)
                found[row.name].rounds.append(measured)
            told(1, row.name)
    return list(found.values())
