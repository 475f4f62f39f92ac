"""Batches: handlers that take a list of events."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.model.settings import integer, seconds
from millstream.model.types import Seconds


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls a handler with lists of events: ``topic.subscribe(group, batch=Batch(500))``.

    A batch is delivered when it is full, when ``wait`` seconds have passed since its first event, or when no event has arrived
    for a fifth of ``wait``.
    """

    size: int
    """Maximum number of events in a batch, 1 or more."""
    wait: Seconds = 0.25
    """Maximum time in seconds, or a timedelta, between the first event of a batch and its delivery."""

    def __post_init__(self) -> None:
        integer(self.size, "Batch size", minimum=1)
        object.__setattr__(self, "wait", seconds(self.wait, "Batch wait"))
