"""Services that run beside the hot path. A service that raises is reported and restarted."""

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
"""Seconds after which a running service counts as healthy: its next failure is not a consecutive one."""


async def keep_running(
    name: str, run: Callable[[], Awaitable[None]], reporter: Reporter, during: During, address: Address | None = None
) -> None:
    """Run a service until it returns. If it raises, log the first of consecutive failures and restart it with backoff."""
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
            # A refusal by the server is neither a bug nor an outage.
            crash, text = not isinstance(error, BrokerError), "the %s failed and is restarted: %s"
            reporter.fail(during, address, error, text, name, error, level=logging.ERROR, crash=crash)
        await backoff.wait()
