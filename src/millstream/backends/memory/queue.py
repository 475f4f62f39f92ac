"""The rules of one queue: every method of the contract as a plain function of the state and the time.

This module takes no locks, awaits nothing and reads no clock; ``broker.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from millstream.backends.memory.ended_jobs import EndedJobs, Keeping
from millstream.backends.memory.live_jobs import in_order
from millstream.backends.memory.order import Turn
from millstream.backends.memory.state import Given, Job, Kept, Location, Moment, Sender
from millstream.broker import Cancellation, Claim, Entry, Membership, OrderRules, Post, QueueState, Receipt
from millstream.broker.values import CANCELLED_TTL, cancelled_by
from millstream.errors import LeaseLost
from millstream.model.address import Address
from millstream.model.ending import decode_ending, encode_expired
from millstream.model.outcome import Kind, Outcome
from millstream.model.types import Status


class MemoryQueue(EndedJobs):
    """A stream of jobs, the consumers that hold them, and what ended jobs leave behind."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self.address = address
        self.paused = False
        self._joins = 0
        self._senders: Kept[Sender] = Kept()

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
        if max_length is not None and self._entries() + len(self._scheduled) + self.order.count >= max_length:
            return Receipt.FULL
        if post.serial:
            sender.accept(post.serial)
        else:
            self._given.put(post.id, Given(post.task, post.request, post.id_ttl), None, now.wall)
            self.endings.drop(post.id)
        due_ms = absolute_ms(post.at, post.delay, now.ms)
        expires_ms = absolute_ms(post.expires_at, post.expires, now.ms) if post.expires_at or post.expires else 0
        job = Job(post.id, post.body, expires_ms, due_ms, key=post.key, task=post.task)
        if due_ms > now.ms:
            self._schedule(job)
        else:
            self._append(job)
        self.totals["published"] += 1
        return Receipt.CREATED

    def _find_given(self, post: Post, now: Moment) -> Receipt | None:
        known = self._given.get(post.id, now.wall)
        freed = known is not None and known.freed
        if known is not None:
            if (known.task, known.request) == (post.task, post.request) and post.request:
                return Receipt.CREATED
            if not freed:
                return Receipt.EXISTS if known.task == post.task else Receipt.CONFLICT
        if post.id in self.jobs or post.id in self.dead:
            return Receipt.EXISTS
        if self.endings.get(post.id, now.wall) is not None and not freed and post.id_ttl is None:
            return Receipt.EXISTS
        name, _, serial = post.id.rpartition("-")
        sender = self._senders.get(name, now.wall)
        if sender and serial.isdecimal() and serial == str(int(serial)) and sender.accepted(int(serial)):
            return Receipt.EXISTS
        return None

    def cancel(self, job_id: str, now: Moment, keeping: Keeping, request: str = "") -> Cancellation:
        job, ending = self.jobs.get(job_id), cancelled_by(request)
        if job is None:
            again = request and self.endings.get(job_id, now.wall) == ending
            return Cancellation.CANCELLED if again else Cancellation.ENDED
        if self._runs(job):
            return Cancellation.RUNNING
        self._take_out(job)
        given = self._given.get(job_id, now.wall) is not None
        self._end(job, ending, CANCELLED_TTL, given, now, keeping)
        self._pass_on(job)
        self.totals["cancelled"] += 1
        return Cancellation.CANCELLED

    # -- consumers ---------------------------------------------------------------------------------------------------------

    def join(self, consumer: str, lease: float, max_consumers: int | None, order: OrderRules | None, now: Moment) -> int:
        if max_consumers is not None:
            self._check_leases(now.ms)
            if len(self._leases.keys() - {consumer}) >= max_consumers:
                return 0
        self._leases.extend(consumer, lease, now.ms)
        self._held.setdefault(consumer, {})
        self.order.rules = order or self.order.rules
        return self.count_join()

    def count_join(self) -> int:
        """Return the number of the next join. A group and its dead letters share one counter."""
        self._joins += 1
        return self._joins

    def join_members(self, member: str, lease: float, now: Moment) -> Membership:
        return self._leases.join_members(member, lease, now.ms)

    def renew(self, leases: Mapping[str, float], now: Moment, keeping: Keeping) -> set[str]:
        lost = {consumer for consumer in leases if consumer not in self._leases}
        for consumer in leases.keys() - lost:
            self._leases.extend(consumer, leases[consumer], now.ms)
        # Renewals come regularly even if nothing else happens, so they also remove old dead letters.
        self._retire(now, keeping)
        return lost

    def claim(self, consumer: str, count: int, alone: bool, suspect_after: int, now: Moment, keeping: Keeping) -> Claim:
        self.check_lease(consumer)
        self._check_leases(now.ms)
        # The caller's own lease may have lapsed in this check, because nothing renewed it.
        self.check_lease(consumer)
        self._promote(now.ms)
        taken: list[Job] = []
        died = self.totals["dead"]
        if not self.paused:
            taken = self._take_suspect(count) if alone else self._take(count, suspect_after, now, keeping)
        if self.totals["dead"] > died:
            self._retire(now, keeping, self.totals["dead"] - died)
        for job in taken:
            job.claims += 1
            job.claimed_at = now.wall
            self._move(job, Location.HELD, consumer)
        if self.claimable(now.ms):
            self.wake()
        return Claim([_entry(job) for job in taken], now.ms, self.next_due(now.ms), self.paused, bool(self._aside))

    def _take(self, count: int, suspect_after: int, now: Moment, keeping: Keeping) -> list[Job]:
        """Return released jobs, then jobs of lapsed consumers, then fresh jobs that have the turn of their key. Set suspects
        aside."""
        taken: list[Job] = []
        for job in [*in_order(self._released.values()), *self._orphaned()]:
            if len(taken) == count:
                return taken
            # The job is not claimed now, so ``claims`` equals its crashes.
            if job.claims >= suspect_after:
                self._move(job, Location.ASIDE)
                self.wake()
            elif not self._comes_again(job):
                taken.append(job)
        given = 0
        while met := [*islice(self._fresh.values(), given, given + count - len(taken))]:
            for job in met:
                if self._has_turn(job, now, keeping):
                    taken.append(job)
                    given += 1
        return taken

    def _comes_again(self, job: Job) -> bool:
        """Return whether a released or orphaned job will be delivered in another way, and so is not taken here."""
        return False

    def _take_suspect(self, count: int) -> list[Job]:
        return in_order(self._aside.values())[: min(count, 1)]

    def _has_turn(self, job: Job, now: Moment, keeping: Keeping) -> bool:
        """Return whether a fresh job may be claimed. If not, block the job or dead-letter it."""
        turn = self.order.ask(job, self._scheduled, again=self.jobs.get(job.id, job) is not job)
        if turn is Turn.YOURS:
            return True
        self._take_out(job)
        if turn is Turn.BLOCKED:
            self._supersede(job.id)
            self._block(job)
        elif turn is Turn.PENDING_FULL:
            self._die(job, "pending_full", now, keeping)
        elif turn is Turn.STOPPED:
            self._die(job, "stopped", now, keeping)
        return False

    def claimable(self, now_ms: int, alone: bool = False) -> bool:
        """Return whether a claim would return something."""
        if self.paused:
            return False
        if alone:
            return bool(self._aside)
        return bool(self._fresh or self._released or self._orphaned() or self.next_due(now_ms) == 0)

    def settle(self, consumer: str, outcomes: Sequence[Outcome], now: Moment, keeping: Keeping) -> int:
        self.check_lease(consumer)
        held = self._held[consumer]
        settled: list[Kind] = []
        died = self.totals["dead"]
        for outcome in outcomes:
            job = held.get(outcome.ref)
            if job is not None:
                self._take_out(job)
                self._settle_as(outcome.kind)(job, outcome, now, keeping)
                settled.append(outcome.kind)
        if Kind.DEAD in settled:
            self._retire(now, keeping, self.totals["dead"] - died)
        return len(settled)

    def _settle_as(self, kind: Kind) -> Callable[[Job, Outcome, Moment, Keeping], None]:
        return {
            Kind.DONE: self._settle_done,
            Kind.RETRY: self._settle_retry,
            Kind.DEAD: self._settle_dead,
            Kind.EXPIRED: self._settle_expired,
        }[kind]

    def _settle_done(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        self._end(job, outcome.result, outcome.result_ttl, outcome.given_id, now, keeping)
        self._pass_on(job)
        self.totals["done"] += 1

    def _settle_expired(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        ending = outcome.result or encode_expired()
        self._end(job, ending, outcome.result_ttl, outcome.given_id, now, keeping)
        self._pass_on(job)
        self.totals["expired"] += 1

    def _settle_retry(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        self._supersede(job.id)
        due_ms = now.ms + round(outcome.delay * 1000)
        again = Job(job.id, outcome.body, outcome.expires_ms, due_ms, key=job.key, task=job.task, position=job.position)
        self._schedule(again)
        self.totals["retried"] += 1

    def _settle_dead(self, job: Job, outcome: Outcome, now: Moment, keeping: Keeping) -> None:
        assert outcome.letter is not None, "a DEAD outcome must have a letter"
        self._dead_letter(job, outcome.letter, outcome.task, outcome.body, now)
        self._end(job, outcome.result, outcome.result_ttl, outcome.given_id, now, keeping, dead=True)
        if job.key is None or not self.order.rules.stop:
            self._pass_on(job)
            return
        for behind in self.order.stop(job, now.ms):
            self._take_out(behind)
            self._die(behind, "stopped", now, keeping)

    def _pass_on(self, job: Job) -> None:
        """Pass the turn of an ended job to the next blocked job of its key, which becomes ready."""
        following = self.order.end(job)
        if following is not None:
            self._append(following)
            self.wake()

    def release(self, consumer: str, refs: Sequence[bytes]) -> int:
        self.check_lease(consumer)
        jobs = [self._held[consumer].get(ref) for ref in dict.fromkeys(refs)]
        return self._hand_back([job for job in jobs if job is not None])

    def recover(self, consumer: str, holding: Collection[bytes]) -> list[Entry]:
        self.check_lease(consumer)
        return [_entry(job) for job in in_order(self._held[consumer].values()) if job.ref not in holding]

    def leave(self, consumer: str, blameless: bool) -> int:
        if self._leases.pop(consumer, None) is None:
            return 0
        jobs = list(self._held.get(consumer, {}).values())
        if blameless:
            self._hand_back(jobs)
        self._forget_if_empty(consumer)
        if jobs:
            self.wake()
        return len(jobs)

    def check_lease(self, consumer: str) -> None:
        if consumer not in self._leases:
            raise LeaseLost(f"consumer {consumer!r} has no lease on queue {self.address!r}")

    # -- operators ---------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        self.paused = False
        self.wake()

    def promote(self, job_ids: Sequence[str]) -> list[str]:
        promoted: list[str] = []
        for job_id in job_ids:
            job = self.jobs.get(job_id)
            if job is not None and job.location is Location.SCHEDULED:
                self._take_out(job)
                self._append(job)
                promoted.append(job_id)
        if promoted:
            self.wake()
        return promoted

    def replay(self, job_ids: Sequence[str], now: Moment) -> list[str]:
        replayed = [self._revive(dead, now) for dead in self._take_dead(job_ids, but_stopped=True)]
        for job in replayed:
            if job.key is None:
                self._append(job)
            else:
                self._block(job)
        for key in dict.fromkeys(job.key for job in replayed if job.key is not None):
            following = self.order.next(key)
            if following is not None:
                self._append(following)
        if replayed:
            self.wake()
        return [job.id for job in replayed]

    def clear_key(self, key: bytes, replay: bool, now: Moment) -> int | None:
        """Clear a stopped key. With ``replay``, its dead letters are blocked again and the first of them gets the turn.

        Return the number of replayed letters, or ``None`` if the key is not stopped.
        """
        died = self.order.clear(key)
        if died is None:
            return None
        replayed = [self._revive(dead, now) for dead in self._take_dead(died)] if replay else []
        for job in replayed:
            self._block(job)
        following = self.order.next(key)
        if following is not None:
            self._append(following)
            self.wake()
        return len(replayed)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def status(self, job_id: str, now: Moment) -> Status:
        job = self.jobs.get(job_id)
        if job is not None:
            if job.location is Location.SCHEDULED:
                return "scheduled"
            if job.location is Location.BLOCKED:
                return "blocked"
            return "running" if self._runs(job) else "ready"
        if job_id in self.dead:
            return "dead"
        ending = self.endings.get(job_id, now.wall)
        return decode_ending(ending).status if ending is not None else "unknown"  # type: ignore[return-value]

    def state(self) -> QueueState:
        running = sum(len(self._held.get(consumer, ())) for consumer in self._leases)
        return QueueState(
            str(self.address),
            ready=self._entries() - running,
            running=running,
            scheduled=len(self._scheduled),
            dead=len(self.dead),
            paused=self.paused,
            consumers=len(self._leases),
            totals=dict(self.totals),
            blocked=self.order.count,
            stopped=len(self.order.stopped(self.dead)),
            suspects=len(self._aside),
        )

    def _hand_back(self, jobs: list[Job]) -> int:
        for job in jobs:
            job.claims -= 1
            self._move(job, Location.RELEASED)
        self.totals["released"] += len(jobs)
        if jobs:
            self.wake()
        return len(jobs)

    def _check_leases(self, now_ms: int) -> None:
        for consumer in self._leases.check(now_ms):
            self._forget_if_empty(consumer)
            self.totals["lapsed"] += 1


def absolute_ms(at: float, after: float, now_ms: int) -> int:
    """Return an absolute time from ``at`` (epoch seconds) or, if that is 0, from ``after`` (seconds from now)."""
    return round(at * 1000) if at else now_ms + round(after * 1000)


def _entry(job: Job) -> Entry:
    return Entry(job.ref, job.body, job.claims - 1, job.expires_ms)
