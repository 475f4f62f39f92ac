"""What ended jobs of one address leave behind: dead letters, endings with a lifetime, and remembered ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from millstream.backends.memory.live_jobs import LiveJobs
from millstream.backends.memory.state import Dead, Given, Job, Kept, Location, Moment, Waiter
from millstream.broker.values import REQUEST_SECONDS
from millstream.model.dead_letter import DeadLetter
from millstream.model.message import ErrorNote
from millstream.model.types import DeadReason

TOTALS = ("published", "done", "retried", "dead", "expired", "cancelled", "released", "lapsed")

# Dead letters that one call removes, in addition to one per new dead letter.
RETIRED_AT_ONCE = 20

_DIED_OF: dict[DeadReason, str] = {
    "pending_full": "an earlier message with this key waits for a retry and blocks max_pending_per_key messages",
    "stopped": "an earlier message with this key failed. Clear the key to resume",
}


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Limits for ids and dead letters of ended jobs. Times are in seconds."""

    id_ttl: float
    dead_max_age: float
    dead_max_count: int


class EndedJobs(LiveJobs):
    """Live jobs, plus dead letters, endings and remembered ids. Waiting callers are woken when a job ends."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: dict[str, int] = dict.fromkeys(TOTALS, 0)
        self.dead: OrderedDict[str, Dead] = OrderedDict()
        self.endings: Kept[bytes] = Kept()
        self._given: Kept[Given] = Kept()
        # Callers that wait for an ending, by job id.
        self.waiting: dict[str, set[Waiter[bytes | None]]] = {}

    def _end(
        self, job: Job, ending: bytes | None, ttl: float, given: bool, now: Moment, keeping: Keeping, *, dead: bool = False
    ) -> None:
        """End a job: store its ending, keep or free its id, and wake the callers that wait for it."""
        if self.jobs.get(job.id) is job:
            del self.jobs[job.id]
        if ttl <= 0:
            ending = None
        if ending is not None:
            self.endings.put(job.id, ending, now.wall + ttl, now.wall)
        known = self._given.get(job.id, now.wall) if given else None
        if known is not None and known.id_ttl == 0 and not dead:
            self._free(job.id, known, now)
        elif known is not None:
            self._given.keep(job.id, now.wall + (known.id_ttl or keeping.id_ttl), now.wall)
        for waiter in self.waiting.pop(job.id, ()):
            waiter.wake(ending)

    def _free(self, job_id: str, known: Given, now: Moment) -> None:
        self._given.put(job_id, known._replace(freed=True), now.wall + REQUEST_SECONDS, now.wall)

    def _dead_letter(self, job: Job, letter: DeadLetter, task: str, body: bytes, now: Moment) -> None:
        self._supersede(job.id)
        number, source = next(self._numbers), job.ref.decode()
        self.dead[job.id] = Dead(number, job.id, task, letter, body, now.ms, source, job.key, job.position)
        self.totals["dead"] += 1

    def _supersede(self, job_id: str) -> None:
        """Remove a scheduled, blocked or dead message with this id. After a seek, a group may receive an event again, and the
        newer delivery wins."""
        self.dead.pop(job_id, None)
        job = self.jobs.pop(job_id, None)
        if job is not None and job.location in (Location.SCHEDULED, Location.BLOCKED):
            self._take_out(job)

    def _die(self, job: Job, reason: DeadReason, now: Moment, keeping: Keeping) -> None:
        """Dead-letter a job without running it, because of its ordering key."""
        if reason == "stopped":
            self.order.record(job)
        letter = DeadLetter(reason, ErrorNote("OrderError", _DIED_OF[reason]), attempts=0, crashes=0, enqueued_ms=0)
        self._dead_letter(job, letter, self._task(job), job.body, now)
        self._end(job, None, 0.0, self._given.get(job.id, now.wall) is not None, now, keeping, dead=True)

    def _task(self, job: Job) -> str:
        return job.task

    def _retire(self, now: Moment, keeping: Keeping, came: int = 0) -> None:
        """Remove the oldest dead letters beyond the limits of count and age: at most RETIRED_AT_ONCE plus ``came``, the number
        of new dead letters."""
        oldest_ms = now.ms - keeping.dead_max_age * 1000
        for dead in [*islice(self.dead.values(), RETIRED_AT_ONCE + came)]:
            if len(self.dead) > keeping.dead_max_count or dead.died_ms < oldest_ms:
                del self.dead[dead.id]
            else:
                return

    def purge(self, job_ids: Sequence[str], now: Moment) -> list[str]:
        gone = [dead.id for dead in self._take_dead(job_ids)]
        for job_id in gone:
            known = self._given.get(job_id, now.wall)
            if known is not None and known.id_ttl == 0:
                self._free(job_id, known, now)
        return gone

    def _take_dead(self, job_ids: Sequence[str], *, but_stopped: bool = False) -> list[Dead]:
        found = [self.dead[job_id] for job_id in dict.fromkeys(job_ids) if job_id in self.dead]
        gone = [dead for dead in found if not (but_stopped and self.order.is_stopped(dead.key))]
        for dead in gone:
            del self.dead[dead.id]
        return gone

    def _revive(self, dead: Dead, now: Moment) -> Job:
        """Return a dead job as a live one."""
        self.endings.drop(dead.id)
        self._given.keep(dead.id, None, now.wall)
        return Job(dead.id, dead.body, 0, key=dead.key, task=dead.task, position=dead.position)
