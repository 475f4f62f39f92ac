"""The follower: one per broadcast, reads on in a topic's log and gives the handler every event. It holds no lease and settles
nothing: what it has not begun when the worker stops is dropped."""

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
"""How long a read waits for events. Two commands each: an idle follower costs one a second."""

FIRST_READ = 8
"""The most a first read brings: events may be as large as max_payload_bytes, and the link slow."""

GAPS_KEPT = 1000
"""Of how many gaps it is known, beside those before events that are being handled, which event they came before."""


class Follower:
    """Follows one topic for one broadcast, from where it was told to begin, through outages, until the worker is stopping."""

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
        """Read from the log, and not yet given to the handler."""
        self._missed = 0
        """How many events were missed before the first of these."""
        self._size = BATCH_BYTES / FIRST_READ
        """About how many bytes an event takes."""
        self._ahead_ms = 0.0
        """Server time less loop time, as of the last read."""

    async def begin(self) -> None:
        """Whatever is published from now on will be given to the handler."""
        self._position = (await self._broker.follow(self.broadcast.topic, None, 1)).position

    async def run(self) -> None:
        """Follow until stopped."""
        backoff = ServiceBackoff()
        while not self._stopping:
            if not self._unread:
                try:
                    await self._read()
                except BrokerUnavailable as error:
                    self._reporter.miss("read", self.lane.queue, error)
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
            said = f"broadcast {name!r} may have missed events: topic {topic!r} lost its log, or the end of it"
        else:
            said = f"broadcast {name!r} missed {missed} events of topic {topic!r}: they were trimmed before it read them"
        log.warning("%s", said)
        self._reporter.tell("read", self.lane.queue, EventsMissed(said))
        self._missed = UNKNOWN if UNKNOWN in (missed, self._missed) else self._missed + missed

    async def _give(self) -> None:
        """Hand over as many as may start now, or soon."""
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
        if lane.active > active:  # else it was passed over, and the next one hears of the gap
            self._missed = 0
