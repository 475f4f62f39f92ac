"""Backoff between attempts to reach an unreachable server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from millstream.errors import BrokerUnavailable

T = TypeVar("T")

FIRST_SECONDS = 0.02
LONGEST_SECONDS = 0.5
"""Maximum pause for callers, who wait only for a few seconds."""

START_SECONDS = 30.0
"""How long a starting worker tries to reach the server."""

PATIENT_SECONDS = 1.0
"""Maximum pause for services. A worker has several services per queue: with three queues it uses 1.5 % of a core during an
outage, and 2.0 % with half of this pause."""


def pauses(longest: float = LONGEST_SECONDS) -> Iterator[float]:
    """Yield the seconds to wait before each retry, without end. They double up to ``longest`` and have jitter, so that many
    clients do not reconnect at the same moment."""
    limit = FIRST_SECONDS
    while True:
        yield limit * (0.5 + 0.5 * random.random())
        limit = min(limit * 2, longest)


async def patiently(
    verb: Callable[[], Awaitable[T]], deadline: float, missed: Callable[[BrokerUnavailable], object] = lambda _: None
) -> T:
    """Call ``verb``. While the server is unreachable, retry until the deadline, a time of the running loop.

    Every such error is passed to ``missed``, which may raise it to end the retries.
    """
    loop = asyncio.get_running_loop()
    for pause in pauses():
        try:
            return await verb()
        except BrokerUnavailable as error:
            missed(error)
            if loop.time() + pause >= deadline:
                raise
            await asyncio.sleep(pause)
    raise AssertionError("pauses() must not end")


class ServiceBackoff:
    """Counts the attempts of a service and waits between them."""

    def __init__(self) -> None:
        self.tries = 0
        self._pauses = pauses(PATIENT_SECONDS)

    async def wait(self) -> None:
        """Wait a little longer than last time."""
        self.tries += 1
        await asyncio.sleep(next(self._pauses))
