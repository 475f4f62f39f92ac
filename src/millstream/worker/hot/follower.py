"""The follower: one per broadcast, reads a topic's log continuously and passes every event to the handler.

It holds no lease and settles nothing. Events that have not started when the worker stops are dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque

from millstream.aio.backoff import ServiceBackoff
from millstream.broker import Claim, Consuming, Entry, Position
from millstream.broker.values import UNKNOWN
from millstream.errors import BrokerUnavailable, EventsMissed
from millstream.events.broadcast import Broadcast
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker.hot.hold import ASYNC, BATCH, BATCH_BYTES, STOPPING, THREAD, Hold
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.runner import Runner

log = logs.logger("millstream.worker")

WAIT_SECONDS = 2.0
"""Seconds that a read waits for events. Each read takes two commands, so an idle follower sends one command per second."""

FIRST_READ = 8
"""Maximum number of events of the first read: events may be as large as max_payload_bytes, and the connection slow."""

GAPS_KEPT = 1000
"""Number of gaps that are remembered with the event that followed them, beside the gaps of events that are running."""


class Follower:
    """Follows one topic for one broadcast, from the position at its start, through outages, until the worker stops."""

    def __init__(self, broker: Consuming, broadcast: Broadcast, hold: Hold, runner: Runner, reporter: Reporter) -> None:
        self.broadcast = broadcast
        kind = ASYNC if broadcast.is_async else THREAD
        self.lane = Lane(broadcast.address, kinds=(kind,), handles=broadcast, broadcast=True)
        self._broker = broker
        self._hold = hold
        self._runner = runner
        self._reporter = reporter
        self._position: Position | None = None
        self._next_due: float | None = None
        self._unread: deque[Entry] = deque()
        """Entries that were read from the log and not yet passed to the handler."""
        self._missed = 0
        """Number of events missed before the first of these entries."""
        self._size = BATCH_BYTES / FIRST_READ
        """Estimated size of an event in bytes."""
        self._ahead_ms = 0.0
        """Server time minus loop time in milliseconds, measured at the last read."""

    async def begin(self) -> None:
        """Take the current end of the log as the starting position: every event published from now on reaches the handler."""
        self._position = (await self._broker.follow(self.broadcast.topic, None, 1)).position

    async def run(self) -> None:
        """Follow until stopped."""
        backoff = ServiceBackoff()
        while not self._stopping:
            if not self._unread:
                try:
                    await self._read()
                except BrokerUnavailable as error:
                    self._reporter.miss("read", self.lane.queue, error, self._broker.server(self.lane.queue))
                    await backoff.wait()
                    continue
                if backoff.tries:
                    self._reporter.reach("read", self.lane.queue)
                    backoff = ServiceBackoff()
            while self._unread and not self._stopping:
                await self._give()

    @property
    def _stopping(self) -> bool:
        return STOPPING in self._hold.shut

    async def _read(self) -> None:
        most = max(1, min(BATCH, int(BATCH_BYTES / self._size)))
        wait = WAIT_SECONDS if self._next_due is None else min(WAIT_SECONDS, self._next_due)
        followed = await self._broker.follow(self.broadcast.topic, self._position, most, wait=wait)
        self._position, self._next_due = followed.position, followed.next_due
        self._ahead_ms = followed.now_ms - asyncio.get_running_loop().time() * 1000
        self._unread.extend(followed.entries)
        if followed.entries:
            size = 1 + sum(len(entry.body or entry.raw) for entry in followed.entries) / len(followed.entries)
            self._size = size if size > self._size else (self._size + size) / 2
        if followed.missed:
            self._note(followed.missed)

    def _note(self, missed: int) -> None:
        name, topic = self.broadcast.name, self.broadcast.topic
        if missed == UNKNOWN:
            said = f"broadcast {name!r} may have missed events: the log of topic {topic!r} was deleted or lost its last entries"
        else:
            said = (
                f"broadcast {name!r} missed {missed} event{'' if missed == 1 else 's'} of topic {topic!r}: "
                "trimmed before it read them"
            )
        log.warning("%s", said)
        self._reporter.tell("read", self.lane.queue, EventsMissed(said))
        self._missed = UNKNOWN if UNKNOWN in (missed, self._missed) else self._missed + missed

    async def _give(self) -> None:
        """Pass as many entries to the runner as can start now or soon."""
        lane, hold, limit = self.lane, self._hold, self.broadcast.concurrency
        while lane.active >= limit and not self._stopping:
            await hold.until_freed(WAIT_SECONDS)
        capacity = min(await hold.turn(lane.kinds, True, WAIT_SECONDS), limit - lane.active)
        if capacity > 0 and not self._stopping:
            self._start(1 if self._missed else capacity)

    def _start(self, count: int) -> None:
        lane = self.lane
        entries = [self._unread.popleft() for _ in range(min(count, len(self._unread)))]
        if self._missed:
            lane.missed[entries[0].ref] = self._missed
            while len(lane.missed) > GAPS_KEPT + self.broadcast.concurrency:
                del lane.missed[next(iter(lane.missed))]
        active = lane.active
        self._runner.accept(lane, Claim(entries, int(asyncio.get_running_loop().time() * 1000 + self._ahead_ms)))
        if lane.active > active:  # otherwise the event was skipped, and the gap is reported with the next event
            self._missed = 0
