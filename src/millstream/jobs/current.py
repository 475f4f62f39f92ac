"""The job a handler is running, as the handler sees it."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import UsageError
from millstream.model.address import base_name

if TYPE_CHECKING:
    import asyncio

    from millstream.model.handler import Handler
    from millstream.model.message import Message
    from millstream.model.outcome import Said
    from millstream.worker.hot.lane import Lane


class CurrentJob(msgspec.Struct, eq=False, gc=False):
    """A job between its claim and its settling. Handlers reach theirs through ``current_job()``.

    The underscored attributes belong to the worker. (Hot: a struct is made in half the time of a class, and not seeing it
    spares the garbage collector work; the one cycle it is in, with its asyncio task, ends with that task.)
    """

    _lane: Lane
    _ref: bytes
    _message: Message
    _task: Handler
    _crashes: int
    _expires_ms: int
    _since: float
    """Loop time at which it was claimed, then at which it started."""
    _ends: float = 0.0
    """Loop time of its deadline; infinity: none."""
    _running: asyncio.Task[None] | None = None
    """The asyncio task of a coroutine; None in a thread."""
    _stop: str = ""
    """Why it should stop: timeout, shutdown or fenced."""
    _said: Said | None = None
    """How a handler of events said that it ends."""
    _open: bool = False
    """Its handler has ended, and its delivery goes on."""
    _over: bool = False
    """That has ended too, or nobody is left who could tell it how."""

    @property
    def id(self) -> str:
        return self._message.id

    @property
    def task(self) -> str:
        """The task's name."""
        return self._task.name

    @property
    def queue(self) -> str:
        """Of one with shards, the whole's name."""
        return base_name(self._lane.queue)

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._message.attempt

    @property
    def crashes(self) -> int:
        """How many workers died while running it."""
        return self._crashes

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._message.enqueued_ms / 1000, UTC)

    @property
    def deadline(self) -> float | None:
        """When the timeout strikes, in the loop's time (``time.monotonic``); None: no timeout."""
        return None if self._ends == float("inf") else self._ends

    @property
    def cancelled(self) -> bool:
        """Whether it should stop: its timeout has passed, or the worker is shutting down. For code in threads to look at."""
        return bool(self._stop)

    @property
    def state(self) -> Any:
        """What the app's lifespan yielded."""
        return self._lane.state

    def __repr__(self) -> str:
        what = f"job {self.id} of task" if self._lane.handler is None else f"event {self.id} of"
        return f"<{what} {self.task!r}, attempt {self.attempt}>"


_current: ContextVar[CurrentJob] = ContextVar("millstream_job")
set_current_job = _current.set


def current_job() -> CurrentJob:
    """The job this code runs in. Raises UsageError outside a handler."""
    try:
        return _current.get()
    except LookupError:
        raise UsageError("current_job() was called outside a handler: it is known only while a worker runs a job") from None


def is_current(job: CurrentJob) -> bool:
    """Whether this code runs in it."""
    return _current.get(None) is job
