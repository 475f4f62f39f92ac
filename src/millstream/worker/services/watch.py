"""The watch: a thread that detects a blocked event loop, and logs the job and the stack."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from millstream.reporting import logs

log = logs.logger("millstream.worker")

BLOCKED_SECONDS = 1.0
"""Seconds without a beat after which the event loop is reported as blocked."""


class Watch:
    """The event loop calls ``beat``, and the thread checks for it. Each blockage is reported once."""

    def __init__(self, describe: Callable[[asyncio.Task[Any] | None], str]) -> None:
        self._describe = describe
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._beat = time.monotonic()
        self._reported = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, name="millstream-watch", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """Signal that the event loop is responsive."""
        self._beat = time.monotonic()
        self._reported = False

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _main(self) -> None:
        while not self._stopped.wait(BLOCKED_SECONDS / 4):
            blocked = time.monotonic() - self._beat
            if blocked > BLOCKED_SECONDS and not self._reported:
                self._reported = True
                self._report(blocked)

    def _report(self, blocked: float) -> None:
        frame = sys._current_frames().get(self._ident)  # pyright: ignore[reportPrivateUsage]  # documented in spite of its name
        stack = "".join(traceback.format_stack(frame)[-8:]) if frame is not None else "(no stack)\n"
        task: asyncio.Task[Any] | None = asyncio.current_task(self._loop)
        log.warning(
            "the event loop has been blocked for %.1f s by %s: all other jobs of this process are waiting. "
            "Use a plain def task (it runs in a thread), or await instead of blocking. Stack:\n%s",
            blocked,
            self._describe(task),
            stack,
        )
