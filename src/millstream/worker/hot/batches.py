"""Batches: gathers events for handlers that take many events in one call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from millstream.model.invalid import InvalidArguments
from millstream.worker.hot.hold import ASYNC, THREAD, Hold
from millstream.worker.hot.in_flight import InFlight
from millstream.worker.hot.lane import Lane

if TYPE_CHECKING:
    from millstream.events.subscription import Subscription
    from millstream.worker.hot.runner import Runner

QUIET_PART = 0.2
"""A batch that is not full starts when no event has arrived for this part of ``Batch.wait``."""

_NEVER = float("inf")


class BatchRun:
    """One call of a handler with many events."""

    __slots__ = ("args", "fn", "jobs")

    def __init__(self, jobs: list[InFlight], fn: Any, args: tuple[Any, ...]) -> None:
        self.jobs = jobs
        self.fn = fn
        self.args = args

    def call(self) -> Any:
        """Call the handler."""
        return self.fn(*self.args)


class Batches:
    """Starts the batches of all lanes: a full batch immediately, others after their wait. Each batch takes one slot."""

    def __init__(self, runner: Runner, hold: Hold, loop: asyncio.AbstractEventLoop) -> None:
        self._runner = runner
        self._hold = hold
        self._loop = loop
        self._timers: dict[Lane, asyncio.TimerHandle] = {}
        self._waiting: list[Lane] = []
        """Lanes whose batch was due while no slot was free."""

    def gather(self, lane: Lane, *, alone: bool) -> None:
        """Start the lane's full batches, or set the timer for a partial one. Called when events were added.

        ``alone`` starts a batch although nothing else may start now.
        """
        batch = lane.batch
        assert batch is not None
        while len(lane.gathered) >= batch.size or (alone and lane.gathered):
            if not self._start(lane, alone):
                self._wait(lane)
                return
        timer = self._timers.pop(lane, None)
        if timer is not None:
            timer.cancel()
        if lane.gathered:
            wait = cast(float, batch.wait)
            soonest = min(lane.gathered[0].since + wait, self._loop.time() + QUIET_PART * wait)
            self._timers[lane] = self._loop.call_at(soonest, self._due, lane)

    def pump(self) -> None:
        """Start batches that waited for a slot."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for lane in waiting:
                if lane.gathered and not self._start(lane, False):
                    self._wait(lane)
                elif lane.gathered:
                    self.gather(lane, alone=False)

    def _due(self, lane: Lane) -> None:
        self._timers.pop(lane, None)
        if lane.gathered and not self._start(lane, False):
            self._wait(lane)

    def _wait(self, lane: Lane) -> None:
        if lane not in self._waiting:
            self._waiting.append(lane)

    def _start(self, lane: Lane, alone: bool) -> bool:
        """Start one batch. Return False if it cannot start now."""
        hold, batch = self._hold, lane.batch
        assert batch is not None and lane.handler is not None
        subscription = cast("Subscription", lane.handler.handler)
        kind = ASYNC if lane.handler.is_async else THREAD
        if hold.free[kind] <= 0 or (hold.shut and not alone) or (lane.limit is not None and lane.active >= lane.limit):
            return False
        if self._runner.stood_still(lane):
            return True
        size = 1 if alone else batch.size
        gathered, lane.gathered[:size] = lane.gathered[:size], []
        jobs, events = self._decode(subscription, gathered)
        if not jobs:
            return True
        now, timeout = self._loop.time(), subscription.settings.timeout
        for job in jobs:
            job.since, job.ends = now, now + timeout if timeout else _NEVER
        hold.free[kind] -= 1
        hold.started[kind] += len(jobs)
        hold.running.update(jobs)
        if lane.limit is not None:
            lane.active += 1
        run = BatchRun(jobs, lane.handler.call, subscription.arguments.together(jobs, events))
        if lane.acks_first or kind == ASYNC:
            task = self._loop.create_task(self._receive(run, kind) if lane.acks_first else self._run(run))
            for job in jobs:
                job.running = task
        else:
            self._submit(run)
        return True

    def _submit(self, run: BatchRun) -> None:
        try:
            self._runner.threads.submit(run)
        except RuntimeError as error:  # no thread can be started: a failed attempt, and the slot becomes free
            self._loop.call_soon(self._runner.end_together, run.jobs, THREAD, error)

    async def _receive(self, run: BatchRun, kind: int) -> None:
        """Acknowledge, then run."""
        try:
            await self._runner.receipts.acknowledge(run.jobs)
        except BaseException as error:
            self._runner.end_together(run.jobs, kind, error)
            return
        if kind == ASYNC:
            await self._run(run)
        else:
            for job in run.jobs:
                job.running = None
            self._submit(run)

    def _decode(self, subscription: Subscription, gathered: list[InFlight]) -> tuple[list[InFlight], list[Any]]:
        jobs: list[InFlight] = []
        events: list[Any] = []
        decode = subscription.arguments.event
        for job in gathered:
            try:
                events.append(decode(job.message.args))
            except InvalidArguments as error:
                self._runner.cannot_run(job, error)
            else:
                jobs.append(job)
        return jobs, events

    async def _run(self, run: BatchRun) -> None:
        error: BaseException | None = None
        try:
            await run.call()
        except BaseException as raised:
            error = raised
        finally:
            self._runner.end_together(run.jobs, ASYNC, error)
