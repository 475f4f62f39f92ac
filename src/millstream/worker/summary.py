"""How a worker ended: one process, or a supervisor with all its processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.errors import MillstreamError, WorkerCrashed
from millstream.worker import codes

if TYPE_CHECKING:
    from millstream.worker.supervisor.children.child import Child

NOTHING: Mapping[str, int] = {"done": 0, "retried": 0, "dead": 0, "refused": 0}
"""The totals of a worker that settled nothing."""


@dataclass(frozen=True)
class Summary:
    """How a worker ended. Includes the outcomes counted before the grace period ended or a process was killed."""

    totals: Mapping[str, int] = field(default_factory=lambda: dict(NOTHING))
    """Settled outcomes: done, retried, dead. ``refused`` counts outcomes that the server did not accept."""
    interrupted: int = 0
    """Running handlers that were cancelled or abandoned, at the end of the grace period or by a second signal."""
    abandoned: int = 0
    """Interrupted handlers whose threads did not return. Inside the user's own process, their leases were not given up, because
    they may still be running. Under a supervisor, they ended with their process."""
    error: BaseException | None = None
    """The first error of the worker itself, of settling an outcome, or of a handler whose job is not retried."""
    crashed: int = 0
    """Worker processes that died without having been asked to stop."""
    killed: int = 0
    """Worker processes that hung and were killed, at the end of the grace period or by a second signal."""
    reason: int = codes.OK
    """The exit code that says why the worker ended on its own. `codes.OK` if it was asked to stop."""
    cut_off: int = 0
    """Worker processes that held messages when they were killed because the worker was stopping."""

    @property
    def exit_code(self) -> int:
        """The code for ``sys.exit``.

        0: all running jobs finished. 1: the worker failed. 2: usage error. 3: server unreachable. 4: a running handler was
        cancelled or killed. 5: worker processes died right after their start.
        """
        if self.reason:
            return self.reason
        return codes.INTERRUPTED if self.interrupted or self.cut_off else codes.OK

    def __str__(self) -> str:
        parts = [", ".join(f"{self.totals.get(total, 0):,} {total}" for total in ("done", "retried", "dead"))]
        if self.totals.get("refused"):
            parts[0] += f", {self.totals['refused']:,} refused"
        if self.interrupted:
            parts[0] += f", {self.interrupted:,} interrupted"
        if self.crashed:
            parts.append(f"{_processes(self.crashed)} crashed")
        if self.killed:
            parts.append(f"{_processes(self.killed)} killed")
        if self.error is not None:
            parts.append(f"first error: {type(self.error).__name__}: {self.error}")
        return "; ".join(parts)


def added(totals: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of the totals of several workers."""
    summed = dict(NOTHING)
    for each in totals:
        for name, count in each.items():
            summed[name] = summed.get(name, 0) + count
    return summed


class Tally:
    """Adds up how the children of a supervisor ended."""

    def __init__(self) -> None:
        self._totals = dict(NOTHING)
        self._interrupted = self._abandoned = self._crashed = self._killed = self._cut_off = 0
        self._error: BaseException | None = None

    def add(self, child: Child, code: int, died: str, *, held: int | None, stopping: bool) -> None:
        """Add a child that ended. Its reported totals count even if it was killed.

        ``died`` says how the child ended if its end was unexpected. ``held`` is the number of jobs that it held, or None if
        that is unknown.
        """
        self._totals = added([self._totals, child.totals])
        if stopping:  # jobs that a reload interrupts are started again
            self._interrupted += max(child.interrupted, int(code == codes.INTERRUPTED))
            self._abandoned += 0 if child.bye is None else child.bye.abandoned
        self._killed += child.killed
        self._cut_off += child.cut_off and child.had_something(held)
        self._crashed += bool(died) and not child.told_to_stop
        if child.bye is not None and child.bye.error:
            self._error = self._error or MillstreamError(child.bye.error)
        if died and not child.told_to_stop:
            self._error = self._error or WorkerCrashed(died)

    def totals(self, living: Iterable[Child] = ()) -> dict[str, int]:
        """Return the totals of all children that ended, plus those of ``living``."""
        return added([self._totals, *(child.totals for child in living)])

    def summary(self, reason: int) -> Summary:
        """Return the summary of all children. ``reason``: why the worker ended on its own."""
        counts = self._interrupted, self._abandoned, self._error, self._crashed, self._killed
        return Summary(self._totals, *counts, reason, self._cut_off)


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"
