"""Snapshots of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from millstream.broker import JobView, Why
from millstream.broker.explaining import Facts, explain
from millstream.model.address import Address
from millstream.model.message import Attempt
from millstream.model.types import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A snapshot of a job on the server, returned by ``job.info()``. A field is ``None`` if it is unknown or does not apply."""

    id: str
    """The job's id."""
    task: str
    """The name of the task; empty if it is unknown."""
    queue: str
    """The name of the queue, without a shard."""
    status: Status
    """The job's state, as ``job.status()`` returns it."""
    why: Why
    """Why the job is not running, or that it is."""
    attempt: int | None
    """The number of the current attempt, or of the next one if the job waits. The first is 1."""
    crashes: int
    """How often a worker died while it was running the job."""
    last_error: str | None
    """The error of the last failed attempt, as ``Type: message``."""
    failures: tuple[Attempt, ...]
    """The last ten failed attempts, oldest first."""
    enqueued_at: datetime | None
    """When the job was enqueued, by the clock of that machine. All other times are by the server's clock."""
    due_at: datetime | None
    """When a scheduled job or a retry becomes ready."""
    expires_at: datetime | None
    """When the job expires if it has not started by then."""
    started_at: datetime | None
    """When a worker claimed the job; only while it runs."""
    ended_at: datetime | None
    """When the job ended."""
    worker: str
    """The id of the worker that runs the job; empty if it is not running."""
    shard: int | None
    """The index of the job's shard, or ``None`` if the queue is not sharded."""
    order_key: bytes | None
    """The ordering key; only while the server stores the job."""
    headers: Mapping[str, str]
    """The headers that the job was enqueued with; only while the server stores the job."""

    @classmethod
    def of(cls, view: JobView, facts: Facts) -> JobInfo:
        """Return the snapshot for what was read from the server."""
        message, letter = view.message, view.why_dead
        error = letter.error if letter is not None else message.last_error if message is not None else None
        return cls(
            id=view.id,
            task=view.task,
            queue=str(Address(view.queue).base),
            status=view.status,
            why=explain(facts),
            attempt=letter.attempts if letter is not None else message.attempt if message is not None else None,
            crashes=view.crashes,
            last_error=None if error is None else f"{error.type}: {error.message}",
            failures=view.failures,
            enqueued_at=moment(view.enqueued_ms / 1000 or None),
            due_at=moment(view.due_at),
            expires_at=moment(view.expires_at),
            started_at=moment(view.since),
            ended_at=moment(view.ended_at),
            worker=view.worker,
            shard=Address(view.queue).shard,
            order_key=facts.standing.key,
            headers={} if message is None or message.event is None else message.event.headers,
        )


def moment(at: float | None) -> datetime | None:
    """Return epoch seconds as a UTC datetime; ``None`` for ``None``, and for times after the year 9999."""
    try:
        return None if at is None else datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError):
        return None
