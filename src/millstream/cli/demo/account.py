"""The account: what was accepted against what became of it, by the server and by the record. Pure: values in, sentences out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from millstream import DeadJob
from millstream.cli.demo.record import Record, Run

ENDED = ("done", "dead", "cancelled", "expired")
SHOWN = 3
"""Jobs named per complaint; of the others, how many."""


@dataclass(frozen=True)
class Kill:
    """A worker process that was killed, and when: seconds of the monotonic clock."""

    pid: int
    at: float


@dataclass
class Row:
    """One task in numbers."""

    task: str
    accepted: int = 0
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDED, 0))
    retried: int = 0
    """Attempts after the first."""
    again: int = 0
    """Attempts that had to be made again, because the process that made them was killed."""

    @property
    def lost(self) -> int:
        """Accepted, and not ended in any way."""
        return self.accepted - sum(self.ended.values())


@dataclass(frozen=True)
class Account:
    """Everything the demo knows at its end."""

    accepted: Mapping[str, str]
    """The task of every job whose enqueue returned, by the job's id."""
    statuses: Mapping[str, str]
    """Where the server says each of them is, by id."""
    letters: Sequence[DeadJob]
    record: Record
    kill: Kill | None
    doomed: Collection[str]
    """Jobs that are meant to die."""
    cancelled: Collection[str]
    """Jobs whose ``cancel()`` said that they will not run."""

    def rows(self) -> list[Row]:
        """One row per task, in the order in which they were first accepted."""
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
        """All tasks together."""
        total = Row("total")
        for row in self.rows():
            total.accepted += row.accepted
            total.retried += row.retried
            total.again += row.again
            for status, count in row.ended.items():
                total.ended[status] += count
        return total

    def recoveries(self) -> list[float]:
        """For each job the killed process was running: seconds from the kill until it began again, the shortest first."""
        if self.kill is None:
            return []
        pairs = [(runs[0], runs[1]) for runs in self.record.runs.values() if len(runs) > 1]
        return sorted(again.began - self.kill.at for first, again in pairs if first.pid == self.kill.pid)

    def complaints(self) -> list[str]:
        """What does not add up; empty if the account closes."""
        if not self.accepted:
            return ["no job was accepted"]
        runs_of: dict[str, list[Run]] = {}
        for (job, _), runs in self.record.runs.items():
            runs_of.setdefault(job, []).extend(runs)
        having = {status: {job for job, found in self.statuses.items() if found == status} for status in ENDED}
        mourned = {letter.id for letter in self.letters}
        found = [
            *self._name("{} not brought to an end", (job for job in self.accepted if self.statuses.get(job) not in ENDED)),
            *self._name("{} run that nobody had enqueued", runs_of.keys() - self.accepted.keys()),
            *self._name(
                "{} done for the server, but no handler says so",
                (job for job in having["done"] if not any(run.done for run in runs_of.get(job, ()))),
            ),
            *self._name(
                "{} cancelled by the customer or by the server, not by both", having["cancelled"] ^ set(self.cancelled)
            ),
            *self._name("{} cancelled, and run all the same", having["cancelled"] & runs_of.keys()),
            *self._name("{} expired, and run all the same", having["expired"] & runs_of.keys()),
            *self._name("{} dead without a dead letter", having["dead"] - mourned),
            *self._name("{} in the dead letters, but not dead", mourned - having["dead"]),
            *self._name("{} dead, though nothing was wrong with it", having["dead"] - set(self.doomed)),
            *self._name("{} alive, though it could only die", set(self.doomed) - having["dead"]),
            *self._name("{} run twice, though no process died of it", self._doubled()),
        ]
        if self.kill is None:
            found.append("no worker process was killed: none was ever seen running enough jobs")
        return found

    def _doubled(self) -> set[str]:
        """Jobs an attempt of which was made more than once, other than because of the kill."""
        return {
            job
            for (job, _), runs in self.record.runs.items()
            for before, after in pairwise(runs)
            if self.kill is None or before.pid != self.kill.pid or after.began < self.kill.at
        }

    def _name(self, complaint: str, jobs: Iterable[str]) -> list[str]:
        """The complaint about these jobs, none if there are none."""
        several = sorted(jobs)
        if not several:
            return []
        named = ", ".join(
            f"{job} ({self.accepted.get(job, 'unknown task')}, {self.statuses.get(job, 'unknown')})" for job in several[:SHOWN]
        )
        more = f" and {len(several) - SHOWN} more" if len(several) > SHOWN else ""
        count = "1 job was" if len(several) == 1 else f"{len(several)} jobs were"
        return [f"{complaint.format(count)}: {named}{more}"]
