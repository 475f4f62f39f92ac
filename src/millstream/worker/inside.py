"""A worker inside the user's own process, which runs until a signal or a call stops it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from millstream.reporting import logs
from millstream.worker.interruptible import StoppedEarly, unless_stopped
from millstream.worker.summary import Summary
from millstream.worker.worker import Worker

log = logs.logger("millstream.worker")


async def run_until_stopped(
    make: Callable[[], Awaitable[Worker]], stops: set[Callable[[], None]], grace: float, until: Awaitable[Any] | None = None
) -> Summary:
    """Make a worker and serve until SIGTERM, SIGINT, a call of the function added to ``stops``, or the end of ``until``.

    Each of these also interrupts connecting and starting. A second signal ends the grace period. Cancellation stops the worker,
    too. Raises the worker's error if the worker failed.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    worker: Worker | None = None

    def signalled() -> None:
        if not stop.is_set():
            log.info("stopping: waiting for running jobs to end; send the signal again to interrupt them now")
            stop.set()
        elif worker is not None:
            worker.hurry()

    def stop_from_anywhere() -> None:
        loop.call_soon_threadsafe(stop.set)

    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait())]
    if until is not None:
        waits.append(until := asyncio.ensure_future(until))
    summary = Summary()
    with _stopped_by(signalled, stops, stop_from_anywhere):
        try:
            with contextlib.suppress(StoppedEarly):
                worker = await unless_stopped(make(), waits)
                await unless_stopped(worker.start(), waits)
                waits.append(asyncio.ensure_future(worker.failed.wait()))
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                if worker is not None:
                    summary = await worker.stop(grace)
            finally:
                for wait in waits:
                    wait.cancel()
    if worker is not None and worker.error is not None:
        raise worker.error
    if until is not None and until.done() and not until.cancelled():
        until.result()
    return summary


@contextlib.contextmanager
def _stopped_by(
    signalled: Callable[[], None], stops: set[Callable[[], None]], stop_from_anywhere: Callable[[], None]
) -> Generator[None]:
    """Inside the block, SIGTERM and SIGINT call ``signalled``, and ``stops`` contains ``stop_from_anywhere``."""
    loop = asyncio.get_running_loop()
    stops.add(stop_from_anywhere)
    caught: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Outside the main thread, or if the loop does not support signals, the caller's own handlers stay in place.
        with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, signalled)
            caught.append(number)
    try:
        yield
    finally:
        stops.discard(stop_from_anywhere)
        for number in caught:
            loop.remove_signal_handler(number)
