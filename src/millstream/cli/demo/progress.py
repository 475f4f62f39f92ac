"""Progress of the running demo, per task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from millstream import Job
from millstream.cli.demo.record import Record


@dataclass
class TaskProgress:
    """The current counts of one task."""

    task: str
    accepted: int = 0
    done: int = 0
    running: int = 0
    retried: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def waiting(self) -> int:
        """Number of jobs that are ready or scheduled."""
        return max(0, self.accepted - self.ended - self.running)

    @property
    def ended(self) -> int:
        """Number of jobs that are done, dead or cancelled."""
        return self.done + self.dead + self.cancelled


@dataclass(frozen=True)
class Progress:
    """Everything the live view shows."""

    tasks: list[TaskProgress]
    processes: dict[int, int]
    """Number of running jobs of each live worker process, by pid."""
    killed: int | None
    """The pid of the killed process."""

    @property
    def accepted(self) -> int:
        return sum(task.accepted for task in self.tasks)

    @property
    def ended(self) -> int:
        return sum(task.ended for task in self.tasks)

    @property
    def running(self) -> int:
        return sum(task.running for task in self.tasks)


def progress(
    accepted: Mapping[str, Job[Any]],
    dead: Collection[str],
    cancelled: Collection[str],
    record: Record,
    pids: Collection[int],
    killed: int | None,
) -> Progress:
    """Compute the progress from the accepted jobs, the record, and the ids of dead and cancelled jobs."""
    tasks: dict[str, TaskProgress] = {}
    for job in accepted.values():
        task = tasks.get(job.task) or tasks.setdefault(job.task, TaskProgress(job.task))
        task.accepted += 1
        task.dead += job.id in dead
        task.cancelled += job.id in cancelled
    done = {run.job: run.task for runs in record.runs.values() for run in runs if run.done}
    for name in done.values():
        tasks.setdefault(name, TaskProgress(name)).done += 1
    for job_id, attempt in record.runs:
        if attempt > 1 and job_id in accepted:
            tasks[accepted[job_id].task].retried += 1
    processes = dict.fromkeys((pid for pid in pids if pid != killed), 0)
    for run in record.running.values():
        if run.pid != killed:
            tasks.setdefault(run.task, TaskProgress(run.task)).running += 1
            processes[run.pid] = processes.get(run.pid, 0) + 1
    return Progress(list(tasks.values()), processes, killed)
