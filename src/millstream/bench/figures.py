"""The result of a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from millstream.errors import MillstreamError


class RowFailed(MillstreamError):
    """A row could not be run. The message says why, and includes the last output of a dead worker."""


@dataclass(frozen=True)
class Measured:
    """The result of one row in one round."""

    value: float
    """The figure, in the unit of the row."""
    jobs: int
    seconds: float
    exact: bool
    """Whether every job was handled exactly once."""
    note: str = ""
    """Why the row is not exact, or empty."""
    more: dict[str, float] = field(default_factory=dict[str, float])
    """Additional figures of the row: p99, or the memory of a worker's other processes."""

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that is at least as large as ``percent`` percent of the values. They must be sorted."""
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]
