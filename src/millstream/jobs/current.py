"""The current job, as its handler sees it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.worker.hot.in_flight import InFlight


class CurrentJob:
    """The job that this code runs in. ``current_job()`` returns it."""

    __slots__ = ("_job",)

    def __init__(self, job: InFlight) -> None:
        self._job = job

    @property
    def id(self) -> str:
        """The job's id. It stays the same through all attempts, so it can serve as an idempotency key."""
        return self._job.message.id

    @property
    def task(self) -> str:
        """The name of the task. For an event: ``topic/group``."""
        return self._job.handler.name

    @property
    def queue(self) -> str:
        """The name of the queue, without a shard. For an event: ``topic/group``."""
        return str(self._job.lane.queue.base)

    @property
    def attempt(self) -> int:
        """The number of this attempt, starting at 1."""
        return self._job.message.attempt

    @property
    def crashes(self) -> int:
        """How often a worker died while it was running this job."""
        return self._job.crashes

    @property
    def enqueued_at(self) -> datetime:
        """When the job was enqueued, in UTC, by the clock of the machine that enqueued it."""
        return datetime.fromtimestamp(self._job.message.enqueued_ms / 1000, UTC)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the job (``options(headers=…)``) or of the event. Empty if there are none."""
        fields = self._job.message.event
        return MappingProxyType({} if fields is None else fields.headers)

    @property
    def deadline(self) -> float | None:
        """The ``time.monotonic()`` value at which this attempt times out, or ``None`` if it has no timeout."""
        return None if self._job.ends == float("inf") else self._job.ends

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop, because its timeout has passed or the worker is shutting down.

        A thread cannot be stopped from outside, so a long-running plain function should check this regularly.
        """
        return bool(self._job.stop)

    @property
    def state(self) -> Any:
        """The value that the app's ``lifespan`` yielded, or ``None``."""
        return self._job.lane.state

    def __repr__(self) -> str:
        return repr(self._job)


_current: ContextVar[InFlight] = ContextVar("millstream_job")
set_current_job = _current.set


def current_job() -> CurrentJob:
    """Return the job that this code runs in.

    Raises:
        UsageError: The code does not run in a handler.
    """
    return CurrentJob(in_flight())


def running_job() -> CurrentJob | None:
    """Return the job that this code runs in, or ``None`` outside a handler."""
    job = _current.get(None)
    return None if job is None else CurrentJob(job)


def in_flight() -> InFlight:
    """Return the worker's record of the job that this code runs in. Raise ``UsageError`` outside a handler."""
    try:
        return _current.get()
    except LookupError:
        raise UsageError("current_job() was called outside a handler: it works only while a worker runs a job") from None


def is_current(job: InFlight) -> bool:
    """Return whether this code runs in the given job."""
    return _current.get(None) is job
