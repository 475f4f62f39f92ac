"""What a measurement found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from millstream.errors import MillstreamError


class RowFailed(MillstreamError):
    """A row could not be run; the message says why, a dead worker's last words included."""


@dataclass(frozen=True)
class Measured:
    """One row in one round."""

    value: float
    """In the row's unit."""
    jobs: int
    seconds: float
    exact: bool
    """Whether every job was handled, and none twice."""
    note: str = ""
    """What is not exact."""
    more: dict[str, float] = field(default_factory=dict[str, float])
    """Further figures of the row: p99, or the memory of a worker's other processes."""

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The value that so many of a hundred do not exceed."""
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]
