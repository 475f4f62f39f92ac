"""A measurement, how it is made, and the limits that its figures are held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

Figures = Mapping[str, float]
"""What one round found, by name."""


@dataclass(frozen=True)
class Limit:
    what: str
    figure: str
    """Its name among the measurement's."""
    unit: str
    most: float
    """The bar."""


@dataclass(frozen=True)
class Measurement:
    name: str
    measure: Callable[[], Figures]
    limits: tuple[Limit, ...]
    how: str
    """How it was made, in a few sentences; figures are named in braces."""
    cores: int = 1
    """How many it needs."""


@dataclass
class Found:
    """What the rounds of a measurement found."""

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
    """For people: three digits that count, whole numbers whole."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 2}f}"
