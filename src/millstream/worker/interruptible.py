"""Cancelling work when the worker is asked to stop: connecting and starting may wait for a server or a lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any, TypeVar

T = TypeVar("T")


class StoppedEarly(Exception):
    """The worker was asked to stop before it served."""


async def unless_stopped(work: Awaitable[T], stops: Collection[asyncio.Future[Any]]) -> T:
    """Await ``work`` in the current task, and cancel it when one of ``stops`` is done. Raises StoppedEarly if it was cancelled.

    The work stays in the current task, because a lifespan must be left by the task that entered it. Work that completes despite
    the cancellation returns its result.
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
