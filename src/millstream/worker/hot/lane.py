"""A lane: one queue as one worker process serves it."""

from __future__ import annotations

from typing import Any

from millstream.outcome import Outcome
from millstream.worker.hot.hold import ASYNC


class Lane:
    """What is in flight for one queue. ``consumer`` is the worker's present incarnation."""

    __slots__ = ("buffered", "consumer", "handed_back", "kinds", "outcomes", "queue", "settling", "state", "suspect_after")

    def __init__(self, queue: str, *, kinds: tuple[int, ...] = (ASYNC,), buffered: bool = True, suspect_after: int = 2) -> None:
        self.queue = queue
        self.consumer = ""
        self.kinds = kinds
        """Which kinds of slots this queue's tasks need."""
        self.buffered = buffered
        """False: a task here runs at most once, so nothing may be claimed that cannot start at once."""
        self.suspect_after = suspect_after
        self.state: Any = None
        """What the app's lifespan yielded."""
        self.outcomes: list[Outcome] = []
        self.settling: list[Outcome] = []
        """The batch that is being settled now."""
        self.handed_back: list[bytes] = []
        """To be released: stopped by a shutdown, or may not wait here."""
