"""The settler: sends outcomes to the server in batches, and retries until the server has stored them.

Lanes are settled concurrently, so that a lane whose server is unreachable does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millstream.aio.backoff import ServiceBackoff
from millstream.broker import Consuming
from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable, LeaseLost
from millstream.model.dead_letter import DeadLetter
from millstream.model.message import ErrorNote, decode_message
from millstream.model.outcome import DONE, Kind, Outcome
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker import verdict
from millstream.worker.hot.hold import BATCH, BATCH_BYTES, Hold

if TYPE_CHECKING:
    from millstream.worker.hot.lane import Lane

log = logs.logger("millstream.worker")

REJECTED = "OutcomeRejected"

REJECTION_LIMIT = 1_000
"""Maximum number of characters kept of the error with which the server rejected an outcome."""

BATCH_KEPT = 100
"""Maximum number of endings that one call stores: each costs the server more than the settling itself. With 200 endings the p99
of a call was 2.5 to 4.1 ms; with 100 it is 1.6 to 2.1 ms, and workers are equally fast."""


class Settler:
    """Settles the outcomes of all lanes. An outcome is kept until the server has stored it, or refused it because the lease is
    lost."""

    def __init__(
        self, broker: Consuming, hold: Hold, lanes: Sequence[Lane], reporter: Reporter, fenced: Callable[[Lane, str], None]
    ) -> None:
        self._broker = broker
        self._hold = hold
        self._lanes = lanes
        self._reporter = reporter
        self._fenced = fenced
        self._settled = asyncio.Event()
        """Set whenever a lane has no outcomes left. Waiters check their own condition."""
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each lane that has outcomes to settle."""
        self._crashed: asyncio.Future[None] | None = None
        """Gets the error of a task that crashed. None while the settler is not running."""
        self.first_error: BaseException | None = None
        """The first error of settling an outcome, or of a handler whose job is not retried."""
        self.totals = {"done": 0, "retried": 0, "dead": 0, "refused": 0}

    def unheard(self, error: BaseException) -> None:
        """Keep the first error that only the log has recorded, for the summary."""
        self.first_error = self.first_error or error

    def add(self, lane: Lane, outcome: Outcome) -> None:
        """Queue one outcome for settling."""
        lane.outcomes.append(outcome)
        self._hold.unsettled += 1
        if not lane.being_settled:
            self._begin(lane)

    def withdraw(self, lane: Lane, outcomes: Sequence[Outcome]) -> None:
        """Remove these outcomes, except those that are being settled already."""
        for outcome in outcomes:
            lane.watched.pop(outcome.ref, None)
            if outcome in lane.outcomes:
                lane.outcomes.remove(outcome)
                self._hold.unsettled -= 1
        self._settled.set()

    def forget(self, lane: Lane, error: BrokerError) -> None:
        """Drop the outcomes of a lane that lost its lease: other workers run its jobs again."""
        lane.unwatch(error, [outcome.ref for outcome in lane.outcomes])
        self.totals["refused"] += len(lane.outcomes)
        self._hold.unsettled -= len(lane.outcomes)
        lane.outcomes.clear()
        self._settled.set()

    async def drained(self, lane: Lane | None = None) -> None:
        """Wait until nothing is unsettled, or only nothing of one lane."""
        while self._hold.unsettled if lane is None else lane.outcomes or lane.settling:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> None:
        """Settle until cancelled, or until settling a lane crashes."""
        self._crashed = asyncio.get_running_loop().create_future()
        for lane in self._lanes:
            if lane.outcomes or lane.settling:
                self._begin(lane)
        try:
            await self._crashed
        finally:
            self._crashed = None
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, lane: Lane) -> None:
        if self._crashed is not None:  # otherwise ``run`` begins with this lane
            lane.being_settled = True
            task = asyncio.create_task(self._settle_all(lane))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: Lane, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # perhaps before its first step
            lane.being_settled = False
        crashed = self._crashed
        if not task.cancelled() and (error := task.exception()) is not None and crashed is not None and not crashed.done():
            crashed.set_exception(error)

    async def _settle_all(self, lane: Lane) -> None:
        try:
            while lane.outcomes or lane.settling:
                await self._settle(lane)
        finally:
            lane.being_settled = False

    async def _settle(self, lane: Lane) -> None:
        if not lane.settling:  # otherwise a failed run of this service left a batch behind
            lane.settling = _take(lane.outcomes, 1 if lane.suspected else BATCH)
            lane.settling_as = lane.consumer
        batch, consumer, backoff = lane.settling, lane.settling_as, ServiceBackoff()
        while True:
            try:
                await self._broker.settle(lane.queue, consumer, batch)
            except (BrokerUnavailable, BrokerRefused) as error:
                self._missed(lane, error)
                await backoff.wait()
                continue
            except LeaseLost as error:
                self._refused(lane, batch, error)
                self._fenced(lane, consumer)
            except BrokerError as error:
                batch = self._rejected(lane, batch, consumer, error)
            else:
                self._count(batch)
                if lane.watched:
                    _tell(lane, batch)
            break
        lane.settling = []
        lane.suspected = max(0, lane.suspected - 1)
        self._hold.unsettled -= len(batch)
        if lane.away:  # the server answered, so it is reachable again
            lane.away = False
            self._reporter.reach("settle", lane.queue)
        self._hold.freed()
        if not lane.outcomes:
            self._settled.set()

    def _missed(self, lane: Lane, error: BrokerError) -> None:
        """Report that the server of a lane is unreachable. Buffered messages of all its lanes are dropped, because their leases
        may lapse before they start. The claimers recover those that are still ours once the server is back."""
        server = self._broker.server(lane.queue)
        self._reporter.miss("settle", lane.queue, error, server)
        if not lane.away:
            lane.away = True
            for each in self._lanes:
                if not each.broadcast and self._broker.server(each.queue) == server:
                    self._hold.drop(each)
                    each.doubtful = True

    def _rejected(self, lane: Lane, batch: list[Outcome], consumer: str, error: BrokerError) -> list[Outcome]:
        """Handle a batch that the server rejects because of one of its outcomes. Return the outcomes that are finished now.

        The outcomes of a larger batch are settled one by one. A single outcome is replaced by a smaller one, so that its job
        does not stay running.
        """
        if lane.consumer != consumer:  # the lease was lost: other workers run these jobs now
            self._refused(lane, batch, error)
            return batch
        if len(batch) > 1:
            lane.outcomes[:0] = batch
            lane.suspected = 1 + len(batch)
            return []
        (outcome,) = batch
        instead = _instead(outcome, error)
        if instead is None:
            self._refused(lane, batch, error)
            return batch
        log.error("the server rejected the outcome of %s, which is stored as %s instead: %s", outcome.id, _said(instead), error)
        self.unheard(error)
        self._reporter.tell("settle", lane.queue, error, job_id=outcome.id)
        lane.outcomes.insert(0, instead)
        lane.suspected += 1
        return []

    def _refused(self, lane: Lane, batch: Sequence[Outcome], error: BrokerError) -> None:
        lane.unwatch(error, [outcome.ref for outcome in batch])
        self.totals["refused"] += len(batch)
        ids = ", ".join(outcome.id for outcome in batch[:5]) + (", …" if len(batch) > 5 else "")
        self.unheard(error)
        log.error("outcomes refused by the server and dropped: %d (%s): %s", len(batch), ids, error)
        self._reporter.tell("settle", lane.queue, error, job_id=batch[0].id)

    def _count(self, batch: Sequence[Outcome]) -> None:
        other = [outcome.kind for outcome in batch if outcome.kind is not DONE]
        self.totals["done"] += len(batch) - len(other)
        self.totals["retried"] += other.count(Kind.RETRY)
        self.totals["dead"] += other.count(Kind.DEAD)


