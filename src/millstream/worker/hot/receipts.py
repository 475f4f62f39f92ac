"""Deliveries that are acknowledged before their handlers run (``ack="on_receive"``): each event is handled at most once."""

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
    """Settles messages as done when they start. A handler is called only after the server has stored the outcome.

    Messages are not acknowledged at the claim: a buffered message may be released, and must still be on the server then.
    """

    def __init__(self, settler: Settler, loop: asyncio.AbstractEventLoop) -> None:
        self._settler = settler
        self._loop = loop

    async def acknowledge(self, jobs: Sequence[InFlight]) -> None:
        """Settle these jobs as done and wait until the server has stored the outcomes.

        Raises if the server did not store all of them. None of the handlers is called in that case.
        """
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
