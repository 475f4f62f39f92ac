"""The ticker: stops jobs at their timeouts, and releases messages that have been buffered for too long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from millstream.errors import BrokerError
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker.hot.claimer import Claimer
from millstream.worker.hot.hold import Hold
from millstream.worker.hot.in_flight import TIMEOUT, InFlight
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.runner import Runner

log = logs.logger("millstream.worker")

TICK_SECONDS = 0.05
"""Seconds between two checks of timeouts and the buffer."""

STALE_SECONDS = 0.25
"""Seconds after which a buffered message without a slot is released: other workers may be idle."""


class Ticker:
    """Checks all jobs in one pass, instead of one timer per job. ``ticked`` is called after every pass."""

    def __init__(
        self,
        hold: Hold,
        runner: Runner,
        lanes: Sequence[Lane],
        claimers: Sequence[Claimer],
        reporter: Reporter,
        ticked: Callable[[], object],
    ) -> None:
        self.handing_back: asyncio.Task[None] | None = None
        """The task that releases messages that were buffered for too long."""
        self._hold = hold
        self._runner = runner
        self._lanes = lanes
        self._claimers = claimers
        self._reporter = reporter
        self._ticked = ticked

    async def run(self) -> None:
        """Check periodically until cancelled."""
        loop, hold = asyncio.get_running_loop(), self._hold
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for lane in self._lanes:
                if lane.gathered:
                    self._runner.stood_still(lane)
            hold.ticked = now = loop.time()
            for job in [job for job in hold.running if job.ends <= now and not job.stop]:
                log.warning("%r ran past its timeout of %g s%s", job, job.ends - job.since, _thread_note(job))
                self._runner.stop_job(job, TIMEOUT)
            stale = any(ready and ready[0].since < now - STALE_SECONDS and not ready[0].lane.broadcast for ready in hold.ready)
            if stale and (self.handing_back is None or self.handing_back.done()):
                self.handing_back = asyncio.create_task(self._hand_back())  # timeouts must not wait for the server
            self._ticked()

    async def _hand_back(self) -> None:
        for claimer in self._claimers:
            try:
                await claimer.hand_back(STALE_SECONDS)
            except BrokerError as error:
                self._reporter.fail("maintenance", claimer.queue, error, "could not release: %s", error, level=logging.DEBUG)
            else:
                self._reporter.heal("maintenance", claimer.queue)


def _thread_note(job: InFlight) -> str:
    if job.running is not None:
        return ""
    return "; a thread cannot be stopped: current_job().cancelled is now true, and its slot stays taken until it returns"
