"""A delivery: one event in the hands of one group's handler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from millstream.errors import UsageError
from millstream.jobs.current import is_current
from millstream.model.message import EventFields
from millstream.model.outcome import SETTLED, Said
from millstream.model.settings import seconds
from millstream.model.types import Seconds

if TYPE_CHECKING:
    from millstream.worker.hot.in_flight import InFlight

_PLAIN = EventFields()


class Delivery:
    """What a handler may know of the event it was given, and say about it.

    ``ack``, ``nack`` and ``retry`` record how it ends, once, from any thread; they win over what the handler returns or raises.
    Where events are acknowledged on receipt, or broadcast, they do nothing. With ``ack="manual"`` it may be kept, and told
    later.
    """

    __slots__ = ("_job", "_received")

    def __init__(self, job: InFlight) -> None:
        self._job = job
        self._received = datetime.now(UTC)

    @property
    def id(self) -> str:
        """The event's id: given by its publisher, or made by it."""
        return self._job.message.id

    @property
    def topic(self) -> str:
        return self._names[0]

    @property
    def group(self) -> str:
        """Empty if it is broadcast."""
        return self._names[1]

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._job.message.attempt

    @property
    def max_attempts(self) -> int:
        return self._job.handler.settings.retry.max_retries + 1

    @property
    def crashes(self) -> int:
        """How many workers died while handling it."""
        return self._job.crashes

    @property
    def missed(self) -> int:
        """How many events a broadcast missed just before this one, because they were trimmed before this process read them;
        -1 if nobody knows how many, because the log was lost. 0 in a group, which misses none."""
        return self._job.lane.missed.get(self._job.ref, 0)

    @property
    def published_at(self) -> datetime:
        """By the clock of whoever published it."""
        return datetime.fromtimestamp(self._job.message.enqueued_ms / 1000, UTC)

    @property
    def expires_at(self) -> datetime | None:
        """After which it is not handled any more, by the server's clock; None: never."""
        until = self._job.expires_ms
        return datetime.fromtimestamp(until / 1000, UTC) if until else None

    @property
    def received_at(self) -> datetime:
        """When this attempt began, by this machine's clock."""
        return self._received

    @property
    def first_received_at(self) -> datetime:
        """When the first attempt began, by the clock of the machine that made it."""
        first = self._job.message.first_received_ms
        return datetime.fromtimestamp(first / 1000, UTC) if first else self._received

    @property
    def headers(self) -> Mapping[str, str]:
        return self._fields.headers

    @property
    def key(self) -> str:
        return self._fields.key

    @property
    def kind(self) -> str:
        return self._fields.kind

    @property
    def source(self) -> str:
        return self._fields.source

    @property
    def correlation_id(self) -> str:
        return self._fields.correlation_id

    @property
    def traceparent(self) -> str:
        """W3C trace context."""
        return self._fields.traceparent

    @property
    def content_type(self) -> str:
        return self._fields.content_type

    @property
    def version(self) -> str:
        return self._fields.version

    @property
    def state(self) -> Any:
        """What the app's lifespan yielded."""
        return self._job.lane.state

    def ack(self) -> None:
        """It is done, whatever happens next in the handler."""
        self._say(Said("ack"))

    def nack(self, reason: str) -> None:
        """It is dead: ``rejected``, with this reason."""
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"nack() takes the reason as text, not {reason!r}")
        self._say(Said("nack", reason))

    def retry(self, delay: Seconds | None = None) -> None:
        """Try it again after ``delay`` seconds, or when the retry policy says; spends an attempt."""
        self._say(Said("retry", delay=None if delay is None else seconds(delay, "delay")))

    async def settled(self) -> None:
        """Wait until its end is on the server. LeaseLost if it will not be, because others have taken it over.

        Its handler may wait for an ``ack`` or a ``nack``; a ``retry`` is settled when the handler has ended, so that there are
        never two of them. UsageError if that is waited for there, or nothing was said yet.
        """
        await self._settled(self._job.running is asyncio.current_task())

    def settled_sync(self) -> None:
        """``settled``, for a handler in a thread."""
        loop = self._job.lane.runner.loop
        asyncio.run_coroutine_threadsafe(self._settled(is_current(self._job)), loop).result()

    async def _settled(self, by_its_handler: bool) -> None:
        job = self._job
        lane = job.lane
        if job.said is None:
            raise UsageError(f"{self!r} has no end yet: settled() waits for what ack(), nack() or retry() said")
        if not lane.runner.holds(job):
            return  # it is there already
        still_runs = lane.runner.runs(job) and job.said is not SETTLED and not job.stop
        if still_runs and job.said.verb == "retry" and by_its_handler:
            raise UsageError(f"{self!r} is tried again once its handler has ended: settled() cannot be waited for there")
        future = lane.watched.get(job.ref)
        if future is None:
            future = lane.watched[job.ref] = asyncio.get_running_loop().create_future()
        if still_runs and job.said.verb != "retry":
            lane.runner.settle_now(job)
        await asyncio.shield(future)

    def _say(self, said: Said) -> None:
        job = self._job
        if job.lane.acks_first or job.lane.broadcast:
            return
        if job.said is not None:
            raise UsageError(f"{self!r} ends once: {job.said.verb}() was called before")
        if job.over:
            raise UsageError(f"{self!r} has ended: it ran out of time, or its worker stopped or lost its lease ({job.stop})")
        job.said = said
        if job.open:
            job.lane.runner.manual.told(job)

    @property
    def _fields(self) -> EventFields:
        return self._job.message.event or _PLAIN

    @property
    def _names(self) -> tuple[str, str]:
        address = self._job.lane.queue
        return address.name, address.group

    def __repr__(self) -> str:
        whom = f"to group {self.group!r}, attempt {self.attempt}" if self.group else "to all"
        return f"<delivery of event {self.id} of topic {self.topic!r} {whom}>"


class ManualDelivery(Delivery):
    """One that its handler may keep: it goes on until it is told how it ends. Dropped before that, its event comes back."""

    __slots__ = ()

    def __del__(self) -> None:
        job = self._job
        job.over = True
        if job.open and job.said is None:
            job.lane.runner.manual.told(job)
