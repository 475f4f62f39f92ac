"""What runs beside the hot path: services that raise are reported and started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from millstream.aio.backoff import ServiceBackoff
from millstream.errors import BrokerError
from millstream.model.address import Address
from millstream.reporting.problem import During
from millstream.reporting.reporter import Reporter

SOUND_SECONDS = 60.0
"""A service that ran for so long works: its next failure is the first of a row."""


async def keep_running(
    name: str, run: Callable[[], Awaitable[None]], reporter: Reporter, during: During, address: Address | None = None
) -> None:
    """Run a service; if it raises, say so, once in a row, and start it again with backoff. Ends when the service returns."""
    backoff = ServiceBackoff()
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await run()
            return
        except Exception as error:
            if asyncio.get_running_loop().time() - started > SOUND_SECONDS:
                backoff = ServiceBackoff()
                reporter.heal(during, address)
            # What the server refuses is no bug of ours, but it is no outage either.
            crash, text = not isinstance(error, BrokerError), "the %s failed and is started again: %s"
            reporter.fail(during, address, error, text, name, error, level=logging.ERROR, crash=crash)
        await backoff.wait()
