"""The ticker: ends jobs at their timeouts, and hands back what has waited here for too long."""

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
"""How often deadlines and the buffer are looked at."""

STALE_SECONDS = 0.25
"""What has been buffered for this long without a slot is handed back: others may be idle."""


class Ticker:
    """One look for all jobs, no timer per job. ``ticked`` is called after every look."""

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
        """What was buffered for too long is being handed back."""
        self._hold = hold
        self._runner = runner
        self._lanes = lanes
        self._claimers = claimers
        self._reporter = reporter
        self._ticked = ticked

    async def run(self) -> None:
        """Look until cancelled."""
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
                self.handing_back = asyncio.create_task(self._hand_back())  # deadlines do not wait for the server
            self._ticked()

    async def _hand_back(self) -> None:
        for claimer in self._claimers:
            try:
                await claimer.hand_back(STALE_SECONDS)
            except BrokerError as error:
                self._reporter.fail("maintenance", claimer.queue, error, "could not hand back: %s", error, level=logging.DEBUG)
            else:
                self._reporter.heal("maintenance", claimer.queue)


def _thread_note(job: InFlight) -> str:
    if job.running is not None:
        return ""
    return "; a thread cannot be stopped: current_job().cancelled is set, and its slot stays taken until it returns"
