"""The lives of a worker's processes: the worker ends when the last one has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.reporting import logs

log = logs.logger("millstream.worker")


class Lives:
    """A set of coroutines, each of which keeps one process running. ``failed`` is called when one of them raises."""

    def __init__(self, failed: Callable[[], object]) -> None:
        self.over = asyncio.Event()
        """Set when the last coroutine has ended."""
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, life: Coroutine[Any, Any, None], ended: Callable[[], object]) -> None:
        """Run a coroutine, and call ``ended`` when it has ended."""
        task = asyncio.create_task(life)
        self._tasks.add(task)

        def lived(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            ended()
            if not task.cancelled() and task.exception() is not None:
                log.critical("a worker process could not be supervised; the worker stops", exc_info=task.exception())
                self._failed()
            self.end_if_none()

        task.add_done_callback(lived)

    def end_if_none(self) -> None:
        """Set ``over`` if no coroutine is left."""
        if not self._tasks:
            self.over.set()
