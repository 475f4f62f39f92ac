"""A worker inside the user's own process: run until a signal or a word."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from millstream import logs
from millstream.worker.summary import Summary
from millstream.worker.worker import Worker

log = logs.logger("millstream.worker")


async def run_until_stopped(
    worker: Worker, stops: set[Callable[[], None]], grace: float, until: Awaitable[Any] | None = None
) -> Summary:
    """Serve until SIGTERM, SIGINT, a call of what is put into ``stops``, or until ``until`` is done.

    A second signal ends it now, and being cancelled stops it too. Raises the worker's error if it could not go on.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            worker.hurry()
        else:
            log.info("stopping; the same signal again to stop now")
            stop.set()

    def stop_from_anywhere() -> None:
        loop.call_soon_threadsafe(stop.set)

    stops.add(stop_from_anywhere)
    caught: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Outside the main thread, or where the loop cannot: the caller's own signals stay as they are.
        with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, signalled)
            caught.append(number)
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(worker.failed.wait())]
    if until is not None:
        waits.append(asyncio.ensure_future(until))
    try:
        await worker.start()
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        try:
            summary = await worker.stop(grace)
        finally:
            stops.discard(stop_from_anywhere)
            for number in caught:
                loop.remove_signal_handler(number)
            for wait in waits:
                if not wait.done():
                    wait.cancel()
    if worker.error is not None:
        raise worker.error
    if until is not None and waits[-1].done() and not waits[-1].cancelled():
        waits[-1].result()
    return summary
