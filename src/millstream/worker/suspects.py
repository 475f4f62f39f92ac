"""Suspects: jobs that were running when workers died. Each runs alone, so that no other job is blamed for a crash."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence

from millstream.aio.backoff import ServiceBackoff
from millstream.broker import Claim, Consuming, Entry
from millstream.errors import BrokerError, LeaseLost
from millstream.model.address import Address
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker.hot.claimer import WAIT_SECONDS, Claimer, holding
from millstream.worker.hot.hold import STOPPING, Hold
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.runner import Runner
from millstream.worker.hot.settler import Settler

log = logs.logger("millstream.worker")

ALONE = "a suspect runs alone"

DRAIN_SECONDS = 10.0
"""Maximum seconds for which a worker starts no new job while it waits for running jobs to end. Afterwards the suspect runs
beside the remaining ones."""

RESUME_SECONDS = 30.0
"""Seconds for which this worker leaves suspects to other workers, after a drain that freed no slot for a suspect."""

TELL_SECONDS = 0.25
"""Minimum seconds between two messages to the supervisor about the suspects of the same queue."""


class Suspects:
    """Runs the suspects of a queue: in another process (``isolate``), or here after a drain of this worker.

    A suspect is claimed before the drain, so that only one worker drains for it. The drain is bounded: a job that runs for half
    an hour must not stop all new work for half an hour. Jobs that are still running then may die with the suspect, which counts
    as one crash for each.
    """

    def __init__(
        self,
        broker: Consuming,
        hold: Hold,
        runner: Runner,
        settler: Settler,
        claimers: Sequence[Claimer],
        reporter: Reporter,
        *,
        fenced: Callable[[Lane, str], None],
        isolate: Callable[[Address], None] | None,
    ) -> None:
        self._broker = broker
        self._hold = hold
        self._runner = runner
        self._settler = settler
        self._claimers = claimers
        self._reporter = reporter
        self._fenced = fenced
        self._isolate = isolate
        self._alone = asyncio.Lock()
        self._told_of: dict[str, float] = {}
        self._not_before = 0.0
        """Loop time until which this worker leaves suspects to others."""

    async def wait_in(self, lane: Lane) -> None:
        """Run the suspects of this queue, or ask for a process that does. Called when a claim reports suspects."""
        if self._isolate is not None:
            now = asyncio.get_running_loop().time()
            if now >= self._told_of.get(lane.queue, 0.0) + TELL_SECONDS:
                self._told_of[lane.queue] = now
                self._isolate(lane.queue)
            return
        if self._alone.locked() or asyncio.get_running_loop().time() < self._not_before:
            return
        async with self._alone:
            await self.run(lane)

    async def run(self, lane: Lane) -> None:
        """Run the suspects of a queue, one at a time, until none is left."""
        backoff, lost, shut = ServiceBackoff(), False, self._hold.shut
        try:
            while STOPPING not in shut:
                asked = asyncio.get_running_loop().time()
                try:
                    claim = await self._claim(lane, lost)
                except LeaseLost:
                    self._fenced(lane, lane.consumer)
                    return
                except BrokerError as error:
                    lost = True
                    text = "queue %r: the jobs that must run alone could not be claimed; trying again: %s"
                    self._reporter.fail("reclaim", lane.queue, error, text, lane.queue, error)
                    await backoff.wait()
                    continue
                lost = False
                self._reporter.heal("reclaim", lane.queue)
                if not claim.entries:
                    return
                lost = not await self._run_each(lane, claim, asked)
                if asyncio.get_running_loop().time() < self._not_before:
                    return
        finally:
            shut.discard(ALONE)
            self._runner.pump()
            self._hold.freed()

    async def _run_each(self, lane: Lane, claim: Claim, asked: float) -> bool:
        """Run the suspects of a claim, one at a time.

        Return False if this process was suspended in between, so that the server must say which of them are still ours.
        """
        consumer, waiting = lane.consumer, list(claim.entries)
        try:
            if ALONE not in self._hold.shut:
                await self._drain(lane)
            while waiting and self._may_begin(lane, consumer, waiting[0]):
                if asyncio.get_running_loop().time() - asked > self._runner.trusted:
                    waiting.clear()
                    return False
                await self._run_alone(lane, waiting.pop(0), claim.now_ms)
            await self._settler.drained(lane)
            return True
        finally:
            if lane.consumer == consumer:
                lane.handed_back += [entry.ref for entry in waiting]

    @property
    def _patience(self) -> float:
        """Maximum seconds of a drain: within this time, the claimed suspect certainly belongs to this worker."""
        return min(DRAIN_SECONDS, self._runner.trusted / 2)

    def _may_begin(self, lane: Lane, consumer: str, entry: Entry) -> bool:
        """Return whether this suspect may start now. Jobs that outlasted the drain may occupy all slots, or the limit of its
        group."""
        if STOPPING in self._hold.shut or lane.consumer != consumer:
            return False
        kind = self._runner.kind_of(lane, entry)
        if kind is None or (self._hold.free[kind] > 0 and not self._at_limit(lane)):
            return True
        log.warning(
            "queue %r: no slot became free within %g s for a job that must run alone; other workers may run it",
            lane.queue,
            self._patience,
        )
        self._not_before = asyncio.get_running_loop().time() + RESUME_SECONDS
        return False

    def _at_limit(self, lane: Lane) -> bool:
        """Return whether the lane's limit of running jobs or batches is reached. Jobs that have not started do not count."""
        if lane.limit is None:
            return False
        if lane.batch is not None:
            return lane.active >= lane.limit
        return sum(job.lane.count is lane.count for job in self._hold.running) >= lane.limit

    async def _drain(self, lane: Lane) -> None:
        log.warning(
            "queue %r has jobs that were running when workers died; this worker starts nothing new and runs each of them alone",
            lane.queue,
        )
        self._hold.shut.add(ALONE)
        for claimer in self._claimers:
            with contextlib.suppress(BrokerError):  # the claimer's next claim gets the same error and handles it
                await claimer.hand_back(0.0)
        hold = self._hold
        await self._until(lambda: len(hold.running) <= hold.open, lane, self._patience)
        if len(hold.running) > hold.open:
            text = "queue %r: other jobs are still running (%d); the jobs that should run alone run beside them"
            log.warning(text, lane.queue, len(hold.running) - hold.open)

    async def _run_alone(self, lane: Lane, entry: Entry, now_ms: int) -> None:
        running = self._hold.running
        self._runner.accept(lane, Claim([entry], now_ms), alone=True)
        await self._until(lambda: not any(job.ref == entry.ref and not job.open for job in running), lane)

    async def _until(self, over: Callable[[], bool], lane: Lane, patience: float = math.inf) -> None:
        """Wait until ``over`` is true. Check the leases of this queue about every second, because its claimer waits for this
        call and cannot do it."""
        now = asyncio.get_running_loop().time
        until, look = now() + patience, now() + WAIT_SECONDS
        while not over() and now() < until:
            await self._hold.until_freed(min(look, until) - now())
            if now() >= look:
                look, consumer = now() + WAIT_SECONDS, lane.consumer
                if not consumer:  # the lease is lost, and the lane has not joined again
                    continue
                try:
                    await self._broker.claim(lane.queue, consumer, 0, suspect_after=lane.suspect_after)
                except LeaseLost:
                    self._fenced(lane, consumer)
                except BrokerError as error:
                    log.debug("queue %r: leases could not be checked: %s", lane.queue, error)

    async def _claim(self, lane: Lane, lost: bool) -> Claim:
        """Claim one suspect. ``lost``: the reply to the last claim may be lost, so recover its messages first."""
        if lost:
            await self._settler.drained(lane)
            entries = await self._broker.recover(lane.queue, lane.consumer, holding(lane, self._hold))
            if entries:
                return Claim(entries, (await self._broker.claim(lane.queue, lane.consumer, 0)).now_ms)
        return await self._broker.claim(lane.queue, lane.consumer, 1, alone=True, suspect_after=lane.suspect_after)
