"""The drain: ends running jobs when their worker stops."""

from __future__ import annotations

import asyncio

from millstream.reporting import logs
from millstream.worker.hot.hold import Hold
from millstream.worker.hot.in_flight import FENCED, SHUTDOWN, InFlight
from millstream.worker.hot.runner import Runner
from millstream.worker.hot.settler import Settler

log = logs.logger("millstream.worker")


class Drain:
    """Waits for running jobs to end, then stops the remaining jobs, then abandons threads that do not return."""

    def __init__(self, hold: Hold, runner: Runner, settler: Settler) -> None:
        self.interrupted: list[InFlight] = []
        """Jobs that were still running when the grace period ended."""
        self.abandoned: list[InFlight] = []
        """The interrupted jobs whose threads did not return."""
        self._hold = hold
        self._runner = runner
        self._settler = settler
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """End the grace period now."""
        self._hurried.set()

    async def until_quiet(self) -> None:
        """Wait until no job is running, or until ``hurry`` ends the grace period."""
        waits = [asyncio.ensure_future(self._hold.until_quiet()), asyncio.ensure_future(self._hurried.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def stop_moves(self) -> None:
        """Stop jobs that forward dead letters to a topic, because a full topic makes them wait. Another worker forwards the
        letters."""
        for job in [job for job in self._hold.running if job.lane.letters == "moved"]:
            self._runner.stop_job(job, SHUTDOWN)

    def interrupt(self) -> None:
        """Stop all jobs that are still running when the grace period ends."""
        self.interrupted = list(self._hold.running)
        for job in self.interrupted:
            log.warning("%r was still running at the end of the grace period and is stopped", job)
            self._runner.stop_job(job, SHUTDOWN)

    def abandon(self) -> None:
        """Abandon threads that did not return. A job in such a thread that may run at most once (``max_crashes=0``) is settled
        as dead, because it had started."""
        self.abandoned = list(self._hold.running)
        for job in self.abandoned:
            log.error("%r did not stop: its thread runs until this process ends", job)
            if job.handler.settings.max_crashes == 0 and job.stop != FENCED:
                job.stop = FENCED
                self._settler.add(job.lane, self._runner.judge.interrupted(job, 0.0))
