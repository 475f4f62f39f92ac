"""Ownership: which shards this worker owns, and whether it may be a consumer of an address with a maximum.

A shard has one owner, and workers share the shards evenly. Each worker reads the list of members, and its rank in the list says
how many shards are its own. A queue or group with ``consumers`` has at most that number of consumers; the first to join are
accepted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import islice

from millstream.errors import BrokerError, BrokerUnavailable
from millstream.model.serving import Serving
from millstream.reporting import logs
from millstream.worker.hot.claimer import Claimer
from millstream.worker.hot.hold import STOPPING, Hold
from millstream.worker.hot.lane import Lane
from millstream.worker.leases import Leases

log = logs.logger("millstream.worker")

LOOK_SECONDS = 0.5
"""Seconds between two checks of the members. Within this time, other workers take the shards of a worker that left or died."""

SEEK_SECONDS = 0.1
"""Seconds between two attempts to take missing shards: other workers give them up, or their leases lapse, soon."""

WAIT_SECONDS = 0.2
"""Seconds between two attempts to join an address that has its maximum of ``consumers``. They may never succeed."""

MARGIN_SECONDS = 0.01
"""Seconds to wait after a lease becomes overdue, so that it is overdue by the server's clock, too."""

DRAIN_SECONDS = 0.05
"""Seconds between two checks whether the jobs of a shard that is given up have ended."""


class SharedAddress:
    """An address whose lanes several workers share."""

    def __init__(self, serving: Serving, lanes: Sequence[Lane]) -> None:
        self.serving = serving
        # Each worker tries shards in its own random order, so that two workers rarely want the same one. The order is fixed,
        # so that all shards are tried equally often.
        self.lanes = random.sample(lanes, len(lanes))

    @property
    def taken(self) -> list[Lane]:
        """The lanes that this worker owns and is not giving up."""
        return [lane for lane in self.lanes if lane.claims]


class Ownership:
    """Takes and gives up lanes, until the worker stops."""

    def __init__(self, worker: str, leases: Leases, hold: Hold, shared_addresses: Sequence[SharedAddress]) -> None:
        self._worker = worker
        self._leases = leases
        self._hold = hold
        self._shared = shared_addresses
        self._claimers: dict[Lane, Claimer] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Lock()

    def know(self, claimers: Sequence[Claimer]) -> None:
        """Set the claimer of each lane."""
        self._claimers = {claimer.lane: claimer for claimer in claimers}

    async def look(self) -> float:
        """Take free lanes up to this worker's share, and give up lanes beyond it. Return the seconds until the next check."""
        again = LOOK_SECONDS
        for shared in self._shared:
            share, overdue = await self._share(shared)
            again, taken = min(again, overdue), shared.taken
            if len(taken) > share:
                # lanes with the fewest messages first: they can be given up soonest
                for lane in sorted(taken, key=self._held)[: len(taken) - share]:
                    self._begin_to_leave(lane)
            elif len(taken) < share and not await self._take(shared, share - len(taken)):
                again = min(again, SEEK_SECONDS if shared.serving.shards else WAIT_SECONDS)
        return again

    async def run(self) -> None:
        """Check periodically until the worker stops."""
        again = SEEK_SECONDS
        while self._shared and STOPPING not in self._hold.shut:
            await asyncio.sleep(again)
            async with self._looking:
                if STOPPING in self._hold.shut:
                    return  # a check would join the members again after ``stop`` has left them
                try:
                    again = await self.look()
                except BrokerUnavailable as error:
                    log.debug("could not check for free shards: %s", error)

    async def stop(self) -> None:
        """Leave the members, so that other workers can take this worker's lanes."""
        async with self._looking:
            for task in self._leaving:
                task.cancel()
            await asyncio.gather(*self._leaving, return_exceptions=True)
            await self._leases.leave_members()

    async def _share(self, shared: SharedAddress) -> tuple[int, float]:
        """Return this worker's share of the lanes, and the seconds until another member's lease may be overdue.

        A check at that moment lets the leases of a dead worker lapse as early as possible.
        """
        if not shared.serving.shards:
            return 1, LOOK_SECONDS
        membership = await self._leases.join_members(shared.serving.address)
        overdue = LOOK_SECONDS if membership.next_check is None else membership.next_check + MARGIN_SECONDS
        members = membership.members[: shared.serving.max_consumers]
        if self._worker not in members:
            return 0, overdue
        each, more = divmod(shared.serving.shards, len(members))
        return each + (members.index(self._worker) < more), overdue

    async def _take(self, shared: SharedAddress, wanted: int) -> bool:
        """Take up to ``wanted`` free lanes. Return whether all of them could be taken."""
        free = iter([lane for lane in shared.lanes if not lane.consumer])
        while wanted and (lanes := list(islice(free, wanted))):
            if STOPPING in self._hold.shut:
                return True
            # Concurrently, and all of them to completion, so that no lane is joined without this worker knowing it.
            joined = await asyncio.gather(*map(self._leases.join, lanes), return_exceptions=True)
            for lane, had in zip(lanes, joined, strict=True):
                if isinstance(had, BaseException):
                    raise had
                if had:
                    log.debug("now serving %r, epoch %d", lane.queue, lane.epoch)
                    wanted -= 1
        return not wanted

    def _begin_to_leave(self, lane: Lane) -> None:
        lane.leaving = True
        task = asyncio.create_task(self._leave(lane, lane.consumer), name="millstream-leave")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, lane: Lane, consumer: str) -> None:
        """Release the lane's buffered messages, let its running jobs end, and give up its lease."""
        claimer = self._claimers[lane]
        try:
            await claimer.stop()
            while lane.consumer == consumer:  # otherwise the lease was lost
                try:
                    await claimer.hand_back(0.0)
                    if claimer.at_rest and not self._held(lane):  # otherwise a claim in flight may still bring messages
                        await self._leases.give_up(lane)
                        log.debug("stopped serving %r, so that another worker can serve it", lane.queue)
                        return
                except BrokerError as error:
                    log.debug("the lease on %r could not be given up yet; trying again: %s", lane.queue, error)
                await asyncio.sleep(DRAIN_SECONDS)
        finally:
            lane.leaving = False

    def _held(self, lane: Lane) -> int:
        """Return how many messages of a lane are running, buffered or unsettled."""
        hold = self._hold
        jobs = sum(job.lane is lane for job in hold.running) + sum(job.lane is lane for ready in hold.ready for job in ready)
        return jobs + len(lane.gathered) + len(lane.outcomes) + len(lane.settling)
