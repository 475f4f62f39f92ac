"""The live jobs of one address: their locations (scheduled, ready, held, blocked) and the moves between these."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from itertools import count

from millstream.backends.memory.leases import Leases
from millstream.backends.memory.order import Order
from millstream.backends.memory.state import NO_POSITION, Job, Location, Waiter


class LiveJobs:
    """Every live job is in exactly one location. Waiting consumers are woken when a claim may return something."""

    def __init__(self) -> None:
        self.order = Order()
        self._leases = Leases()
        self._numbers = count(1)
        # Live jobs by id, without the events that a group has claimed in its topic's log.
        self.jobs: dict[str, Job] = {}
        # The entries of the stream, by location and ref. Only fresh entries are kept in order; a claim sorts the others.
        self._fresh: OrderedDict[bytes, Job] = OrderedDict()
        self._released: dict[bytes, Job] = {}
        self._aside: dict[bytes, Job] = {}
        self._held: dict[str, dict[bytes, Job]] = {}
        # Scheduled jobs by id, and as a heap by due time, then id. Cancelled jobs stay in the heap until they reach its top.
        self._scheduled: dict[str, Job] = {}
        self._due: list[tuple[int, bytes, int, Job]] = []
        # Waiting claims and their consumers.
        self.idle: dict[Waiter[None], str] = {}

    def wake(self) -> None:
        for waiter in self.idle:
            waiter.wake(None)

    # -- reading locations -------------------------------------------------------------------------------------------------

    def _entries(self) -> int:
        """Return the number of ready and running jobs."""
        return sum(map(len, self._entry_sets()))

    def _entry_sets(self) -> list[dict[bytes, Job]]:
        return [self._fresh, self._released, self._aside, *self._held.values()]

    def _runs(self, job: Job) -> bool:
        return job.location is Location.HELD and job.holder in self._leases

    def scheduled(self) -> list[Job]:
        """Return scheduled jobs by due time, then id."""
        return sorted(self._scheduled.values(), key=lambda job: (job.due_ms, job.id.encode()))

    def running(self) -> list[Job]:
        """Return running jobs, sorted by consumer."""
        return [job for name in sorted(self._leases) for job in in_order(self._held.get(name, {}).values())]

    def waiting_to_run(self) -> list[Job]:
        """Return ready jobs in this order: released, suspects, jobs of lapsed consumers, fresh."""
        return [*in_order(self._released.values()), *in_order(self._aside.values()), *self._orphaned(), *self._fresh.values()]

    def _orphaned(self) -> list[Job]:
        """Return the jobs of lapsed consumers, sorted by consumer."""
        return [job for name in sorted(self._held.keys() - self._leases.keys()) for job in in_order(self._held[name].values())]

    def next_due(self, now_ms: int) -> float | None:
        """Return the seconds until the earliest scheduled job is due."""
        due_ms = self._earliest_ms()
        return None if due_ms is None else max(0.0, (due_ms - now_ms) / 1000)

    def _earliest_ms(self) -> int | None:
        while self._due and self._due[0][-1].location is not Location.SCHEDULED:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    # -- moves between locations -------------------------------------------------------------------------------------------

    def _append(self, job: Job) -> None:
        """Append a job to the stream as a new entry."""
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
        """Move an entry to another location. Its ref and number stay the same."""
        self._take_out(job)
        job.location, job.holder = location, holder
        self._entries_of(job)[job.ref] = job

    def _take_out(self, job: Job) -> None:
        """Remove a job from its location."""
        if job.location is Location.SCHEDULED:
            del self._scheduled[job.id]  # ``_earliest_ms`` later drops the job from the heap.
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
