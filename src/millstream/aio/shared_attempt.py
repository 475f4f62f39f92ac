"""One attempt shared by all concurrent callers, for a step that may be slow or fail, such as connecting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Generic, TypeVar

from millstream.errors import BrokerUnavailable

T = TypeVar("T")


class SharedAttempt(Generic[T]):
    """Runs at most one attempt at a time. All callers during an attempt get its result or its error.

    Cancelling a caller does not cancel the attempt. ``cancel`` fails all callers with BrokerUnavailable.
    """

    def __init__(self, attempt: Callable[[], Coroutine[Any, Any, T]], cancelled: Callable[[], str]) -> None:
        self._attempt = attempt
        self._cancelled = cancelled
        """Returns the text of the error that callers get if the attempt is cancelled."""
        self._task: asyncio.Task[T] | None = None

    @property
    def in_progress(self) -> bool:
        """Whether an attempt has begun and not ended."""
        return self._task is not None and not self._task.done()

    async def run(self) -> T:
        """Join the attempt in progress, or begin one."""
        task = self._task
        if task is None or task.done():
            task = self._task = asyncio.get_running_loop().create_task(self._attempt(), context=Context())
            task.add_done_callback(_mark_retrieved)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and (caller is None or not caller.cancelling()):
                raise BrokerUnavailable(self._cancelled()) from None
            raise

    async def cancel(self) -> None:
        """End the attempt in progress, if there is one, and wait until it has ended."""
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asyncio.wait((task,))


def _mark_retrieved(task: asyncio.Task[Any]) -> None:
    """Mark the error as retrieved, so that an error without a waiter causes no warning."""
    if not task.cancelled():
        task.exception()
