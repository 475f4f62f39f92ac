"""How a worker ended: of one process, or of a supervisor and all its processes together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.errors import MillstreamError, WorkerCrashed
from millstream.worker import codes

if TYPE_CHECKING:
    from millstream.worker.supervisor.children.child import Child

NOTHING: Mapping[str, int] = {"done": 0, "retried": 0, "dead": 0, "refused": 0}
"""What a worker that settled nothing has settled."""


@dataclass(frozen=True)
class Summary:
    """How a worker ended. What was counted before a deadline or a kill is in it, too."""

    totals: Mapping[str, int] = field(default_factory=lambda: dict(NOTHING))
    """done, retried, dead, refused: outcomes that were settled, or could not be."""
    interrupted: int = 0
    """Running handlers that were cancelled or abandoned at the deadline, or by a second signal."""
    abandoned: int = 0
    """Of these, threads that did not return. In a process of one's own their leases were not given up, since they may still be
    running; under a supervisor they ended with their process."""
    error: BaseException | None = None
    """The first: of the worker itself, of its outcomes, or of a handler whose work is not tried again."""
    crashed: int = 0
    """Worker processes that died without having been told to stop."""
    killed: int = 0
    """Worker processes that hung, and were killed at the deadline or by a second signal."""
    reason: int = codes.OK
    """The exit code that says why it ended, if nobody told it to."""
    cut_off: int = 0
    """Of those that were killed, those that had something in their hands, and were killed because the worker stopped."""

    @property
    def exit_code(self) -> int:
        """For ``sys.exit``: 0 all that ran finished; 1 the worker failed; 2 usage; 3 server; 4 a running handler was cancelled
        or killed; 5 worker processes died as soon as they were started."""
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
            parts.append(f"the first error: {type(self.error).__name__}: {self.error}")
        return "; ".join(parts)


def added(totals: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Totals of several workers as one."""
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
        """One ended. What it reported counts, also if it was killed; ``died``: how, if not as it should; ``held``: how many
        jobs it had in its hands, None: not known."""
        self._totals = added([self._totals, child.totals])
        if stopping:  # what a reload interrupts is begun anew
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
        """What was settled by those that ended, and by these."""
        return added([self._totals, *(child.totals for child in living)])

    def summary(self, reason: int) -> Summary:
        """Of all of them. ``reason``: why the worker ended, if nobody told it to."""
        counts = self._interrupted, self._abandoned, self._error, self._crashed, self._killed
        return Summary(self._totals, *counts, reason, self._cut_off)


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"
