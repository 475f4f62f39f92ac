"""The reloader: detects and counts changes of source files below the working directory, for ``--reload``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from millstream.reporting import logs

log = logs.logger("millstream.worker")

RELOAD_SECONDS = 0.5
"""Seconds between two checks of the source files, if watchfiles is not installed."""


class Reloads:
    """Counts the changes of source files since the worker started."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def add(self) -> None:
        """Count a change and wake those that wait for it."""
        self.count += 1
        self._changed.set()
        self._changed.clear()

    def stop(self) -> None:
        """End all waits, because the worker is stopping."""
        self._changed.set()

    async def next(self) -> None:
        """Wait for the next change, or for the worker to stop."""
        await self._changed.wait()


async def watch_sources(changed: Callable[[], None]) -> None:
    """Call ``changed`` for every change: immediately if watchfiles is installed, otherwise within half a second."""
    try:
        from watchfiles import PythonFilter, awatch  # pyright: ignore[reportUnknownVariableType]
    except ImportError:
        await _poll_sources(changed)
        return
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs only the number of changes; _tell names the files
    async for changes in awatch(".", watch_filter=PythonFilter()):
        _tell(sorted({os.path.relpath(path) for _, path in changes}))  # noqa: ASYNC240, which touches no disk
        changed()


def _tell(names: list[str]) -> None:
    log.info("reloading: %s changed", ", ".join(names[:3]))


async def _poll_sources(changed: Callable[[], None]) -> None:
    seen = _snapshot()
    while True:
        await asyncio.sleep(RELOAD_SECONDS)
        now = _snapshot()
        if now != seen:
            names = sorted(str(path) for path, stamp in now.items() if seen.get(path) != stamp) or ["a deleted file"]
            _tell(names)
            seen = now
            changed()


def _snapshot() -> dict[Path, float]:
    """Return the modification time of each source file below the working directory."""
    stamps: dict[Path, float] = {}
    for folder, folders, files in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("__pycache__", "node_modules")]
        for path in _sources(folder, files):
            with contextlib.suppress(OSError):
                stamps[path] = path.stat().st_mtime
    return stamps


def _sources(folder: str, files: Iterable[str]) -> Iterable[Path]:
    return (Path(folder, name) for name in files if name.endswith(".py"))
