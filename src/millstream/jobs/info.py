"""What is known of a job at one moment."""

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
    """A job as the server had it when it was asked. ``None`` where something is not known or does not apply."""

    id: str
    task: str
    """The name of its task; empty if it is not known."""
    queue: str
    status: Status
    why: Why
    """Why it is not running, or that it is."""
    attempt: int | None
    """The number of its current attempt, or of the next one if it waits; 1 for the first."""
    crashes: int
    """How many workers died while running it."""
    last_error: str | None
    """The error of its last failed attempt, as ``Type: text``."""
    failures: tuple[Attempt, ...]
    """Its last ten failed attempts, oldest first."""
    enqueued_at: datetime | None
    """By the clock of the machine that enqueued it; the other moments are by the server's."""
    due_at: datetime | None
    """When a scheduled job, or a retry, will be ready."""
    expires_at: datetime | None
    started_at: datetime | None
    """When its worker claimed it, while it runs."""
    ended_at: datetime | None
    worker: str
    """The id of the worker that runs it; empty if none does."""
    shard: int | None
    """The shard of its queue, if that has any."""
    order_key: bytes | None
    """Its ordering key, while the server has the job."""
    headers: Mapping[str, str]
    """What it was enqueued with, while the server has the job."""

    @classmethod
    def of(cls, view: JobView, facts: Facts) -> JobInfo:
        """What was read of a job, for people."""
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
    """Epoch seconds as a datetime; None for one past the year 9999, too."""
    try:
        return None if at is None else datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError):
        return None
