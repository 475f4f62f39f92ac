"""A user's own program with a worker in its event loop, until SIGTERM. Announces itself on stdout."""

from __future__ import annotations

import asyncio
import logging
import signal

from jobs import app


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app.worker(concurrency=8, threads=2):
        await stop.wait()


logging.basicConfig(level=logging.INFO)
asyncio.run(main())
