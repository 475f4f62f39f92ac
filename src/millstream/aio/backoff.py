"""Waiting between attempts to reach a server that is away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from millstream.errors import BrokerUnavailable

T = TypeVar("T")

FIRST_SECONDS = 0.02
LONGEST_SECONDS = 0.5
"""For callers, who are waiting and will not do so for long."""

START_SECONDS = 30.0
"""For a worker that starts: how long it tries to reach a server that is away."""

PATIENT_SECONDS = 1.0
"""For services, of which a worker has several per queue: a worker of three queues uses 1.5 % of a core during an outage with
this, 2.0 % with half of it."""


def pauses(longest: float = LONGEST_SECONDS) -> Iterator[float]:
    """Seconds to wait before each new try, for ever: doubling, with jitter, so that a fleet does not come back in step."""
    limit = FIRST_SECONDS
    while True:
        yield limit * (0.5 + 0.5 * random.random())
        limit = min(limit * 2, longest)


async def patiently(
    verb: Callable[[], Awaitable[T]], deadline: float, missed: Callable[[BrokerUnavailable], object] = lambda _: None
) -> T:
    """Do one thing; while the server is away try again until the deadline, a time of the running loop. Every such error is
    passed to ``missed``, which may raise it to end the attempts."""
    loop = asyncio.get_running_loop()
    for pause in pauses():
        try:
            return await verb()
        except BrokerUnavailable as error:
            missed(error)
            if loop.time() + pause >= deadline:
                raise
            await asyncio.sleep(pause)
    raise AssertionError("unreachable: pauses never end")


class ServiceBackoff:
    """Counts the tries of a service, and waits between them."""

    def __init__(self) -> None:
        self.tries = 0
        self._pauses = pauses(PATIENT_SECONDS)

    async def wait(self) -> None:
        """Wait a little longer than last time."""
        self.tries += 1
        await asyncio.sleep(next(self._pauses))
