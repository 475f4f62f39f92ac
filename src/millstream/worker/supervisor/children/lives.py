"""What a worker lives for: it ends when the last of its processes has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.reporting import logs

log = logs.logger("millstream.worker")


class Lives:
    """Coroutines that each keep one process running. ``failed`` is called when one of them raises."""

    def __init__(self, failed: Callable[[], object]) -> None:
        self.over = asyncio.Event()
        """Set when the last one has ended."""
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, life: Coroutine[Any, Any, None], ended: Callable[[], object]) -> None:
        """Run one; ``ended`` is called when it has ended."""
        task = asyncio.create_task(life)
        self._tasks.add(task)

        def lived(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            ended()
            if not task.cancelled() and task.exception() is not None:
                log.critical("a child could not be kept", exc_info=task.exception())
                self._failed()
            self.end_if_none()

        task.add_done_callback(lived)

    def end_if_none(self) -> None:
        """Set ``over`` if none is left."""
        if not self._tasks:
            self.over.set()
