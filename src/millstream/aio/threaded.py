"""Event loops in threads of our own: like ``asyncio.run``, but they can end while the process does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def run_in_thread(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on a loop of this thread, then cancel what is left on the loop, close its generators and the loop itself.

    ``asyncio.run`` also waits for the loop's default executor, and starts a thread to do so. From Python 3.12 on a process
    that is ending refuses to start threads, so the end of the loop would fail there. ``loop.close()`` lets the executor's idle
    threads end without waiting for them.
    """
    try:
        loop = asyncio.new_event_loop()
    except BaseException:
        main.close()
        raise
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