def _instead(outcome: Outcome, error: BrokerError) -> Outcome | None:
    """Return a smaller outcome for a job whose outcome the server rejects, or None if there is no smaller one.

    A done job stays done, without its result. Any other job becomes a dead letter whose error is the rejection. If the server
    rejects this dead letter too, the next one omits the job's message.
    """
    if outcome.kind is not Kind.RETRY and outcome.kind is not Kind.DEAD:
        return None if outcome.result is None else msgspec.structs.replace(outcome, result=None, result_ttl=0.0)
    why = ErrorNote(REJECTED, f"the server rejected its outcome: {error}"[:REJECTION_LIMIT])
    letter = outcome.letter
    if outcome.kind is Kind.RETRY:
        return verdict.dead(outcome.ref, decode_message(outcome.body), "exhausted", why, 0, 0.0)
    if letter is None or not outcome.body:
        return None
    small = DeadLetter(letter.reason, why, letter.attempts, letter.crashes, letter.enqueued_ms)
    body = b"" if letter.error.type == REJECTED else outcome.body
    return msgspec.structs.replace(outcome, result=None, result_ttl=0.0, body=body, letter=small)


def _said(outcome: Outcome) -> str:
    return "done, without its result" if outcome.kind is DONE else "a dead letter"


def _take(outcomes: list[Outcome], count: int) -> list[Outcome]:
    """Remove and return a batch from the front, bounded by count, number of endings, and bytes."""
    size = kept = 0
    for i, outcome in enumerate(outcomes[:count]):
        if outcome.result is not None or outcome.body:
            kept += outcome.result is not None
            size += len(outcome.result or b"") + len(outcome.body)
            if (size > BATCH_BYTES or kept > BATCH_KEPT) and i:
                batch = outcomes[:i]
                del outcomes[:i]
                return batch
    batch = outcomes[:count]
    del outcomes[:count]
    return batch


def _tell(lane: Lane, batch: Sequence[Outcome]) -> None:
    for outcome in batch:
        future = lane.watched.pop(outcome.ref, None)
        if future is not None and not future.done():
            future.set_result(None)
