"""Event loops in our own threads: like ``asyncio.run``, but the loop can also end while the process is exiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def run_in_thread(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on a new loop of this thread, then cancel the remaining tasks and close the generators and the loop.

    ``asyncio.run`` also starts a thread that waits for the loop's default executor. From Python 3.12 on, an exiting process
    cannot start threads, so closing the loop would fail. ``loop.close()`` does not wait for the executor's idle threads.
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
