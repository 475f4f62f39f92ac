"""A message between claim and settle: everything that a worker knows about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import asyncio

    from millstream.model.message import Message
    from millstream.model.outcome import Said
    from millstream.worker.hot.lane import Lane
    from millstream.worker.hot.prepared import Prepared


TIMEOUT, SHUTDOWN, FENCED = "timeout", "shutdown", "fenced"
"""Why a running job is asked to stop."""


class InFlight(msgspec.Struct, eq=False, gc=False):
    """A claimed message and its run. Handlers see it as ``current_job()`` or as a `Delivery`.

    Hot: creating a struct takes half the time of creating an instance of a class, and ``gc=False`` spares the garbage collector
    work. The only reference cycle, with the job's asyncio task, ends with that task.
    """

    lane: Lane
    ref: bytes
    message: Message
    handler: Prepared
    crashes: int
    expires_ms: int
    since: float
    """Loop time of its claim; after its start, loop time of its start."""
    ends: float = 0.0
    """Loop time of its timeout, or infinity if it has none."""
    running: asyncio.Task[None] | None = None
    """The asyncio task of a coroutine. None if the job runs in a thread."""
    stop: str = ""
    """Why the job should stop: timeout, shutdown or fenced. Empty if it should not stop."""
    said: Said | None = None
    """The ack, nack or retry that an event's handler has requested. None if the handler requested nothing."""
    open: bool = False
    """The handler has ended, but its delivery has not been acknowledged yet."""
    over: bool = False
    """The delivery has ended, too, or was dropped, so that no code can acknowledge it any more."""

    @property
    def result_ttl(self) -> float:
        """Seconds for which the result is kept; 0 keeps nothing."""
        overrides = self.message.overrides
        if overrides is not None and overrides.result_ttl is not None:
            return overrides.result_ttl
        return self.handler.settings.result_ttl

    def __repr__(self) -> str:
        what = f"job {self.message.id} of task" if self.lane.handler is None else f"event {self.message.id} of"
        return f"<{what} {self.handler.name!r}, attempt {self.message.attempt}>"
