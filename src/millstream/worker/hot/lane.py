"""A lane: one queue as one worker process serves it."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream.batch import Batch
from millstream.current import CurrentJob
from millstream.handler import Handler
from millstream.outcome import Outcome
from millstream.worker.hot.hold import ASYNC, EVEN, THREAD

LEAST_SHARE = 0.02
"""A kind that has tasks is never counted out."""


class Lane:
    """What is in flight for one queue. ``consumer`` is the worker's present incarnation."""

    __slots__ = (
        "acks_first",
        "active",
        "batch",
        "broadcast",
        "buffered",
        "consumer",
        "gathered",
        "handed_back",
        "handler",
        "kinds",
        "limit",
        "missed",
        "outcomes",
        "queue",
        "settling",
        "shares",
        "state",
        "suspect_after",
        "watched",
    )

    def __init__(
        self,
        queue: str,
        *,
        kinds: tuple[int, ...] = (ASYNC,),
        buffered: bool = True,
        suspect_after: int = 2,
        handler: Handler | None = None,
        limit: int | None = None,
        batch: Batch | None = None,
        acks_first: bool = False,
        broadcast: bool = False,
    ) -> None:
        self.queue = queue
        """Its address: a queue's name, or a group's topic and name."""
        self.handler = handler
        """What handles all that comes; None: each message names its task."""
        self.limit = limit
        """How many of it, or how many batches, run at once; None: as many as there are slots."""
        self.batch = batch
        self.gathered: list[CurrentJob] = []
        """What will be the next batch."""
        self.active = 0
        """How many run or wait here, if there is a limit."""
        self.acks_first = acks_first
        """Settled as done before they start: at most once, whatever happens to the handler."""
        self.broadcast = broadcast
        """Every process has such a one: it has no consumer, and nothing of it is settled."""
        self.missed: dict[bytes, int] = {}
        """How many events a broadcast missed just before one, by ref."""
        self.watched: dict[bytes, asyncio.Future[None]] = {}
        """Who waits for an outcome to be on the server, by ref."""
        self.consumer = ""
        self.kinds = kinds
        """Which kinds of slots this queue's tasks need."""
        self.buffered = buffered
        """False: a task here runs at most once, so nothing may be claimed that cannot start at once."""
        self.suspect_after = suspect_after
        self.shares = list(EVEN)
        """What part of what came lately was of each kind."""
        self.state: Any = None
        """What the app's lifespan yielded."""
        self.outcomes: list[Outcome] = []
        self.settling: list[Outcome] = []
        """The batch that is being settled now."""
        self.handed_back: list[bytes] = []
        """To be released: stopped by a shutdown, or may not wait here."""

    def note(self, threads: int, count: int) -> None:
        """Of ``count`` that came, so many need threads. A larger share is believed at once, a smaller one by and by."""
        for kind, share in ((THREAD, threads / count), (ASYNC, 1 - threads / count)):
            self.shares[kind] = max(LEAST_SHARE, share, (7 * self.shares[kind] + share) / 8)
