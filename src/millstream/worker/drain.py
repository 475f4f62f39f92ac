"""The drain: what becomes of running jobs when their worker stops."""

from __future__ import annotations

import asyncio

from millstream.reporting import logs
from millstream.worker.hot.hold import Hold
from millstream.worker.hot.in_flight import FENCED, SHUTDOWN, InFlight
from millstream.worker.hot.runner import Runner
from millstream.worker.hot.settler import Settler

log = logs.logger("millstream.worker")


class Drain:
    """Waits for running jobs to end, then stops those that still run, then abandons those that do not stop."""

    def __init__(self, hold: Hold, runner: Runner, settler: Settler) -> None:
        self.interrupted: list[InFlight] = []
        """Jobs that the grace period was too short for."""
        self.abandoned: list[InFlight] = []
        """Of these, threads that did not return."""
        self._hold = hold
        self._runner = runner
        self._settler = settler
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """End the grace period now."""
        self._hurried.set()

    async def until_quiet(self) -> None:
        """The grace period: until nothing runs any more, or until ``hurry``."""
        waits = [asyncio.ensure_future(self._hold.until_quiet()), asyncio.ensure_future(self._hurried.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def stop_moves(self) -> None:
        """Stop what moves dead letters to a topic: it may wait because that is full, and is begun again elsewhere."""
        for job in [job for job in self._hold.running if job.lane.letters == "moved"]:
            self._runner.stop_job(job, SHUTDOWN)

    def interrupt(self) -> None:
        """The grace period is over: stop all that still runs."""
        self.interrupted = list(self._hold.running)
        for job in self.interrupted:
            log.warning("%r is stopped: the grace period is over", job)
            self._runner.stop_job(job, SHUTDOWN)

    def abandon(self) -> None:
        """Leave threads that did not return. A job of theirs that may run at most once is dead now, since it had started."""
        self.abandoned = list(self._hold.running)
        for job in self.abandoned:
            log.error("%r did not stop; it runs until this process ends", job)
            if job.handler.settings.max_crashes == 0 and job.stop != FENCED:
                job.stop = FENCED
                self._settler.add(job.lane, self._runner.judge.interrupted(job, 0.0))
