"""The account: compares every accepted job with what the server and the handlers' own record say about it. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from millstream import DeadJob
from millstream.cli.demo.record import Record, Run

ENDED = ("done", "dead", "cancelled", "expired")
SHOWN = 3
"""Maximum number of jobs named per complaint. The others are counted."""


@dataclass(frozen=True)
class Kill:
    """A killed worker process and the time of the kill, in seconds of the monotonic clock."""

    pid: int
    at: float


@dataclass
class Row:
    """The counts of one task."""

    task: str
    accepted: int = 0
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDED, 0))
    retried: int = 0
    """Number of attempts after the first."""
    again: int = 0
    """Number of attempts that ran again because their process was killed."""

    @property
    def lost(self) -> int:
        """Number of jobs that were accepted and did not end."""
        return self.accepted - sum(self.ended.values())


@dataclass(frozen=True)
class Account:
    """Everything the demo knows when it ends."""

    accepted: Mapping[str, str]
    """The task of every job whose enqueue returned, by the job's id."""
    statuses: Mapping[str, str]
    """The status of each accepted job according to the server, by id."""
    letters: Sequence[DeadJob]
    record: Record
    kill: Kill | None
    doomed: Collection[str]
    """Jobs that are expected to die."""
    cancelled: Collection[str]
    """Jobs whose ``cancel()`` returned True."""

    def rows(self) -> list[Row]:
        """Return one row per task, in the order of their first accepted jobs."""
        rows: dict[str, Row] = {}
        for job, task in self.accepted.items():
            row = rows.setdefault(task, Row(task))
            row.accepted += 1
            status = self.statuses.get(job, "unknown")
            if status in ENDED:
                row.ended[status] += 1
        for (job, attempt), runs in self.record.runs.items():
            if job in self.accepted:
                row = rows[self.accepted[job]]
                row.retried += attempt > 1
                row.again += len(runs) - 1
        return list(rows.values())

    def total(self) -> Row:
        """Return the sums over all tasks."""
        total = Row("total")
        for row in self.rows():
            total.accepted += row.accepted
            total.retried += row.retried
            total.again += row.again
            for status, count in row.ended.items():
                total.ended[status] += count
        return total

    def recoveries(self) -> list[float]:
        """Return, for each job that the killed process was running, the seconds from the kill to its restart, sorted."""
        if self.kill is None:
            return []
        pairs = [(runs[0], runs[1]) for runs in self.record.runs.values() if len(runs) > 1]
        return sorted(again.began - self.kill.at for first, again in pairs if first.pid == self.kill.pid)

    def complaints(self) -> list[str]:
        """Return every inconsistency. Empty if every job is accounted for."""
        if not self.accepted:
            return ["no job was accepted"]
        runs_of: dict[str, list[Run]] = {}
        for (job, _), runs in self.record.runs.items():
            runs_of.setdefault(job, []).extend(runs)
        having = {status: {job for job, found in self.statuses.items() if found == status} for status in ENDED}
        mourned = {letter.id for letter in self.letters}
        found = [
            *self._name("{} accepted and never ended", (job for job in self.accepted if self.statuses.get(job) not in ENDED)),
            *self._name("{} run without being enqueued", runs_of.keys() - self.accepted.keys()),
            *self._name(
                "{} done according to the server, but not according to the handler",
                (job for job in having["done"] if not any(run.done for run in runs_of.get(job, ()))),
            ),
            *self._name(
                "{} cancelled according to the customer or the server, but not both", having["cancelled"] ^ set(self.cancelled)
            ),
            *self._name("{} cancelled and still run", having["cancelled"] & runs_of.keys()),
            *self._name("{} expired and still run", having["expired"] & runs_of.keys()),
            *self._name("{} dead without a dead letter", having["dead"] - mourned),
            *self._name("{} among the dead letters but not dead", mourned - having["dead"]),
            *self._name("{} dead but expected to succeed", having["dead"] - set(self.doomed)),
            *self._name("{} expected to die but not dead", set(self.doomed) - having["dead"]),
            *self._name("{} run twice without a crash", self._doubled()),
        ]
        if self.kill is None:
            found.append("no worker process was killed, because none was ever running enough jobs")
        return found

    def _doubled(self) -> set[str]:
        """Return the jobs with an attempt that ran more than once for another reason than the kill."""
        return {
            job
            for (job, _), runs in self.record.runs.items()
            for before, after in pairwise(runs)
            if self.kill is None or before.pid != self.kill.pid or after.began < self.kill.at
        }

    def _name(self, complaint: str, jobs: Iterable[str]) -> list[str]:
        """Return the complaint about these jobs, or an empty list if there are no jobs."""
        several = sorted(jobs)
        if not several:
            return []
        named = ", ".join(
            f"{job} ({self.accepted.get(job, 'unknown task')}, {self.statuses.get(job, 'unknown')})" for job in several[:SHOWN]
        )
        more = f" and {len(several) - SHOWN} more" if len(several) > SHOWN else ""
        count = "1 job was" if len(several) == 1 else f"{len(several)} jobs were"
        return [f"{complaint.format(count)}: {named}{more}"]
