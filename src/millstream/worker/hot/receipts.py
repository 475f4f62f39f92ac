"""Deliveries that are acknowledged before their handlers are called: at most once, whatever happens to them then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.model.outcome import DONE, SETTLED, Outcome
from millstream.worker.hot.in_flight import InFlight
from millstream.worker.hot.settler import Settler

if TYPE_CHECKING:
    from millstream.worker.hot.lane import Lane


class Receipts:
    """Settles as done what begins, so that a handler is called once the server has it, and not before.

    Not when it is claimed: what is buffered may be handed back, and must not have been acknowledged for nobody.
    """

    def __init__(self, settler: Settler, loop: asyncio.AbstractEventLoop) -> None:
        self._settler = settler
        self._loop = loop

    async def acknowledge(self, jobs: Sequence[InFlight]) -> None:
        """Wait until the server has taken it. Raises if it has not, or not of all: those have not begun."""
        lane: Lane = jobs[0].lane
        acks = [Outcome(DONE, job.ref, job.message.id, None, 0.0, job.message.given_id) for job in jobs]
        taken = [self._loop.create_future() for _ in acks]
        for ack, future in zip(acks, taken, strict=True):
            lane.watched[ack.ref] = future
            self._settler.add(lane, ack)
        try:
            for job, future in zip(jobs, taken, strict=True):
                await future
                job.said = SETTLED
        except BaseException:
            self._settler.withdraw(lane, acks)
            raise
