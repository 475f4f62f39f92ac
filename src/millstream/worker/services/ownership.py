"""Which shards this worker owns, and whether it is one of the consumers that an address with a maximum may have.

A shard has one owner, and workers share the shards evenly: each knows who else is there, and by its rank how many of the shards
are its own. A queue or group with ``consumers`` has at most that number of consumers; the first to join are in.
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
"""How often a worker looks who is there: so soon the shards of one that left or died are taken by others."""

SEEK_SECONDS = 0.1
"""How often it looks for shards that it should have and has not: others give them up, or their leases lapse, soon."""

WAIT_SECONDS = 0.2
"""How often it tries to join an address that has its maximum of ``consumers``, perhaps for as long as they live."""

MARGIN_SECONDS = 0.01
"""How long after it is overdue one is looked at: by then the server has it so, too."""

DRAIN_SECONDS = 0.05
"""How often it looks whether a shard that it gives up has nothing running any more."""


class SharedAddress:
    """An address whose lanes are shared among workers."""

    def __init__(self, serving: Serving, lanes: Sequence[Lane]) -> None:
        self.serving = serving
        # In an order of its own, so that two who seek do not meet at each; always the same, so that all are looked at as often.
        self.lanes = random.sample(lanes, len(lanes))

    @property
    def taken(self) -> list[Lane]:
        """Those it has and keeps."""
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
        """Who claims in each lane."""
        self._claimers = {claimer.lane: claimer for claimer in claimers}

    async def look(self) -> float:
        """Take the lanes that are ours and free, give up what is not ours any more; in how many seconds to look again."""
        again = LOOK_SECONDS
        for shared in self._shared:
            share, overdue = await self._share(shared)
            again, taken = min(again, overdue), shared.taken
            if len(taken) > share:
                # the idlest first: they are given up soonest
                for lane in sorted(taken, key=self._held)[: len(taken) - share]:
                    self._begin_to_leave(lane)
            elif len(taken) < share and not await self._take(shared, share - len(taken)):
                again = min(again, SEEK_SECONDS if shared.serving.shards else WAIT_SECONDS)
        return again

    async def run(self) -> None:
        """Look for ever."""
        again = SEEK_SECONDS
        while self._shared and STOPPING not in self._hold.shut:
            await asyncio.sleep(again)
            async with self._looking:
                if STOPPING in self._hold.shut:
                    return  # a look would join the members again, and we have left
                try:
                    again = await self.look()
                except BrokerUnavailable as error:
                    log.debug("could not look for free shards: %s", error)

    async def stop(self) -> None:
        """Leave: others may have what is given up now."""
        async with self._looking:
            for task in self._leaving:
                task.cancel()
            await asyncio.gather(*self._leaving, return_exceptions=True)
            await self._leases.leave_members()

    async def _share(self, shared: SharedAddress) -> tuple[int, float]:
        """How many of its lanes are ours, and seconds until that may change because one of the others is overdue: the leases of
        who died are looked at as soon as that, and so lapse soonest."""
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
        """Whether all that was wanted could be had."""
        free = iter([lane for lane in shared.lanes if not lane.consumer])
        while wanted and (lanes := list(islice(free, wanted))):
            if STOPPING in self._hold.shut:
                return True
            # Together, and all of them to the end: none is joined of which nobody here knows.
            joined = await asyncio.gather(*map(self._leases.join, lanes), return_exceptions=True)
            for lane, had in zip(lanes, joined, strict=True):
                if isinstance(had, BaseException):
                    raise had
                if had:
                    log.debug("%r is served here now, epoch %d", lane.queue, lane.epoch)
                    wanted -= 1
        return not wanted

    def _begin_to_leave(self, lane: Lane) -> None:
        lane.leaving = True
        task = asyncio.create_task(self._leave(lane, lane.consumer), name="millstream-leave")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, lane: Lane, consumer: str) -> None:
        """Let what runs in a lane end, hand back what waits, and give it up."""
        claimer = self._claimers[lane]
        try:
            await claimer.stop()
            while lane.consumer == consumer:  # else it was lost meanwhile
                try:
                    await claimer.hand_back(0.0)
                    if claimer.at_rest and not self._held(lane):  # else a claim may still bring something
                        await self._leases.give_up(lane)
                        log.debug("%r is left to others", lane.queue)
                        return
                except BrokerError as error:
                    log.debug("%r could not be left yet: %s", lane.queue, error)
                await asyncio.sleep(DRAIN_SECONDS)
        finally:
            lane.leaving = False

    def _held(self, lane: Lane) -> int:
        """How much of a lane runs, waits here, or waits to be settled."""
        hold = self._hold
        jobs = sum(job.lane is lane for job in hold.running) + sum(job.lane is lane for ready in hold.ready for job in ready)
        return jobs + len(lane.gathered) + len(lane.outcomes) + len(lane.settling)
