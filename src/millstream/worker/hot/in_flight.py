"""A message between its claim and its settling: all that a worker knows of it."""

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
"""Why a running job is told to stop."""


class InFlight(msgspec.Struct, eq=False, gc=False):
    """A claimed message and its run. Handlers see it as ``current_job()`` or as a `Delivery`.

    Hot: a struct is made in half the time of a class, and not seeing it spares the garbage collector work; the one cycle it is
    in, with its asyncio task, ends with that task.
    """

    lane: Lane
    ref: bytes
    message: Message
    handler: Prepared
    crashes: int
    expires_ms: int
    since: float
    """Loop time at which it was claimed, then at which it started."""
    ends: float = 0.0
    """Loop time of its deadline; infinity: none."""
    running: asyncio.Task[None] | None = None
    """The asyncio task of a coroutine; None in a thread."""
    stop: str = ""
    """Why it should stop: timeout, shutdown or fenced."""
    said: Said | None = None
    """How a handler of events said that it ends."""
    open: bool = False
    """Its handler has ended, and its delivery goes on."""
    over: bool = False
    """That has ended too, or nobody is left who could tell it how."""

    @property
    def result_ttl(self) -> float:
        """Seconds for which its result is kept; 0: it is not."""
        overrides = self.message.overrides
        if overrides is not None and overrides.result_ttl is not None:
            return overrides.result_ttl
        return self.handler.settings.result_ttl

    def __repr__(self) -> str:
        what = f"job {self.message.id} of task" if self.lane.handler is None else f"event {self.message.id} of"
        return f"<{what} {self.handler.name!r}, attempt {self.message.attempt}>"
