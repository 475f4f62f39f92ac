"""Work that ends early when the worker is told to stop: connecting and starting, which may wait for a server or a lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any, TypeVar

T = TypeVar("T")


class StoppedEarly(Exception):
    """The worker was told to stop before it served."""


async def unless_stopped(work: Awaitable[T], stops: Collection[asyncio.Future[Any]]) -> T:
    """Await ``work`` in this task, and cancel it when one of ``stops`` is done. StoppedEarly if it was cancelled.

    The task does not change, because a lifespan must be left by the task that entered it. Work that completes in spite of the
    cancellation returns its result.
    """
    limit = asyncio.timeout(None)

    async def watch() -> None:
        await asyncio.wait(stops, return_when=asyncio.FIRST_COMPLETED)
        limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with limit:
            watching = asyncio.create_task(watch())
            try:
                return await work
            finally:
                watching.cancel()
    except TimeoutError as error:
        if limit.expired():
            raise StoppedEarly from error
        raise
