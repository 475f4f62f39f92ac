"""The job a handler is running, as the handler sees it."""

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
    """The job that this code runs in: what a handler may know of it. Made by ``current_job()``."""

    __slots__ = ("_job",)

    def __init__(self, job: InFlight) -> None:
        self._job = job

    @property
    def id(self) -> str:
        return self._job.message.id

    @property
    def task(self) -> str:
        """The task's name."""
        return self._job.handler.name

    @property
    def queue(self) -> str:
        """The queue's name; of one with shards its base name."""
        return str(self._job.lane.queue.base)

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._job.message.attempt

    @property
    def crashes(self) -> int:
        """How many workers died while running it."""
        return self._job.crashes

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._job.message.enqueued_ms / 1000, UTC)

    @property
    def headers(self) -> Mapping[str, str]:
        """What ``options(headers=…)`` said, or the publisher of the event."""
        fields = self._job.message.event
        return MappingProxyType({} if fields is None else fields.headers)

    @property
    def deadline(self) -> float | None:
        """When the timeout strikes, in the loop's time (``time.monotonic``); None: no timeout."""
        return None if self._job.ends == float("inf") else self._job.ends

    @property
    def cancelled(self) -> bool:
        """Whether it should stop: its timeout has passed, or the worker is shutting down. For code in threads to look at."""
        return bool(self._job.stop)

    @property
    def state(self) -> Any:
        """What the app's lifespan yielded."""
        return self._job.lane.state

    def __repr__(self) -> str:
        return repr(self._job)


_current: ContextVar[InFlight] = ContextVar("millstream_job")
set_current_job = _current.set


def current_job() -> CurrentJob:
    """The job this code runs in. Raises UsageError outside a handler."""
    return CurrentJob(in_flight())


def running_job() -> CurrentJob | None:
    """The job this code runs in; None outside a handler."""
    job = _current.get(None)
    return None if job is None else CurrentJob(job)


def in_flight() -> InFlight:
    """What the worker knows of the job this code runs in. Raises UsageError outside a handler."""
    try:
        return _current.get()
    except LookupError:
        raise UsageError("current_job() was called outside a handler: it is known only while a worker runs a job") from None


def is_current(job: InFlight) -> bool:
    """Whether this code runs in it."""
    return _current.get(None) is job
