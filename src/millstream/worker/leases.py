"""A worker's leases: taken before the first claim, lost when they lapse, given up when the worker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from millstream.aio.backoff import ServiceBackoff
from millstream.broker import Consuming, Membership
from millstream.errors import BrokerError, LeaseLost
from millstream.model.address import Address
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker.hot.hold import STOPPING, Hold
from millstream.worker.hot.in_flight import FENCED
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.runner import Runner
from millstream.worker.hot.settler import Settler

log = logs.logger("millstream.worker")

OUTLAST_SECONDS = 0.1
"""Seconds between two checks whether the last job of a stopped worker has ended."""


class LeaseKeeper(Protocol):
    """Renews this worker's leases: a thread, or the supervisor."""

    @property
    def alive(self) -> bool: ...
    @property
    def error(self) -> BaseException | None: ...
    def report_to(self, reporter: Reporter) -> None: ...
    async def start(self) -> None: ...
    def keep(self, queue: Address, consumer: str, lease: float) -> None: ...
    def drop(self, queue: Address, consumer: str) -> None: ...
    async def stop(self) -> None: ...


class Leases:
    """One lease per lane. A lane that lost its lease joins again under a new consumer name and holds no messages then."""

    def __init__(
        self,
        worker_id: str,
        lease: float,
        broker: Consuming,
        keeper: LeaseKeeper,
        hold: Hold,
        runner: Runner,
        settler: Settler,
        reporter: Reporter,
    ) -> None:
        self._worker_id = worker_id
        self._lease = lease
        self._broker = broker
        self._keeper = keeper
        self._hold = hold
        self._runner = runner
        self._settler = settler
        self._reporter = reporter
        self._incarnation = 0
        self._memberships: set[Address] = set()
        self.rejoining: set[asyncio.Task[None]] = set()

    async def join(self, lane: Lane) -> bool:
        """Take a lease under a new consumer name. Return False if the address has its maximum number of consumers."""
        self._incarnation += 1
        consumer = f"{self._worker_id}.{self._incarnation}"
        epoch = await self._broker.join(lane.queue, consumer, self._lease, max_consumers=lane.max_consumers, order=lane.order)
        if not epoch:
            return False
        self._keeper.keep(lane.queue, consumer, self._lease)
        lane.consumer, lane.epoch = consumer, epoch
        lane.stirred.set()
        return True

    async def join_members(self, address: Address) -> Membership:
        """Join the workers that share the shards of an address, or renew the membership, and return all members."""
        membership = await self._broker.join_members(address, self._worker_id, self._lease)
        if address not in self._memberships:
            self._memberships.add(address)
            self._keeper.keep(address, self._worker_id, self._lease)  # the supervisor gives it up if this process dies
        return membership

    async def give_up(self, lane: Lane) -> None:
        """Give up the lease of a lane that holds nothing any more, so that another worker can take it."""
        consumer = lane.consumer
        await self._broker.leave(lane.queue, consumer, blameless=True)
        self._keeper.drop(lane.queue, consumer)
        if lane.consumer == consumer:
            lane.consumer = ""
            lane.handed_back.clear()

    def fence(self, lane: Lane, consumer: str) -> None:
        """Handle a lost lease: cancel the lane's jobs, drop all its messages, and join again under a new consumer name."""
        if not consumer or lane.consumer != consumer or STOPPING in self._hold.shut:
            return
        lost = LeaseLost(
            f"worker {self._worker_id} lost its lease on queue {lane.queue!r}: other workers run its jobs again. "
            "Usual cause: the process was suspended, or could not reach the server, for longer than the lease"
        )
        log.error("%s", lost)
        self._reporter.tell("renew", lane.queue, lost)
        lane.consumer = ""
        hold = self._hold
        hold.drop(lane)
        self._settler.forget(lane, lost)
        lane.handed_back.clear()
        lane.unwatch(lost)
        # Stop the jobs last: a job that ends immediately passes its slot to a job in ``ready``.
        for job in [job for job in hold.running if job.lane is lane]:
            self._runner.stop_job(job, FENCED)
        self._keeper.drop(lane.queue, consumer)
        task = asyncio.create_task(self._rejoin(lane, consumer))
        self.rejoining.add(task)
        task.add_done_callback(self.rejoining.discard)

    async def _rejoin(self, lane: Lane, lost: str) -> None:
        backoff = ServiceBackoff()
        while STOPPING not in self._hold.shut:
            try:
                await self._broker.leave(lane.queue, lost)
                if lane.max_consumers is None:  # otherwise `Ownership` joins again
                    await self.join(lane)
            except BrokerError as error:
                text = "queue %r could not be joined again after its lease was lost; trying again: %s"
                self._reporter.fail("renew", lane.queue, error, text, lane.queue, error)
                await backoff.wait()
            else:
                self._reporter.heal("renew", lane.queue)
                return

    async def leave_members(self) -> None:
        """Leave the members of all shared addresses, so that other workers take over this worker's shards."""
        for address in self._memberships:
            try:
                await self._broker.leave(address, self._worker_id)
                self._keeper.drop(address, self._worker_id)
            except BrokerError as error:
                self._reporter.fail(
                    "maintenance", address, error, "%r could not be left; this worker's membership lapses: %s", address, error
                )

    async def leave(self, lanes: Sequence[Lane], still_running: set[Lane]) -> None:
        """Release interrupted messages and give up the leases, except those of lanes where a job is still running.

        All lanes at the same time: one node of a cluster that does not answer must not delay the others.
        """
        await asyncio.gather(*(self._leave(lane, lane in still_running) for lane in lanes if lane.consumer))

    async def _leave(self, lane: Lane, still_running: bool) -> None:
        try:
            await self._broker.release(lane.queue, lane.consumer, lane.handed_back)
            if not still_running:
                await self._broker.leave(lane.queue, lane.consumer, blameless=True)
                # Only after ``leave``: until this drop, the supervisor gives up the lease if this process dies.
                self._keeper.drop(lane.queue, lane.consumer)
        except BrokerError as error:
            self._not_left(lane, error)

    def outlast(self, lanes: Sequence[Lane]) -> Callable[[Consuming], Awaitable[None]]:
        """Return a function that waits for the last jobs, settles them and gives up the leases.

        The keeper's thread calls it with its own connection, because this event loop may be closed before the last job ends.
        """
        loop, running, threads = asyncio.get_running_loop(), self._hold.running, self._runner.threads

        async def settle_and_leave(broker: Consuming) -> None:
            while running if loop.is_running() else threads.busy:
                await asyncio.sleep(OUTLAST_SECONDS)
            for lane in lanes:
                try:
                    settling = lane.settling if lane.settling_as == lane.consumer else []
                    await broker.settle(lane.queue, lane.consumer, [*settling, *lane.outcomes])
                    await broker.leave(lane.queue, lane.consumer, blameless=True)
                except BrokerError as error:
                    self._not_left(lane, error)

        return settle_and_leave

    def _not_left(self, lane: Lane, error: BrokerError) -> None:
        text = "queue %r could not be left; its lease lapses and its remaining jobs are redelivered: %s"
        self._reporter.fail("maintenance", lane.queue, error, text, lane.queue, error)
