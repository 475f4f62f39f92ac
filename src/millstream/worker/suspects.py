"""Suspects: jobs that were running when workers died. Each runs with nothing beside it, so that no neighbour is blamed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from millstream.backoff import Backoff
from millstream.broker import Broker, Claim
from millstream.errors import BrokerError, LeaseLost
from millstream.reporter import Reporter
from millstream.worker.hot.claimer import Claimer
from millstream.worker.hot.hold import STOPPING, Hold
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.runner import Runner
from millstream.worker.hot.settler import Settler

log = logging.getLogger("millstream.worker")

ALONE = "a suspect runs alone"

TELL_SECONDS = 0.25
"""How often the supervisor is told of the same queue's suspects."""


class Suspects:
    """Told of queues that have suspects: has them run elsewhere (``isolate``), or drains this worker and runs them here."""

    def __init__(
        self,
        broker: Broker,
        hold: Hold,
        runner: Runner,
        settler: Settler,
        claimers: Sequence[Claimer],
        reporter: Reporter,
        *,
        fenced: Callable[[Lane, str], None],
        isolate: Callable[[str], None] | None,
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

    async def wait_in(self, lane: Lane) -> None:
        """A claim saw that this queue has suspects."""
        if self._isolate is not None:
            now = asyncio.get_running_loop().time()
            if now >= self._told_of.get(lane.queue, 0.0) + TELL_SECONDS:
                self._told_of[lane.queue] = now
                self._isolate(lane.queue)
            return
        if self._alone.locked():
            return
        async with self._alone:
            log.warning("queue %r has jobs that were running when workers died; draining to run each alone", lane.queue)
            self._hold.shut.add(ALONE)
            try:
                for claimer in self._claimers:
                    with contextlib.suppress(BrokerError):  # its own next claim meets the same, and knows what to do
                        await claimer.hand_back(0.0)
                await self._hold.until_quiet(but_open=True)
                await self.run(lane)
            finally:
                self._hold.shut.discard(ALONE)
                self._runner.pump()
                self._hold.freed()

    async def run(self, lane: Lane) -> None:
        """Run the suspects of a queue one by one until none is left."""
        backoff, lost = Backoff(), False
        while STOPPING not in self._hold.shut:
            try:
                claim = await self._claim(lane, lost)
            except LeaseLost:
                self._fenced(lane, lane.consumer)
                return
            except BrokerError as error:
                lost = True
                text = "suspects of queue %r cannot be claimed: %s"
                self._reporter.fail("reclaim", lane.queue, error, text, lane.queue, error)
                await backoff.wait()
                continue
            lost = False
            self._reporter.heal("reclaim", lane.queue)
            if not claim.entries:
                return
            for entry in claim.entries:
                self._runner.accept(lane, Claim([entry], claim.now_ms), alone=True)
                await self._hold.until_quiet(but_open=True)
            await self._settler.drained()

    async def _claim(self, lane: Lane, lost: bool) -> Claim:
        """``lost``: the answer to the last claim may be, and what it brought is ours."""
        if lost:
            await self._settler.drained()
            entries = await self._broker.recover(lane.queue, lane.consumer, lane.handed_back)
            if entries:
                return Claim(entries, (await self._broker.claim(lane.queue, lane.consumer, 0)).now_ms)
        return await self._broker.claim(lane.queue, lane.consumer, 1, alone=True, suspect_after=lane.suspect_after)
