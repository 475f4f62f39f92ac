"""A user's own program with a worker in its event loop: ``inside.py`` by ``app.worker()`` until SIGTERM, ``inside.py run`` by
``app.run()``, whose summary it prints and whose exit code it takes."""

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
