"""Waiting between attempts to reach a server that is away."""

from __future__ import annotations

import asyncio
import random

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 1.0


class Backoff:
    """Doubling waits with jitter, so that a fleet does not come back in step."""

    def __init__(self) -> None:
        self.tries = 0

    async def wait(self) -> None:
        """Wait a little longer than last time."""
        limit = min(LONGEST_SECONDS, FIRST_SECONDS * 2**self.tries)
        self.tries = min(self.tries + 1, 30)
        await asyncio.sleep(limit * (0.5 + 0.5 * random.random()))
