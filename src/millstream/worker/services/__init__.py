"""What runs beside the hot path: services that raise are reported and started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from millstream.backoff import Backoff

log = logging.getLogger("millstream.worker")


async def keep_running(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a service; if it raises, say so and start it again with backoff. Ends when the service returns."""
    backoff = Backoff()
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await run()
            return
        except Exception:
            log.exception("the %s failed and is started again", name)
        if asyncio.get_running_loop().time() - started > 60:
            backoff = Backoff()
        await backoff.wait()
