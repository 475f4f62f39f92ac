"""Strategies: pure functions from metrics to the wanted number of processes.

The result is brought within the worker's bounds, and applied only if it lasts for a while (``stabilizer``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from millstream.errors import UsageError
from millstream.worker.scaling.metrics import Load, Metrics

WELL_WITHIN = 0.5
"""Processes end only if the remaining ones can finish the backlog within this part of the target time."""

UTILISED = 0.8
"""Processes end only if the remaining ones can handle the throughput with this part of their time."""


class Strategy(Protocol):
    """Returns the wanted number of processes. Called once per poll; must not block."""

    def __call__(self, metrics: Metrics, /) -> int: ...


@dataclass(frozen=True)
class Backlog:
    """Wants enough processes to finish the backlog within ``target`` seconds, at the measured rate.

    Scales up as soon as the backlog would take longer, by as many processes as needed, except those that would find nothing to
    claim. Scales down when fewer processes are enough for half of the target, for the throughput, and for the running jobs.
    Until a rate is measured, a process is assumed to finish one job per second and slot.
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
    """Return how many processes finish the load within ``seconds``, up to the maximum of the address. 0 if nothing waits."""
    if not load.waiting:
        return 0.0
    return _at_most(load, load.backlog / (_rate(load) * seconds))


def _needed_still(load: Load, seconds: float) -> float:
    """Return how many processes are enough for the waiting, incoming and running messages."""
    runs = load.running / load.slots
    comes = 0.0 if load.rate is None else load.throughput / (load.rate * UTILISED)
    waits = load.backlog / (_rate(load) * seconds) if load.waiting else 0.0
    return _at_most(load, max(runs, comes, waits))


def _at_most(load: Load, processes: float) -> float:
    return (processes if load.most is None else min(processes, load.most)) * load.share


def _rounded_up(processes: float) -> int:
    return math.ceil(processes - 1e-9)  # rounding errors of the sum must not add a process


def _rate(load: Load) -> float:
    return load.rate or float(load.slots)


@dataclass(frozen=True)
class Threshold:
    """Wants one more process if more than ``up`` times the capacity is waiting, and one fewer if less than ``down`` times.

    The capacity is the number of jobs that all processes run at the same time: processes times slots.
    """

    up: float = 2.0
    down: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.down < self.up < float("inf"):
            raise UsageError(f"down must be less than up (0 <= down < up < inf), not up={self.up!r}, down={self.down!r}")

    def __call__(self, metrics: Metrics, /) -> int:
        capacity = metrics.processes * metrics.concurrency
        ready = sum(load.waiting for load in metrics.loads)
        if ready > capacity * self.up:
            return metrics.processes + 1
        if ready < capacity * self.down:
            return metrics.processes - 1
        return metrics.processes
