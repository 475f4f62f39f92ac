"""A measurement, how it is made, and the limits for its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

Figures = Mapping[str, float]
"""The figures of one round, by name."""


@dataclass(frozen=True)
class Limit:
    what: str
    figure: str
    """The name of the limited figure."""
    unit: str
    most: float
    """The limit."""


@dataclass(frozen=True)
class Measurement:
    name: str
    measure: Callable[[], Figures]
    limits: tuple[Limit, ...]
    how: str
    """How it was measured, in a few sentences; figures are named in braces."""
    cores: int = 1
    """Number of cores it needs."""


@dataclass
class Found:
    """The figures of all rounds of a measurement."""

    measurement: Measurement
    rounds: list[Figures] = field(default_factory=list[Figures])

    def values(self, figure: str) -> list[float]:
        return [figures[figure] for figures in self.rounds]

    def median(self, figure: str) -> float:
        return median(self.values(figure))

    def met(self, limit: Limit) -> bool:
        return self.median(limit.figure) <= limit.most

    @property
    def how(self) -> str:
        return self.measurement.how.format_map({name: number(self.median(name)) for name in self.rounds[0]})


def number(value: float) -> str:
    """Format a number with three significant digits; whole numbers without decimals."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 2}f}"
