"""Strategies: from metrics to the number of processes that there should be. Pure functions of what they are told.

Whatever one wants is brought within the bounds, and done only if it wants it for a while (``stabilizer``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from millstream.errors import UsageError
from millstream.worker.scaling.metrics import Load, Metrics

WELL_WITHIN = 0.5
"""Fewer processes must be enough for this part of the target time before any goes."""

UTILISED = 0.8
"""Fewer processes must carry what comes in with this part of their time before any goes."""


class Strategy(Protocol):
    """How many processes there should be. Called once per poll; must not block."""

    def __call__(self, metrics: Metrics, /) -> int: ...


@dataclass(frozen=True)
class Backlog:
    """Enough processes to have done what there is within ``target`` seconds, at the rate that was measured.

    More as soon as the time would be longer, as many as it takes, but none that would find nothing to claim. Fewer when those
    were enough for half of the target, for what comes in, and for what runs. While no rate is known a process is taken to do as
    many jobs per second as it has slots.
    """

    target: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.target < float("inf"):
            raise UsageError(f"target must be a number of seconds above 0, not {self.target!r}")

    def __call__(self, metrics: Metrics, /) -> int:
        now = metrics.processes
        finding = sum(math.ceil(load.waiting * load.share / load.slots) for load in metrics.loads)
        up = min(_rounded_up(sum(_needed(load, self.target) for load in metrics.loads)), now + finding)
        if up > now:
            return up
        return min(now, _rounded_up(sum(_needed_still(load, self.target * WELL_WITHIN) for load in metrics.loads)))


def _needed(load: Load, seconds: float) -> float:
    """Processes that have done it in so many seconds, no more than may serve it; 0: nothing waits, nobody more is of use."""
    if not load.waiting:
        return 0.0
    return _at_most(load, load.backlog / (_rate(load) * seconds))


def _needed_still(load: Load, seconds: float) -> float:
    """Processes that are enough for what waits, comes in and runs."""
    runs = load.running / load.slots
    comes = 0.0 if load.rate is None else load.throughput / (load.rate * UTILISED)
    waits = load.backlog / (_rate(load) * seconds) if load.waiting else 0.0
    return _at_most(load, max(runs, comes, waits))


def _at_most(load: Load, processes: float) -> float:
    return (processes if load.most is None else min(processes, load.most)) * load.share


def _rounded_up(processes: float) -> int:
    return math.ceil(processes - 1e-9)  # not one more for what adding up floats left over


def _rate(load: Load) -> float:
    return load.rate or float(load.slots)


@dataclass(frozen=True)
class Threshold:
    """One more process when more waits than ``up`` times what all run at once, one less when it is less than ``down`` times.

    What all run at once is what they really do: processes times slots.
    """

    up: float = 2.0
    down: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.down < self.up < float("inf"):
            raise UsageError(f"down must be less than up, and neither below 0: not up={self.up!r}, down={self.down!r}")

    def __call__(self, metrics: Metrics, /) -> int:
        capacity = metrics.processes * metrics.concurrency
        ready = sum(load.waiting for load in metrics.loads)
        if ready > capacity * self.up:
            return metrics.processes + 1
        if ready < capacity * self.down:
            return metrics.processes - 1
        return metrics.processes
