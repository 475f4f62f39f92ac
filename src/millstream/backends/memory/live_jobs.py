"""Where the live jobs of one address are: scheduled, ready, held or blocked, and how they move between these locations."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from itertools import count

from millstream.backends.memory.leases import Leases
from millstream.backends.memory.order import Order
from millstream.backends.memory.state import NO_POSITION, Job, Location, Waiter


class LiveJobs:
    """Every live job is in one location. Who waits for something to claim is told when there may be."""

    def __init__(self) -> None:
        self.order = Order()
        self._leases = Leases()
        self._numbers = count(1)
        # alive, by id; not what a group has claimed in its topic's log
        self.jobs: dict[str, Job] = {}
        # the stream's entries, by where they are and ref; the others are put in order when they are taken
        self._fresh: OrderedDict[bytes, Job] = OrderedDict()
        self._released: dict[bytes, Job] = {}
        self._aside: dict[bytes, Job] = {}
        self._held: dict[str, dict[bytes, Job]] = {}
        # scheduled jobs by id, and by due time, then id; there one that was cancelled since stays until it is met
        self._scheduled: dict[str, Job] = {}
        self._due: list[tuple[int, bytes, int, Job]] = []
        # who waits for something to claim, by consumer
        self.idle: dict[Waiter[None], str] = {}

    def wake(self) -> None:
        for waiter in self.idle:
            waiter.wake(None)

    # -- what is where -----------------------------------------------------------------------------------------------------

    def _entries(self) -> int:
        """How many jobs are ready or running."""
        return sum(map(len, self._entry_sets()))

    def _entry_sets(self) -> list[dict[bytes, Job]]:
        return [self._fresh, self._released, self._aside, *self._held.values()]

    def _runs(self, job: Job) -> bool:
        return job.location is Location.HELD and job.holder in self._leases

    def scheduled(self) -> list[Job]:
        """By due time, then id."""
        return sorted(self._scheduled.values(), key=lambda job: (job.due_ms, job.id.encode()))

    def running(self) -> list[Job]:
        """Consumer by consumer."""
        return [job for name in sorted(self._leases) for job in in_order(self._held.get(name, {}).values())]

    def waiting_to_run(self) -> list[Job]:
        """Ready jobs, in the order in which they will be claimed: handed back, suspects, left behind, fresh."""
        return [*in_order(self._released.values()), *in_order(self._aside.values()), *self._orphaned(), *self._fresh.values()]

    def _orphaned(self) -> list[Job]:
        """What lapsed consumers held, one after the other."""
        return [job for name in sorted(self._held.keys() - self._leases.keys()) for job in in_order(self._held[name].values())]

    def next_due(self, now_ms: int) -> float | None:
        """Seconds until the earliest scheduled job is due."""
        due_ms = self._earliest_ms()
        return None if due_ms is None else max(0.0, (due_ms - now_ms) / 1000)

    def _earliest_ms(self) -> int | None:
        while self._due and self._due[0][-1].location is not Location.SCHEDULED:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    # -- the arrows between the places -------------------------------------------------------------------------------------

    def _append(self, job: Job) -> None:
        """A new entry at the end of the stream."""
        number = next(self._numbers)
        job.number, job.ref, job.location = (0, number), b"%d" % number, Location.FRESH
        if job.position == NO_POSITION:
            job.position = job.number
        self._fresh[job.ref] = self.jobs[job.id] = job

    def _schedule(self, job: Job) -> None:
        earliest_ms = self._earliest_ms()
        job.location = Location.SCHEDULED
        heapq.heappush(self._due, (job.due_ms, job.id.encode(), next(self._numbers), job))
        self.jobs[job.id] = self._scheduled[job.id] = job
        if earliest_ms is None or job.due_ms < earliest_ms:
            self.wake()

    def _block(self, job: Job) -> None:
        job.location = Location.BLOCKED
        self.jobs[job.id] = job
        self.order.block(job)

    def _promote(self, now_ms: int) -> None:
        while (due_ms := self._earliest_ms()) is not None and due_ms <= now_ms:
            job = heapq.heappop(self._due)[-1]
            del self._scheduled[job.id]
            self._append(job)

    def _move(self, job: Job, location: Location, holder: str = "") -> None:
        """An entry stays what it is and goes to another place."""
        self._take_out(job)
        job.location, job.holder = location, holder
        self._entries_of(job)[job.ref] = job

    def _take_out(self, job: Job) -> None:
        """A job leaves the place it was in."""
        if job.location is Location.SCHEDULED:
            del self._scheduled[job.id]  # where it is due it is skipped
        elif job.location is Location.BLOCKED:
            self.order.unblock(job)
        else:
            del self._entries_of(job)[job.ref]
        if job.location is Location.HELD:
            self._forget_if_empty(job.holder)
        job.location = Location.NOWHERE

    def _entries_of(self, job: Job) -> dict[bytes, Job]:
        if job.location is Location.HELD:
            return self._held[job.holder]
        return {Location.FRESH: self._fresh, Location.RELEASED: self._released, Location.ASIDE: self._aside}[job.location]

    def _forget_if_empty(self, consumer: str) -> None:
        if consumer not in self._leases and not self._held.get(consumer):
            self._held.pop(consumer, None)


def in_order(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.number)
