"""The settler: outcomes to the server, a batch at a time, until they are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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

SERVER_AWAY = "the server is away"

REJECTED = "OutcomeRejected"

REJECTION_LIMIT = 1_000
"""Characters kept of the error with which the server rejected an outcome."""

BATCH_KEPT = 100
"""The most endings one call keeps: each costs the server more than the settling itself. With 200 of them the p99 of a call was
2.5 to 4.1 ms, with 100 it is 1.6 to 2.1, and workers are as fast."""


class Settler:
    """Settles what lanes have finished. An outcome is kept until the server took it or said that it is not ours any more."""

    def __init__(
        self, broker: Consuming, hold: Hold, lanes: Sequence[Lane], reporter: Reporter, fenced: Callable[[Lane, str], None]
    ) -> None:
        self._broker = broker
        self._hold = hold
        self._lanes = lanes
        self._reporter = reporter
        self._fenced = fenced
        self.pump: Callable[[], None] = lambda: None
        """Starts what is buffered, once handlers may start again."""
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._away = False
        """The server did not answer when it was last asked."""
        self._suspected = 0
        """How many outcomes are settled one by one, because the server would not take them together."""
        self.first_error: BaseException | None = None
        """The first that concerns an outcome, or a handler whose work is not tried again."""
        self.totals = {"done": 0, "retried": 0, "dead": 0, "refused": 0}

    def unheard(self, error: BaseException) -> None:
        """Nobody but the log has heard of this error."""
        self.first_error = self.first_error or error

    def add(self, lane: Lane, outcome: Outcome) -> None:
        """Take over one outcome."""
        lane.outcomes.append(outcome)
        hold = self._hold
        hold.unsettled += 1
        if hold.unsettled == 1:
            self._wake.set()

    def withdraw(self, lane: Lane, outcomes: Sequence[Outcome]) -> None:
        """Give back those of them that are not on their way yet."""
        for outcome in outcomes:
            lane.watched.pop(outcome.ref, None)
            if outcome in lane.outcomes:
                lane.outcomes.remove(outcome)
                self._hold.unsettled -= 1
        if not self._hold.unsettled:
            self._settled.set()

    def forget(self, lane: Lane, error: BrokerError) -> None:
        """A lane's lease is gone: what it has ended is others' to end."""
        lane.unwatch(error, [outcome.ref for outcome in lane.outcomes])
        self.totals["refused"] += len(lane.outcomes)
        self._hold.unsettled -= len(lane.outcomes)
        lane.outcomes.clear()
        if not self._hold.unsettled:
            self._settled.set()

    async def drained(self) -> None:
        """Wait until nothing is unsettled."""
        while self._hold.unsettled:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> None:
        """Settle without end."""
        hold = self._hold
        hold.shut.discard(SERVER_AWAY)  # set by a run that failed: the next answer tells
        while True:
            if not hold.unsettled:
                await self._wake.wait()
            self._wake.clear()
            while hold.unsettled:
                for lane in self._lanes:
                    if lane.outcomes or lane.settling:
                        await self._settle(lane)

    async def _settle(self, lane: Lane) -> None:
        if not lane.settling:  # else a failed run of this service left it behind
            lane.settling = _take(lane.outcomes, 1 if self._suspected else BATCH)
            lane.settling_as = lane.consumer
        batch, consumer, backoff = lane.settling, lane.settling_as, ServiceBackoff()
        while True:
            try:
                await self._broker.settle(lane.queue, consumer, batch)
            except (BrokerUnavailable, BrokerRefused) as error:
                self._away = True
                self._hold.shut.add(SERVER_AWAY)
                self._reporter.miss("settle", lane.queue, error)
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
        self._suspected = max(0, self._suspected - 1)
        self._hold.unsettled -= len(batch)
        if self._away:  # whatever the server said, it is back
            self._away = False
            self._reporter.reach("settle", lane.queue)
            self._hold.shut.discard(SERVER_AWAY)
            self.pump()
        self._hold.freed()
        if not self._hold.unsettled:
            self._settled.set()

    def _rejected(self, lane: Lane, batch: list[Outcome], consumer: str, error: BrokerError) -> list[Outcome]:
        """The server chokes on one of a batch. Those that are done with now; the others are settled one by one, and one that
        is alone is settled in another way, so that its job does not stay among the running ones."""
        if lane.consumer != consumer:  # they are others' now
            self._refused(lane, batch, error)
            return batch
        if len(batch) > 1:
            lane.outcomes[:0] = batch
            self._suspected = 1 + len(batch)
            return []
        (outcome,) = batch
        instead = _instead(outcome, error)
        if instead is None:
            self._refused(lane, batch, error)
            return batch
        log.error("the server rejected the outcome of %s; it ends as %s instead: %s", outcome.id, _said(instead), error)
        self.unheard(error)
        self._reporter.tell("settle", lane.queue, error, job_id=outcome.id)
        lane.outcomes.insert(0, instead)
        self._suspected += 1
        return []

    def _refused(self, lane: Lane, batch: Sequence[Outcome], error: BrokerError) -> None:
        lane.unwatch(error, [outcome.ref for outcome in batch])
        self.totals["refused"] += len(batch)
        ids = ", ".join(outcome.id for outcome in batch[:5]) + (", …" if len(batch) > 5 else "")
        self.unheard(error)
        log.error("%d outcomes were refused (%s): %s", len(batch), ids, error)
        self._reporter.tell("settle", lane.queue, error, job_id=batch[0].id)

    def _count(self, batch: Sequence[Outcome]) -> None:
        other = [outcome.kind for outcome in batch if outcome.kind is not DONE]
        self.totals["done"] += len(batch) - len(other)
        self.totals["retried"] += other.count(Kind.RETRY)
        self.totals["dead"] += other.count(Kind.DEAD)


def _instead(outcome: Outcome, error: BrokerError) -> Outcome | None:
    """A smaller end for a job whose outcome the server rejects; None if there is none.

    What is done stays done, without its result. Everything else is a dead letter that says so: with the message, then without.
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
    """A batch off the front, bounded in count, in endings to keep and in bytes."""
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
