"""One queue and its rules: every verb of the contract as a plain function of the state and the time.

Nothing here locks, awaits or reads a clock; ``broker.py`` does.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from millstream.broker import Cancellation, Claim, Entry, Post, QueueState, Receipt
from millstream.broker.contract import OVERDUE_SECONDS
from millstream.errors import LeaseLost
from millstream.memory.state import Dead, Job, Kept, Lease, Moment, Place, Sender, Waiter
from millstream.outcome import Ending, Kind, Outcome, decode_ending, encode_ending
from millstream.types import Status

# seconds for which the ending of a cancelled job is kept
CANCELLED_TTL = 600.0

OVERDUE_MS = round(OVERDUE_SECONDS * 1000)
TOTALS = ("published", "done", "retried", "dead", "expired", "cancelled", "released", "lapsed")


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How long a room keeps what has ended. Seconds."""

    id_ttl: float
    dead_max_age: float
    dead_max_count: int


class MemoryQueue:
    """A stream of jobs, who holds what, and what ended ones left behind."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.totals: dict[str, int] = dict.fromkeys(TOTALS, 0)
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
        self._leases: dict[str, Lease] = {}
        # what ended jobs left behind
        self.dead: OrderedDict[str, Dead] = OrderedDict()
        self.endings: Kept[bytes] = Kept()
        self._given: Kept[str] = Kept()
        self._senders: Kept[Sender] = Kept()
        # who waits: for something to claim, by consumer, and for endings, by job
        self.idle: dict[Waiter[None], str] = {}
        self.waiting: dict[str, set[Waiter[bytes | None]]] = {}

    # -- producers ---------------------------------------------------------------------------------------------------------

    def publish(
        self, posts: Sequence[Post], sender: str, max_length: int | None, now: Moment, keeping: Keeping
    ) -> list[Receipt]:
        known = self._senders.get(sender, now.wall) or Sender()
        receipts = [self._accept(post, known, max_length, now) for post in posts]
        if known.mark:
            self._senders.put(sender, known, now.wall + keeping.id_ttl, now.wall)
        if Receipt.CREATED in receipts:
            self.wake()
        return receipts

    def _accept(self, post: Post, sender: Sender, max_length: int | None, now: Moment) -> Receipt:
        if post.serial and sender.accepted(post.serial):
            return Receipt.EXISTS
        if not post.serial and (found := self._find_given(post, now)):
            return found
        if max_length is not None and self._entries() + len(self._scheduled) >= max_length:
            return Receipt.FULL
        if post.serial:
            sender.accept(post.serial)
        else:
            self._given.put(post.id, post.task, None, now.wall)
        due_ms = absolute_ms(post.at, post.delay, now.ms)
        expires_ms = absolute_ms(post.expires_at, post.expires, now.ms) if post.expires_at or post.expires else 0
        job = Job(post.id, post.body, expires_ms, due_ms)
        if due_ms > now.ms:
            self._schedule(job)
        else:
            self._append(job)
        self.totals["published"] += 1
        return Receipt.CREATED

    def _find_given(self, post: Post, now: Moment) -> Receipt | None:
        task = self._given.get(post.id, now.wall)
        if task is not None:
            return Receipt.EXISTS if task == post.task else Receipt.CONFLICT
        if post.id in self.jobs or post.id in self.dead or self.endings.get(post.id, now.wall) is not None:
            return Receipt.EXISTS
        name, _, serial = post.id.rpartition("-")
        sender = self._senders.get(name, now.wall)
        if sender and serial.isdecimal() and serial == str(int(serial)) and sender.accepted(int(serial)):
            return Receipt.EXISTS
        return None

    def cancel(self, job_id: str, now: Moment, keeping: Keeping) -> Cancellation:
        job = self.jobs.get(job_id)
        if job is None:
            return Cancellation.ENDED
        if self._runs(job):
            return Cancellation.RUNNING
        self._take_out(job)
        given = self._given.get(job_id, now.wall) is not None
        self._end(job, encode_ending(Ending("cancelled")), CANCELLED_TTL, given, now, keeping)
        self.totals["cancelled"] += 1
        return Cancellation.CANCELLED

    # -- consumers ---------------------------------------------------------------------------------------------------------

    def join(self, consumer: str, lease: float, now: Moment) -> None:
        self._leases[consumer] = Lease(now.ms + round(lease * 1000))
        self._held.setdefault(consumer, {})

    def renew(self, leases: Mapping[str, float], now: Moment, keeping: Keeping) -> set[str]:
        lost = {consumer for consumer in leases if consumer not in self._leases}
        for consumer in leases.keys() - lost:
            self._leases[consumer] = Lease(now.ms + round(leases[consumer] * 1000))
        # of all verbs the one that surely comes often enough to let old dead letters go
        self._retire(now, keeping)
        return lost

    def claim(self, consumer: str, count: int, alone: bool, suspect_after: int, now: Moment) -> Claim:
        self.check_lease(consumer)
        self._look_at_leases(now.ms)
        # its own lease may have lapsed just now: its keeper is dead
        self.check_lease(consumer)
        self._promote(now.ms)
        taken: list[Job] = []
        if not self.paused:
            taken = self._take_suspect(count) if alone else self._take(count, suspect_after)
        for job in taken:
            job.claims += 1
            job.claimed_at = now.wall
            self._move(job, Place.HELD, consumer)
        if self.claimable(now.ms):
            self.wake()
        return Claim([_entry(job) for job in taken], now.ms, self.next_due(now.ms), self.paused, bool(self._aside))

    def _take(self, count: int, suspect_after: int) -> list[Job]:
        """Released jobs, then those of lapsed consumers, one after the other, then fresh ones; suspects met are set aside."""
        taken: list[Job] = []
        waiting = _in_order(self._released.values())
        for holder in sorted(self._held.keys() - self._leases.keys()):
            waiting += _in_order(self._held[holder].values())
        for job in waiting:
            if len(taken) == count:
                return taken
            # it is about to be claimed once more: so many consumers died holding it
            if job.claims >= suspect_after:
                self._move(job, Place.ASIDE)
                self.wake()
            else:
                taken.append(job)
        for job in self._fresh.values():
            if len(taken) == count:
                break
            taken.append(job)
        return taken

    def _take_suspect(self, count: int) -> list[Job]:
        return _in_order(self._aside.values())[: min(count, 1)]

    def claimable(self, now_ms: int, alone: bool = False) -> bool:
        """Whether a claim would bring something."""
        if self.paused:
            return False
        if alone:
            return bool(self._aside)
        orphaned = any(jobs and holder not in self._leases for holder, jobs in self._held.items())
        return bool(self._fresh or self._released or orphaned or self.next_due(now_ms) == 0)

    def settle(self, consumer: str, outcomes: Sequence[Outcome], now: Moment, keeping: Keeping) -> int:
        self.check_lease(consumer)
        held = self._held[consumer]
        settled: list[Kind] = []
        for outcome in outcomes:
            job = held.get(outcome.ref)
            if job is not None:
                self._take_out(job)
                _SETTLE[outcome.kind](self, job, outcome, now, keeping)
                settled.append(outcome.kind)
        if Kind.DEAD in settled:
            self._retire(now, keeping)
        return len(settled)

    def _settle_done(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        self._end(job, outcome.result, outcome.result_ttl, outcome.given_id, now, keeping)
        self.totals["done"] += 1

    def _settle_expired(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        self._end(job, encode_ending(Ending("expired")), outcome.result_ttl, outcome.given_id, now, keeping)
        self.totals["expired"] += 1

    def _settle_retry(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        self._supersede(job.id)
        self._schedule(Job(job.id, outcome.body, outcome.expires_ms, now.ms + round(outcome.delay * 1000)))
        self.totals["retried"] += 1

    def _settle_dead(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        assert outcome.letter is not None, "a DEAD outcome says why"
        source = job.ref.decode()
        self._supersede(job.id)
        self.dead[job.id] = Dead(next(self._numbers), job.id, outcome.task, outcome.letter, outcome.body, now.ms, source)
        self._end(job, outcome.result, outcome.result_ttl, outcome.given_id, now, keeping)
        self.totals["dead"] += 1

    def _supersede(self, job_id: str) -> None:
        """A group may be given an event again: what was scheduled or dead under its id gives way to the newer delivery."""
        self.dead.pop(job_id, None)
        job = self.jobs.pop(job_id, None)
        if job is not None and job.place is Place.SCHEDULED:
            self._take_out(job)

    def _retire(self, now: Moment, keeping: Keeping) -> None:
        """The oldest dead letters go, beyond the bounds of count and age."""
        oldest_ms = now.ms - keeping.dead_max_age * 1000
        while self.dead and (len(self.dead) > keeping.dead_max_count or next(iter(self.dead.values())).died_ms < oldest_ms):
            self.dead.popitem(last=False)

    def release(self, consumer: str, refs: Sequence[bytes]) -> int:
        self.check_lease(consumer)
        jobs = [self._held[consumer].get(ref) for ref in dict.fromkeys(refs)]
        return self._hand_back([job for job in jobs if job is not None])

    def recover(self, consumer: str, holding: Collection[bytes]) -> list[Entry]:
        self.check_lease(consumer)
        return [_entry(job) for job in _in_order(self._held[consumer].values()) if job.ref not in holding]

    def leave(self, consumer: str, blameless: bool) -> int:
        if self._leases.pop(consumer, None) is None:
            return 0
        jobs = list(self._held[consumer].values())
        if blameless:
            self._hand_back(jobs)
        self._forget_if_empty(consumer)
        if jobs:
            self.wake()
        return len(jobs)

    def check_lease(self, consumer: str) -> None:
        if consumer not in self._leases:
            raise LeaseLost(f"consumer {consumer!r} has no lease on queue {self.name!r}")

    # -- operators ---------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        self.paused = False
        self.wake()

    def promote(self, job_ids: Sequence[str]) -> list[str]:
        promoted: list[str] = []
        for job_id in job_ids:
            job = self.jobs.get(job_id)
            if job is not None and job.place is Place.SCHEDULED:
                self._take_out(job)
                self._append(job)
                promoted.append(job_id)
        if promoted:
            self.wake()
        return promoted

    def replay(self, job_ids: Sequence[str], now: Moment) -> list[str]:
        replayed = self.purge(job_ids)
        for dead in replayed:
            self.endings.drop(dead.id)
            self._given.keep(dead.id, None, now.wall)
            self._append(Job(dead.id, dead.body, expires_ms=0))
        if replayed:
            self.wake()
        return [dead.id for dead in replayed]

    def purge(self, job_ids: Sequence[str]) -> list[Dead]:
        return [self.dead.pop(job_id) for job_id in dict.fromkeys(job_ids) if job_id in self.dead]

    # -- reading -----------------------------------------------------------------------------------------------------------

    def status(self, job_id: str, now: Moment) -> Status:
        job = self.jobs.get(job_id)
        if job is not None:
            if job.place is Place.SCHEDULED:
                return "scheduled"
            return "running" if self._runs(job) else "ready"
        if job_id in self.dead:
            return "dead"
        ending = self.endings.get(job_id, now.wall)
        return decode_ending(ending).status if ending is not None else "unknown"  # type: ignore[return-value]

    def state(self) -> QueueState:
        running = sum(len(self._held[consumer]) for consumer in self._leases)
        return QueueState(
            self.name,
            ready=self._entries() - running,
            running=running,
            scheduled=len(self._scheduled),
            dead=len(self.dead),
            paused=self.paused,
            consumers=len(self._leases),
            totals=dict(self.totals),
        )

    def _entries(self) -> int:
        """How many jobs are ready or running."""
        return sum(map(len, self._shelves()))

    def _shelves(self) -> list[dict[bytes, Job]]:
        return [self._fresh, self._released, self._aside, *self._held.values()]

    def scheduled(self) -> list[Job]:
        """By due time, then id."""
        return sorted(self._scheduled.values(), key=lambda job: (job.due_ms, job.id.encode()))

    def running(self) -> list[Job]:
        """Consumer by consumer."""
        return [job for name in sorted(self._leases) for job in _in_order(self._held[name].values())]

    def waiting_to_run(self) -> list[Job]:
        """Ready jobs, in the order in which they will be claimed: handed back, suspects, left behind, fresh."""
        orphaned = [
            job for name in sorted(self._held.keys() - self._leases.keys()) for job in _in_order(self._held[name].values())
        ]
        return [*_in_order(self._released.values()), *_in_order(self._aside.values()), *orphaned, *self._fresh.values()]

    def next_due(self, now_ms: int) -> float | None:
        """Seconds until the earliest scheduled job is due."""
        due_ms = self._earliest_ms()
        return None if due_ms is None else max(0.0, (due_ms - now_ms) / 1000)

    def _earliest_ms(self) -> int | None:
        while self._due and self._due[0][-1].place is not Place.SCHEDULED:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    # -- the arrows between the places -------------------------------------------------------------------------------------

    def _append(self, job: Job) -> None:
        """A new entry at the end of the stream."""
        number = next(self._numbers)
        job.number, job.ref, job.place = (0, number), b"%d" % number, Place.FRESH
        self._fresh[job.ref] = self.jobs[job.id] = job

    def _schedule(self, job: Job) -> None:
        earliest_ms = self._earliest_ms()
        job.place = Place.SCHEDULED
        heapq.heappush(self._due, (job.due_ms, job.id.encode(), next(self._numbers), job))
        self.jobs[job.id] = self._scheduled[job.id] = job
        if earliest_ms is None or job.due_ms < earliest_ms:
            self.wake()

    def _promote(self, now_ms: int) -> None:
        while (due_ms := self._earliest_ms()) is not None and due_ms <= now_ms:
            job = heapq.heappop(self._due)[-1]
            del self._scheduled[job.id]
            self._append(job)

    def _move(self, job: Job, place: Place, holder: str = "") -> None:
        """An entry stays what it is and goes to another place."""
        self._take_out(job)
        job.place, job.holder = place, holder
        self._shelf(job)[job.ref] = job

    def _take_out(self, job: Job) -> None:
        """A job leaves the place it was in."""
        if job.place is Place.SCHEDULED:
            job.place = Place.NOWHERE  # it is skipped where it is due
            del self._scheduled[job.id]
            return
        del self._shelf(job)[job.ref]
        if job.place is Place.HELD:
            self._forget_if_empty(job.holder)

    def _shelf(self, job: Job) -> dict[bytes, Job]:
        if job.place is Place.HELD:
            return self._held[job.holder]
        return {Place.FRESH: self._fresh, Place.RELEASED: self._released, Place.ASIDE: self._aside}[job.place]

    def _hand_back(self, jobs: list[Job]) -> int:
        for job in jobs:
            job.claims -= 1
            self._move(job, Place.RELEASED)
        self.totals["released"] += len(jobs)
        if jobs:
            self.wake()
        return len(jobs)

    def _end(self, job: Job, ending: bytes | None, ttl: float, given: bool, now: Moment, keeping: Keeping) -> None:
        """A job is alive no more: what it leaves behind, and who is told."""
        if self.jobs.get(job.id) is job:
            del self.jobs[job.id]
        if ttl <= 0:
            ending = None
        if ending is not None:
            self.endings.put(job.id, ending, now.wall + ttl, now.wall)
        if given:
            self._given.keep(job.id, now.wall + keeping.id_ttl, now.wall)
        for waiter in self.waiting.pop(job.id, ()):
            waiter.wake(ending)

    def _look_at_leases(self, now_ms: int) -> None:
        """The first look marks an overdue lease, one that comes OVERDUE_SECONDS later lapses it: two looks at a stalled
        server's clock cannot make the living look dead, since their keepers renew in between."""
        for consumer, lease in list(self._leases.items()):
            if lease.deadline_ms > now_ms:
                continue
            if lease.overdue_ms is None:
                lease.overdue_ms = now_ms
            elif now_ms - lease.overdue_ms >= OVERDUE_MS:
                del self._leases[consumer]
                self._forget_if_empty(consumer)
                self.totals["lapsed"] += 1

    def _forget_if_empty(self, consumer: str) -> None:
        if consumer not in self._leases and not self._held.get(consumer):
            self._held.pop(consumer, None)

    def _runs(self, job: Job) -> bool:
        return job.place is Place.HELD and job.holder in self._leases

    def wake(self) -> None:
        for waiter in self.idle:
            waiter.wake(None)


_SETTLE: dict[Kind, Callable[[MemoryQueue, Job, Outcome, Moment, Keeping], None]] = {
    Kind.DONE: MemoryQueue._settle_done,
    Kind.RETRY: MemoryQueue._settle_retry,
    Kind.DEAD: MemoryQueue._settle_dead,
    Kind.EXPIRED: MemoryQueue._settle_expired,
}


def absolute_ms(at: float, after: float, now_ms: int) -> int:
    """The moment that a Post gives one way or the other."""
    return round(at * 1000) if at else now_ms + round(after * 1000)


def _in_order(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.number)


def _entry(job: Job) -> Entry:
    return Entry(job.ref, job.body, job.claims - 1, job.expires_ms)
