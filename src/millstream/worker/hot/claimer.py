"""The claimer: one per lane. It claims messages while there is capacity. While the queue is empty, it waits on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from millstream.aio.backoff import ServiceBackoff
from millstream.broker import Claim, Consuming
from millstream.errors import BrokerError, BrokerUnavailable, LeaseLost
from millstream.model.address import Address
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker.hot.hold import ASYNC, BATCH, BATCH_BYTES, STOPPING, THREAD, Hold
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.runner import Runner

log = logs.logger("millstream.worker")

FIRST_CLAIM = 8
"""Maximum number of messages of the first claim: messages may be as large as max_payload_bytes, and the connection slow."""

UNSETTLED_MOST = 4 * BATCH
"""No further batch is claimed while at least this many outcomes are unsettled."""

WAIT_SECONDS = 1.25
"""Maximum seconds between two claims of an idle claimer. Bounds the effect of a lost wake-up, and the time until an entry of
another program or a pause is noticed."""

LANES_PER_WAIT = 8
LONGEST_WAIT_SECONDS = 4.0
"""With more than LANES_PER_WAIT lanes, each idle claimer waits longer, up to LONGEST_WAIT_SECONDS, so that a worker of many
queues does not claim more often. The broker ends a wait when a lease must be checked. After five seconds without a claim, the
server assumes that all workers were cut off, and lapses no lease for a while."""

HOLD_BACK_SECONDS = 0.25
"""Seconds for which a claimer takes only messages that can start immediately, after it released some that could not. Other
workers may be idle."""

WARY_SECONDS = 5.0
"""Seconds for which a claimer is wary after a claim that brought only unknown tasks, unless a known task comes earlier."""

WARY_PAUSE = 0.1
"""Seconds that a wary claimer pauses before each claim, so that a worker that knows the tasks comes first. For the same reason
a wary claimer takes no wake-up."""

WARY_CLAIM = 8
"""Maximum number of messages of a wary claimer's first claim. Each claim that brings only unknown tasks doubles the maximum,
because known tasks may be queued behind them."""

NUDGE_SECONDS = 0.005
"""Seconds between two nudges. A nudge is repeated because it may have been lost."""


class Claimer:
    """Claims for one lane until the worker stops. A claim in flight is always awaited, never abandoned."""

    def __init__(
        self,
        broker: Consuming,
        lane: Lane,
        lanes: Sequence[Lane],
        hold: Hold,
        runner: Runner,
        reporter: Reporter,
        *,
        fenced: Callable[[Lane, str], None],
        suspects: Callable[[Lane], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self.lane = lane
        self._lanes = lanes
        self._hold = hold
        self._runner = runner
        self._reporter = reporter
        self._fenced = fenced
        self._suspects = suspects
        self._waiting = False
        self._away = False
        """A reply may be lost: compare with the server before the next claim."""
        self._failing = False
        """The last claim failed."""
        self._size = 0.0
        """Estimated size of a message in bytes; 0 before the first message."""
        self._ahead_ms = 0.0
        """Server time minus loop time in milliseconds, measured at the last claim."""
        self._careful_until = 0.0
        """Loop time until which only messages that can start immediately are claimed, because earlier ones could not start."""
        self._past = 0
        """Estimated number of messages at the queue's front that cannot start here: twice as many as were just released."""
        self._wary_until = 0.0
        """Loop time until which this claimer is wary: its last claim brought only tasks that this worker does not know."""
        self._wary_claim = WARY_CLAIM
        self.at_rest = True
        """No claim is in flight, and none starts until the lane may claim."""
        self.paused = False
        self.empty = asyncio.Event()
        """Set while the queue is empty: the last claim brought less than it asked for. Used by ``--burst``."""
        self.empty.set()
        self._supplied = False
        """The last claim brought at least one message."""

    async def run(self) -> None:
        """Claim until stopped."""
        backoff = ServiceBackoff()
        while not self._stopping:
            consumer = self.lane.consumer
            try:
                await self._once()
            except BrokerUnavailable as error:
                self._away = True
                if self.lane.consumer == consumer:  # otherwise the lease is lost, and its connection was closed
                    self._failing = True
                    self._reporter.miss("read", self.lane.queue, error, self._broker.server(self.lane.queue))
                await backoff.wait()
            except LeaseLost:
                self._fenced(self.lane, consumer)
                await backoff.wait()
            except BaseException:
                self._away = self._failing = True  # claimed messages may not have reached the runner
                raise
            else:
                backoff = ServiceBackoff()

    @property
    def _serving(self) -> int:
        """Number of lanes that claim."""
        return sum(1 for lane in self._lanes if lane.consumer)

    @property
    def queue(self) -> Address:
        """The address of the lane."""
        return self.lane.queue

    @property
    def _stopping(self) -> bool:
        return STOPPING in self._hold.shut

    async def stop(self) -> None:
        """End the current wait, because the worker is stopping or the lane is leaving.

        Messages of a claim in flight still go to the runner, which starts nothing if the worker is stopping.
        """
        self._hold.freed()
        self.lane.stirred.set()
        if self._waiting:
            try:
                await self._broker.nudge(self.lane.queue, self.lane.consumer)
            except BrokerError:
                log.debug("queue %r: the waiting claim could not be interrupted", self.lane.queue)

    async def _once(self) -> None:
        lane, hold = self.lane, self._hold
        if not lane.claims:
            self._note(0, 1)
            self.at_rest = True
            lane.stirred.clear()
            await lane.stirred.wait()
            return
        self.at_rest = False
        if self._wary:
            await asyncio.sleep(WARY_PAUSE)
        capacity = await self._capacity()
        if self._stopping or not lane.claims:
            return
        if self._away or lane.doubtful:
            await self._recover()
            return  # the recovered messages have taken some of the capacity
        consumer, kinds, asked = lane.consumer, lane.kinds, asyncio.get_running_loop().time()
        hold.ask(kinds, capacity)
        reserved = capacity if lane.count.lanes > 1 and lane.limit is not None and lane.batch is None else 0
        lane.active += reserved  # the lanes of the other shards share the limit
        try:
            claim = await self._broker.claim(lane.queue, consumer, capacity, suspect_after=lane.suspect_after)
        finally:
            lane.active -= reserved
            hold.ask(kinds, -capacity)
        if self._failing:
            self._failing = False
            self._reporter.reach("read", lane.queue)
        if not self._is_ours(claim, consumer, asked):
            return
        await self._take(claim)
        if capacity:
            self._note(len(claim.entries), capacity)
        if self._wary and not claim.entries:
            self._wary_claim = WARY_CLAIM
        if len(claim.entries) < capacity:
            await self._wait(claim)

    async def _capacity(self) -> int:
        """Return how many messages the next claim asks for. With 0, the claim only checks leases."""
        lane = self.lane
        if lane.batch is not None:
            return min(await self._capacity_for_batch(lane.batch.size), self._most())
        capacity = min(await self._turn(lane.buffered), self._most())
        if lane.limit is not None:
            capacity = min(capacity, await self._below_limit(lane.limit))
        if lane.count.supplied > 1:  # a single shard has few keys: most of its messages would wait for their turn
            capacity = -(-capacity // lane.count.supplied)
        return min(capacity, self._wary_claim) if self._wary else capacity

    def _note(self, brought: int, asked: int) -> None:
        """Record how many messages a claim brought and how many it asked for."""
        if brought < asked:
            self.empty.set()
        else:
            self.empty.clear()
        if self._supplied is not bool(brought):
            self._supplied = bool(brought)
            self.lane.count.supplied += 1 if brought else -1

    async def _turn(self, buffered: bool) -> int:
        """Wait for capacity, at most until the careful period ends. Return 0 if there is none by then."""
        lane, left = self.lane, self._careful_until - asyncio.get_running_loop().time()
        if left > 0:
            return await self._hold.turn(lane.kinds, False, min(left, WAIT_SECONDS), True, lane.shares, self._past)
        return await self._hold.turn(lane.kinds, buffered, WAIT_SECONDS, False, lane.shares, self._past)

    async def _below_limit(self, limit: int) -> int:
        """Return how many more messages this lane may hold, or 0 if it was at its limit for WAIT_SECONDS. With 0, the claim
        only checks leases."""
        lane = self.lane
        await self._while_full(lambda: lane.active >= limit)
        return max(0, limit - lane.active)

    async def _capacity_for_batch(self, size: int) -> int:
        """Wait for a slot, and until few outcomes are unsettled. Return how many messages the next batch still needs, or 0 as
        in ``_below_limit``."""
        lane, hold = self.lane, self._hold

        def full() -> bool:
            limited = lane.limit is not None and lane.active >= lane.limit
            free = hold.free[lane.kinds[0]] > 0 and not hold.shut and not limited and hold.unsettled < UNSETTLED_MOST
            return not free or len(lane.gathered) >= size

        await self._while_full(full)
        return 0 if full() else min(BATCH, size - len(lane.gathered))

    async def _while_full(self, full: Callable[[], bool]) -> None:
        """Wait for capacity, at most WAIT_SECONDS.

        Even a full claimer must claim about every second, to check leases. Otherwise no worker takes over the jobs of a dead
        worker while all workers are full.
        """
        now = asyncio.get_running_loop().time
        until = now() + WAIT_SECONDS
        while full() and not self._stopping and self.lane.claims and (left := until - now()) > 0:
            await self._hold.until_freed(left)

    @property
    def _careful(self) -> bool:
        return asyncio.get_running_loop().time() < self._careful_until

    def _most(self) -> int:
        """Return the maximum size of a claim, from the estimated message size: FIRST_CLAIM before the first message."""
        if not self._size:
            return FIRST_CLAIM
        return BATCH if self._size * BATCH <= BATCH_BYTES else max(1, int(BATCH_BYTES / self._size))

    async def _wait(self, claim: Claim) -> None:
        """Wait on the server and claim in the same round trip, until a claim brings as many messages as it asked for.

        Called after a claim that brought fewer messages than it asked for, so the queue was empty. (Measured: leaving out a
        second, empty claim before the wait halves the worker's CPU time for a job that arrives alone, and doubles the events
        per second of a single ordering key.)
        """
        lane, hold = self.lane, self._hold
        while (
            not (self._stopping or self._away or lane.doubtful or self._wary)
            and lane.claims
            and (claim.next_due != 0 or claim.paused)
        ):
            if claim.entries and lane.batch is not None:
                return  # before the next batch is claimed, most outcomes of earlier batches must be settled
            capacity = hold.capacity(lane.kinds, False, self._careful, lane.shares, self._past)
            if lane.batch is not None:
                capacity = lane.batch.size - len(lane.gathered) if hold.free[lane.kinds[0]] > 0 and not hold.shut else 0
            elif lane.limit is not None:
                capacity = min(capacity, lane.limit - lane.active)
            if capacity <= 0:
                # All slots are taken and the queue is empty: claims for the buffer would spin, so wait for a slot instead.
                if lane.batch is None and not claim.entries:
                    await self._turn(False)
                return
            timer = None
            wait = min(LONGEST_WAIT_SECONDS, WAIT_SECONDS * max(1.0, self._serving / LANES_PER_WAIT))
            if claim.next_due is not None and claim.next_due < wait and not claim.paused:
                # Timeouts of the server's blocking commands fire up to 0.1 s late, so our own timer ends the wait.
                timer = asyncio.ensure_future(self._nudge_in(claim.next_due))
            # If several shards share one limit, a waiting claim must not reserve a part of it. With a count of 0 it only waits,
            # and the next claim takes the message.
            shared = lane.limit is not None and lane.count.lanes > 1 and lane.batch is None
            count = 0 if shared else max(1, min(capacity // len(self._lanes), self._most()))
            self._waiting = True
            consumer, asked = lane.consumer, asyncio.get_running_loop().time()
            try:
                claim = await self._broker.claim(lane.queue, consumer, count, wait=wait, suspect_after=lane.suspect_after)
            finally:
                self._waiting = False
                if timer is not None:
                    timer.cancel()
            if not self._is_ours(claim, consumer, asked):
                return
            await self._take(claim)
            if count:
                self._note(len(claim.entries), count)
            if len(claim.entries) >= count:
                return

    async def _take(self, claim: Claim) -> None:
        if claim.entries:
            self.lane.unknown = 0
            self._runner.accept(self.lane, claim)
            if self._wary_until or self.lane.unknown:
                self._judge(len(claim.entries))
            size = 1 + sum(len(entry.body or b"") for entry in claim.entries) / len(claim.entries)
            self._size = size if size > self._size else (self._size + size) / 2
        if self.lane.handed_back and not self._stopping:
            refs, self.lane.handed_back = self.lane.handed_back, []
            self._past = min(BATCH, 2 * len(refs))
            self._hold_back()
            await self._release(refs)
        elif claim.entries:
            self._past = 0
        if claim.now_ms:
            self._ahead_ms = claim.now_ms - asyncio.get_running_loop().time() * 1000
        if claim.paused != self.paused:
            self.paused = claim.paused
            log.info("queue %r is %s", self.lane.queue, "paused" if claim.paused else "resumed")
        if claim.paused:
            await self.hand_back(0.0)
        if claim.suspects and not claim.paused and not self._stopping:
            await self._suspects(self.lane)

    @property
    def _wary(self) -> bool:
        return self._wary_until > 0.0 and asyncio.get_running_loop().time() < self._wary_until

    def _judge(self, brought: int) -> None:
        """Make the claimer wary if all tasks of its last claim are unknown to this worker. A known task ends that."""
        unknown, self.lane.unknown = self.lane.unknown, 0
        if unknown < brought:
            self._wary_until, self._wary_claim = 0.0, WARY_CLAIM
            return
        if self._wary:
            self._wary_claim = min(BATCH, 2 * self._wary_claim)
        self._wary_until = asyncio.get_running_loop().time() + WARY_SECONDS

    def _is_ours(self, claim: Claim, consumer: str, asked: float) -> bool:
        """Return whether the messages of a claim may start. If the server has changed, also compare with it before the next
        claim.

        They may not if the lease was lost during the claim, or may have been lost because this process or its event loop was
        suspended for too long. In the second case the claimer asks the server again before any message starts.
        """
        if self.lane.consumer != consumer:
            return False
        if claim.changed:
            self._away = True
        if claim.entries and asyncio.get_running_loop().time() - asked > self._runner.trusted:
            self._away = True
            return False
        return True

    async def hand_back(self, older_than: float) -> None:
        """Release messages that have been buffered for ``older_than`` seconds. They will not start here soon, and other workers
        may be idle."""
        hold, lane = self._hold, self.lane
        before = asyncio.get_running_loop().time() - older_than
        refs: list[bytes] = []
        # A batch may wait for its own ``wait``, plus ``older_than``.
        gathered_for = before - cast(float, lane.batch.wait) if lane.batch is not None and older_than else before
        if lane.gathered and lane.gathered[0].since <= gathered_for:
            refs += [job.ref for job in lane.gathered]
            lane.gathered.clear()
        for kind in (ASYNC, THREAD):
            ready = hold.ready[kind]
            if not ready:
                continue
            stale = [job for job in ready if job.lane is lane and job.since <= before]
            if stale:
                keep = [job for job in ready if not (job.lane is lane and job.since <= before)]
                ready.clear()
                ready.extend(keep)
                refs += [job.ref for job in stale]
                if lane.limit is not None:
                    lane.active -= len(stale)
        if refs and older_than:
            self._hold_back()
        await self._release(refs)

    def _hold_back(self) -> None:
        self._careful_until = asyncio.get_running_loop().time() + HOLD_BACK_SECONDS

    async def _release(self, refs: list[bytes]) -> None:
        if not refs:
            return
        lane = self.lane
        lane.releasing.update(refs)
        try:
            for first in range(0, len(refs), BATCH):
                await self._broker.release(lane.queue, lane.consumer, refs[first : first + BATCH])
        except BrokerError:
            self._away = True  # the messages may be neither held nor released: the next claim recovers them
            raise
        finally:
            lane.releasing.difference_update(refs)
        self._hold.freed()

    async def _recover(self) -> None:
        """After a lost connection or a suspension, run the messages that the server lists for this consumer and we do not hold.

        So no message is stranded, and no message starts that another worker has taken over.
        """
        lane, held = self.lane, holding(self.lane, self._hold)
        self._away = lane.doubtful = False  # reset before the call: messages dropped from now on need another recovery
        consumer, asked = lane.consumer, asyncio.get_running_loop().time()
        try:
            entries = await self._broker.recover(lane.queue, consumer, held)
        except BaseException:
            self._away = True
            raise
        claim = Claim(entries, int(asyncio.get_running_loop().time() * 1000 + self._ahead_ms))
        if entries and self._is_ours(claim, consumer, asked):
            log.debug("queue %r: messages recovered after the reply to their claim was lost: %d", lane.queue, len(entries))
            await self._take(claim)

    async def _nudge_in(self, seconds: float) -> None:
        """End the wait when a message is due.

        A nudge may reach the server before the waiting claim does. So it is repeated until the wait is over: without repeats,
        about one in 500 was lost, and the due message started a second late.
        """
        await asyncio.sleep(seconds)
        queue, backoff = self.lane.queue, ServiceBackoff()
        while True:
            try:
                await self._broker.nudge(queue, self.lane.consumer)
            except BrokerError as error:
                text = "due messages of queue %r may start up to 1 s late, because the worker could not be woken: %s"
                self._reporter.fail("promote", queue, error, text, queue, error)
                await backoff.wait()
            else:
                self._reporter.heal("promote", queue)
                await asyncio.sleep(NUDGE_SECONDS)


def holding(lane: Lane, hold: Hold) -> set[bytes]:
    """Return the refs of all messages that a lane holds."""
    held = {job.ref for job in hold.running if job.lane is lane}
    for kind in (ASYNC, THREAD):
        held.update(job.ref for job in hold.ready[kind] if job.lane is lane)
    held.update(job.ref for job in lane.gathered)
    held.update(outcome.ref for outcome in (*lane.outcomes, *lane.settling))
    held.update(lane.handed_back)
    held.update(lane.releasing)
    return held
