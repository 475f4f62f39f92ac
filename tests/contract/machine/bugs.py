"""Bugs planted in the memory backend, to check that the histories find them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import msgspec

from millstream.backends.memory.ended_jobs import Keeping
from millstream.backends.memory.leases import Lease
from millstream.backends.memory.order import Order, Turn
from millstream.backends.memory.queue import MemoryQueue
from millstream.backends.memory.state import NO_POSITION, Given, Job, Moment, Sender
from millstream.backends.memory.topic import MemoryGroup, MemoryTopic
from millstream.broker import Followed, OrderRules, Position, Post, Receipt
from millstream.model.address import Address
from millstream.model.outcome import Outcome


class Unfenced(MemoryQueue):
    """Outcomes are accepted after the lease was lost."""

    def settle(self, consumer: str, outcomes: Sequence[Outcome], now: Moment, keeping: Keeping) -> int:
        leased = consumer in self._leases
        self._leases.setdefault(consumer, Lease(now.ms))
        self._held.setdefault(consumer, {})
        try:
            return super().settle(consumer, outcomes, now, keeping)
        finally:
            if not leased:
                del self._leases[consumer]
                self._forget_if_empty(consumer)


class Hasty(MemoryQueue):
    """A single check lapses a lease."""

    def _check_leases(self, now_ms: int) -> None:
        for lease in self._leases.values():
            lease.overdue_ms = 0
        super()._check_leases(now_ms)


class Resentful(MemoryQueue):
    """A release counts as a crash."""

    def _hand_back(self, jobs: list[Job]) -> int:
        for job in jobs:
            job.claims += 1
        return super()._hand_back(jobs)


class Presumptuous(MemoryQueue):
    """A skipped serial counts as accepted."""

    def _accept(self, post: Post, sender: Sender, max_length: int | None, now: Moment) -> Receipt:
        sender.gaps.clear()
        return super()._accept(post, sender, max_length, now)


class Grudging(MemoryQueue):
    """An expired message keeps the turn."""

    def _settle_expired(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        key, job.key = job.key, None
        super()._settle_expired(job, outcome, now, keeping)
        job.key = key


class Giddy(MemoryQueue):
    """A retry passes the turn on."""

    def _settle_retry(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        super()._settle_retry(job, outcome, now, keeping)
        self._pass_on(job)


class LastFirst(Order):
    def next(self, key: bytes) -> Job | None:
        waiting = self._blocked.get(key, [])
        waiting.reverse()
        following = super().next(key)
        waiting.reverse()
        return following


class Backward(MemoryQueue):
    """The last blocked message gets the next turn."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.order = LastFirst()


class AlwaysFull(Order):
    def ask(self, job: Job, scheduled: Container[str], *, again: bool) -> Turn:
        return super().ask(job, [holder for _, holder in self._turns.values()], again=again)


class Narrow(MemoryQueue):
    """``max_pending`` also limits the messages behind a running one."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.order = AlwaysFull()


class Amnesiac(MemoryQueue):
    """A replayed message loses its position."""

    def replay(self, job_ids: Sequence[str], now: Moment) -> list[str]:
        for job_id in job_ids:
            if job_id in self.dead:
                self.dead[job_id] = replace(self.dead[job_id], position=NO_POSITION)
        return super().replay(job_ids, now)


class Generous(MemoryQueue):
    """A dead job with ``id_ttl=0`` frees its id."""

    def _end(
        self, job: Job, ending: bytes | None, ttl: float, given: bool, now: Moment, keeping: Keeping, *, dead: bool = False
    ) -> None:
        super()._end(job, ending, ttl, given, now, keeping)


class Clinging(MemoryQueue):
    """An ended job with ``id_ttl=0`` keeps its id."""

    def _free(self, job_id: str, known: Given, now: Moment) -> None:
        pass


class Unforgiving(MemoryQueue):
    """A purged job with ``id_ttl=0`` keeps its id."""

    def purge(self, job_ids: Sequence[str], now: Moment) -> list[str]:
        return [dead.id for dead in self._take_dead(job_ids)]


class Oblivious(MemoryQueue):
    """An id with ``id_ttl=0`` always counts as free."""

    def _find_given(self, post: Post, now: Moment) -> Receipt | None:
        return None if post.id_ttl == 0 else super()._find_given(post, now)


class Crowded(MemoryQueue):
    """A consumer may join as soon as a lease is overdue, at the first check."""

    def join(self, consumer: str, lease: float, max_consumers: int | None, order: OrderRules | None, now: Moment) -> int:
        overdue = sum(held.deadline_ms <= now.ms for held in self._leases.values())
        return super().join(consumer, lease, None if max_consumers is None else max_consumers + overdue, order, now)


class Level(MemoryQueue):
    """A new owner gets the number of the previous one."""

    def join(self, consumer: str, lease: float, max_consumers: int | None, order: OrderRules | None, now: Moment) -> int:
        self._joins -= bool(self._joins) and max_consumers is not None and not self._leases
        return super().join(consumer, lease, max_consumers, order, now)


class Impatient(MemoryTopic):
    """An event leaves the log when it was delivered to every group, settled or not."""

    def _settled(self, group: MemoryGroup) -> int:
        return self._position(group.position)


class Partial(MemoryTopic):
    """Only one group keeps events in the log."""

    def trim(self, now_ms: int) -> None:
        groups = self.groups
        self.groups = dict([*groups.items()][:1])
        super().trim(now_ms)
        self.groups = groups


class Forgetful(MemoryTopic):
    """Events that left the log before they were read are not counted as missed."""

    def follow(self, after: Position | None, count: int, now_ms: int) -> Followed:
        return msgspec.structs.replace(super().follow(after, count, now_ms), missed=0)
