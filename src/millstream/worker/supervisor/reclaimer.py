"""The reclaimer: gives up the leases of a dead child, so that other workers run its jobs within a second, not after a lease."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection

import msgspec

from millstream.broker import Consuming
from millstream.errors import BrokerError, LeaseLost
from millstream.model.address import Address
from millstream.model.message import decode_message
from millstream.model.outcome import Outcome
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker import verdict
from millstream.worker.hot.hold import BATCH
from millstream.worker.services.keeper import Keeper
from millstream.worker.supervisor.children.child import Child

log = logs.logger("millstream.worker")

GIVE_UP_SECONDS = 5.0
"""Maximum seconds for which a stopping supervisor tries to give up the leases of a child. Afterwards they lapse."""


class Reclaimer:
    """Gives up the leases of children that have ended."""

    def __init__(self, broker: Consuming, keeper: Keeper, reporter: Reporter) -> None:
        self._broker = broker
        self._keeper = keeper
        self._reporter = reporter
        self._giving_up: set[asyncio.Task[int | None]] = set()
        self._stopping = False

    async def give_up(self, child: Child) -> int | None:
        """Give up the child's leases. Return how many of its jobs can be claimed again, or None if that is unknown."""
        if not child.leases:
            return 0
        for queue, consumer in child.leases:
            self._keeper.drop(queue, consumer)
        giving_up = {asyncio.create_task(self._give_up(child, queue, consumer)) for queue, consumer in child.leases}
        self._giving_up |= giving_up
        if self._stopping:
            _let_lapse_later(giving_up)
        await asyncio.wait(giving_up)
        self._giving_up -= giving_up
        held = [None if task.cancelled() else task.result() for task in giving_up]
        known = [count for count in held if count is not None]
        return sum(known) if len(known) == len(held) or any(known) else None

    def stop(self) -> None:
        """Limit current and later attempts to give up leases to GIVE_UP_SECONDS each, because the worker is stopping."""
        self._stopping = True
        _let_lapse_later(self._giving_up)

    def let_lapse(self) -> None:
        """Stop all attempts now. Leases that could not be given up lapse."""
        _let_lapse(self._giving_up)

    async def _give_up(self, child: Child, queue: Address, consumer: str) -> int | None:
        """Give up one lease, with a few attempts. If all fail, the lease lapses, which takes longer."""
        assert child.hello is not None
        ended = 0
        for pause in (0.1, 0.5, 1.0, 2.0):
            try:
                if child.told_to_stop and child.hello.at_most_once:
                    ended += await _end_started(self._broker, queue, consumer, child.hello.at_most_once)
                held = await self._broker.leave(queue, consumer, blameless=child.told_to_stop)
            except LeaseLost:
                held = 0
            except (BrokerError, OSError) as error:  # OSError: this machine has no free file descriptors
                text = "the lease of a dead worker process on queue %r could not be given up; trying again: %s"
                self._reporter.fail("reclaim", queue, error, text, queue, error)
                await asyncio.sleep(pause)
                continue
            self._reporter.heal("reclaim", queue)
            return ended + held
        return None


def _let_lapse_later(giving_up: Collection[asyncio.Task[int | None]]) -> None:
    asyncio.get_running_loop().call_later(GIVE_UP_SECONDS, _let_lapse, list(giving_up))


def _let_lapse(giving_up: Collection[asyncio.Task[int | None]]) -> None:
    """Stop the attempts, because the server does not answer and the supervisor must end."""
    for task in giving_up:
        if not task.done():
            log.warning("the lease of a dead worker process could not be given up; its jobs run again after the lease lapses")
            task.cancel()


async def _end_started(broker: Consuming, queue: Address, consumer: str, at_most_once: Collection[str]) -> int:
    """Settle the at-most-once jobs of a child that was asked to stop as dead, and return their number.

    All other jobs of such a child are released without a crash. At-most-once jobs are never buffered, so they had started.
    """
    outcomes: list[Outcome] = []
    for entry in await broker.recover(queue, consumer, ()):
        with contextlib.suppress(msgspec.MsgspecError):  # the next claim handles a malformed message
            message = decode_message(entry.body or b"")
            if message.task in at_most_once or queue.base in at_most_once:
                worker = consumer.rpartition(".")[0]
                outcomes.append(verdict.interrupted(entry.ref, message, entry.crashes, 0.0, at=time.time(), worker=worker))
    for start in range(0, len(outcomes), BATCH):
        await broker.settle(queue, consumer, outcomes[start : start + BATCH])
    return len(outcomes)
