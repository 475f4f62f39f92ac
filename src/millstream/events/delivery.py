"""Deliveries: one event on its way through the handler of one group."""

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
    """The delivery of an event to a handler: its metadata, and methods that decide its outcome.

    ``ack()``, ``nack()`` and ``retry()`` set the outcome. One of them may be called, once, from any thread. The outcome
    overrides the return or exception of the handler. They do nothing in broadcasts and in groups with ``ack="on_receive"``.
    With ``ack="manual"`` a handler may keep the delivery and set the outcome later.
    """

    __slots__ = ("_job", "_received")

    def __init__(self, job: InFlight) -> None:
        self._job = job
        self._received = datetime.now(UTC)

    @property
    def id(self) -> str:
        """The event's id: chosen by the publisher, or generated."""
        return self._job.message.id

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._names[0]

    @property
    def group(self) -> str:
        """The name of the group; empty for a broadcast."""
        return self._names[1]

    @property
    def attempt(self) -> int:
        """The number of this attempt, starting at 1."""
        return self._job.message.attempt

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts, by the retry policy of the group."""
        return self._job.handler.settings.retry.max_retries + 1

    @property
    def crashes(self) -> int:
        """How often a worker died while it was handling this event."""
        return self._job.crashes

    @property
    def missed(self) -> int:
        """Number of events that a broadcast missed directly before this one, because they were trimmed before this process read
        them. -1 if the number is unknown, because the log was lost. Always 0 in a group."""
        return self._job.lane.missed.get(self._job.ref, 0)

    @property
    def published_at(self) -> datetime:
        """When the event was published, by the publisher's clock."""
        return datetime.fromtimestamp(self._job.message.enqueued_ms / 1000, UTC)

    @property
    def expires_at(self) -> datetime | None:
        """When the event expires, by the server's clock, or ``None``. An expired event is not handled."""
        until = self._job.expires_ms
        return datetime.fromtimestamp(until / 1000, UTC) if until else None

    @property
    def received_at(self) -> datetime:
        """When this attempt started, by the clock of this machine."""
        return self._received

    @property
    def first_received_at(self) -> datetime:
        """When the first attempt started, by the clock of the machine that ran it."""
        first = self._job.message.first_received_ms
        return datetime.fromtimestamp(first / 1000, UTC) if first else self._received

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the event was published with."""
        return self._fields.headers

    @property
    def key(self) -> str:
        """The ``key`` that the event was published with; empty if none. It does not affect the order."""
        return self._fields.key

    @property
    def kind(self) -> str:
        """The ``kind`` that the event was published with; empty if none."""
        return self._fields.kind

    @property
    def source(self) -> str:
        """The ``source`` that the event was published with; empty if none."""
        return self._fields.source

    @property
    def correlation_id(self) -> str:
        """The ``correlation_id`` that the event was published with; empty if none."""
        return self._fields.correlation_id

    @property
    def traceparent(self) -> str:
        """The W3C trace context that the event was published with; empty if none."""
        return self._fields.traceparent

    @property
    def content_type(self) -> str:
        """The ``content_type`` that the event was published with; empty if none."""
        return self._fields.content_type

    @property
    def version(self) -> str:
        """The ``version`` that the event was published with; empty if none."""
        return self._fields.version

    @property
    def state(self) -> Any:
        """The value that the app's ``lifespan`` yielded, or ``None``."""
        return self._job.lane.state

    def ack(self) -> None:
        """Mark the event as done, whatever the handler does afterwards.

        Raises:
            UsageError: The outcome is already set, or the delivery has ended.
        """
        self._say(Said("ack"))

    def nack(self, reason: str) -> None:
        """Make the event a dead letter with the reason ``rejected``. The text is stored as its error.

        Raises:
            UsageError: The outcome is already set, the delivery has ended, or ``reason`` is not text.
        """
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"nack() takes the reason as text, not {reason!r}")
        self._say(Said("nack", reason))

    def retry(self, delay: Seconds | None = None) -> None:
        """Handle the event again later. This uses up a retry.

        Args:
            delay: Seconds, or a timedelta, until the next attempt. ``None`` uses the delay of the retry policy.

        Raises:
            UsageError: The outcome is already set, or the delivery has ended.
        """
        self._say(Said("retry", delay=None if delay is None else seconds(delay, "delay")))

    async def settled(self) -> None:
        """Wait until the server has stored the outcome.

        The handler itself may wait for ``ack()`` and ``nack()``. It cannot wait for ``retry()``, which is stored after the
        handler has ended, so that two attempts never run at the same time.

        Raises:
            LeaseLost: The outcome will not be stored, because the lease has lapsed and the event is redelivered.
            UsageError: No outcome is set, or the handler itself waits for ``retry()``.
        """
        await self._settled(self._job.running is asyncio.current_task())

    def settled_sync(self) -> None:
        """``settled()`` for a handler that runs in a thread."""
        loop = self._job.lane.runner.loop
        asyncio.run_coroutine_threadsafe(self._settled(is_current(self._job)), loop).result()

    async def _settled(self, by_its_handler: bool) -> None:
        job = self._job
        lane = job.lane
        if job.said is None:
            raise UsageError(f"{self!r} has no outcome yet: call ack(), nack() or retry() before settled()")
        if not lane.runner.holds(job):
            return  # already stored
        still_runs = lane.runner.runs(job) and job.said is not SETTLED and not job.stop
        if still_runs and job.said.verb == "retry" and by_its_handler:
            raise UsageError(
                f"{self!r}: its handler cannot wait for settled() after retry(), which is stored after the handler ends"
            )
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
            raise UsageError(f"{self!r} already has an outcome: {job.said.verb}() was called before; call one method, once")
        if job.over:
            raise UsageError(f"{self!r} has ended ({job.stop}): it timed out, or its worker stopped or lost its lease")
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
    """A delivery with ``ack="manual"``, which a handler may keep. If it is dropped without an outcome, the event is
    redelivered."""

    __slots__ = ()

    def __del__(self) -> None:
        job = self._job
        job.over = True
        if job.open and job.said is None:
            job.lane.runner.manual.told(job)
