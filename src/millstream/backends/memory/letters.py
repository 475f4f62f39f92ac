"""A group's dead letters as a queue. Consumers claim letters from the group's list; a handled letter leaves the list.

This module takes no locks, awaits nothing and reads no clock; ``broker.py`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from millstream.backends.memory.ended_jobs import Keeping
from millstream.backends.memory.queue import MemoryQueue
from millstream.backends.memory.state import Dead, Job, Location, Moment
from millstream.broker import Claim, Entry, OrderRules, QueueState
from millstream.broker.letters import enclose
from millstream.model.outcome import DONE, Kind, Outcome


class MemoryLetters(MemoryQueue):
    """Claims on the dead letters of a group. The group owns the letters, and pausing the group pauses this queue."""

    def __init__(self, group: MemoryQueue) -> None:
        super().__init__(group.address.dead)
        self._group = group
        # Number of the last letter that was claimed.
        self._place = 0

    def join(self, consumer: str, lease: float, max_consumers: int | None, order: OrderRules | None, now: Moment) -> int:
        number = super().join(consumer, lease, max_consumers, order, now)
        return self._group.count_join() if number else 0

    def claim(self, consumer: str, count: int, alone: bool, suspect_after: int, now: Moment, keeping: Keeping) -> Claim:
        self.paused = self._group.paused
        orphaned = [jobs for holder, jobs in self._held.items() if holder not in self._leases]
        self._strike([*self._scheduled.values()])
        for entries in (self._released, self._aside, *orphaned):
            self._strike([*entries.values()])
        return super().claim(consumer, count, alone, suspect_after, now, keeping)

    def _take(self, count: int, suspect_after: int, now: Moment, keeping: Keeping) -> list[Job]:
        taken = super()._take(count, suspect_after, now, keeping)
        for dead in self._never_given()[: count - len(taken)]:
            self._place = dead.number
            body = enclose(dead.stored(self._group.address))
            job = Job(dead.id, body, 0, number=(0, dead.number), ref=b"%d" % dead.number)
            self._fresh[job.ref] = job
            taken.append(job)
        return taken

    def claimable(self, now_ms: int, alone: bool = False) -> bool:
        self.paused = self._group.paused
        return super().claimable(now_ms, alone) or (not (self.paused or alone) and bool(self._never_given()))

    def settle(self, consumer: str, outcomes: Sequence[Outcome], now: Moment, keeping: Keeping) -> int:
        self.check_lease(consumer)
        self._strike([*self._scheduled.values()])
        held = self._held[consumer]
        settled = 0
        for outcome in outcomes:
            job = held.get(outcome.ref)
            if job is None:
                continue
            self._take_out(job)
            settled += 1
            if outcome.kind is DONE:
                self.totals["done"] += 1
                if self._listed(job):
                    del self._group.dead[job.id]
            elif self._listed(job):
                self._leave_in_list(job, outcome, now)
        return settled

    def _leave_in_list(self, job: Job, outcome: Outcome, now: Moment) -> None:
        """Schedule an unhandled letter for another attempt, or mark it as unhandled."""
        dead = self._group.dead[job.id]
        if outcome.kind is Kind.RETRY:
            body = enclose(dead.stored(self._group.address), outcome.body)
            self._schedule(Job(job.id, body, 0, now.ms + round(outcome.delay * 1000), number=job.number, ref=job.ref))
            del self.jobs[job.id]  # The group owns the id and finds the letter by it.
            self.totals["retried"] += 1
        elif outcome.letter is not None:
            self._group.dead[job.id] = replace(dead, unhandled=outcome.letter)
            self.totals["dead"] += 1

    def _append(self, job: Job) -> None:
        """Make a due letter ready again. It keeps its entry."""
        job.location = Location.RELEASED
        self._released[job.ref] = job

    def recover(self, consumer: str, holding: Collection[bytes]) -> list[Entry]:
        self.check_lease(consumer)
        self._strike([job for ref, job in self._held[consumer].items() if ref not in holding])
        return super().recover(consumer, holding)

    def scheduled(self) -> list[Job]:
        self._strike([*self._scheduled.values()])
        return super().scheduled()

    def state(self) -> QueueState:
        self._strike([*self._scheduled.values()])
        state = super().state()
        ready = state.ready + len(self._never_given())
        return msgspec.structs.replace(state, ready=ready, dead=len(self._group.dead), paused=self._group.paused)

    def _retire(self, now: Moment, keeping: Keeping, came: int = 0) -> None:
        self._group._retire(now, keeping)

    def _never_given(self) -> list[Dead]:
        """Return the letters that were never claimed. Empty until a first consumer has joined."""
        return [dead for dead in self._group.dead.values() if dead.number > self._place] if self._joins else []

    def _listed(self, job: Job) -> bool:
        """Return whether this letter is still in the list. Its id may belong to a newer letter, or to a replayed event."""
        dead = self._group.dead.get(job.id)
        return dead is not None and (0, dead.number) == job.number

    def _strike(self, jobs: Sequence[Job]) -> None:
        """Remove those of these letters that are no longer dead letters: replayed, purged or too old."""
        for job in jobs:
            if not self._listed(job):
                self._take_out(job)
