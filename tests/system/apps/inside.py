"""A program with a worker in its own event loop: ``inside.py`` uses ``app.worker()`` until SIGTERM; ``inside.py run`` uses
``app.run()``, prints its summary and exits with its exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from jobs import app


async def main() -> int:
    if "run" in sys.argv:
        summary = await app.run(concurrency=8, threads=2)
        print(summary)
        return int(summary.exit_code)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app.worker(concurrency=8, threads=2):
        await stop.wait()
    return 0


logging.basicConfig(level=logging.INFO)
sys.exit(asyncio.run(main()))
