"""The reloader: sees when a source file below the working directory changes, for ``--reload``."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from millstream.reporting import logs

log = logs.logger("millstream.worker")

RELOAD_SECONDS = 0.5
"""How often source files are looked at."""


async def watch_sources(changed: Callable[[], None]) -> None:
    """Tell of every change, for ever."""
    seen = _snapshot()
    while True:
        await asyncio.sleep(RELOAD_SECONDS)
        now = _snapshot()
        if now != seen:
            names = sorted(str(path) for path, stamp in now.items() if seen.get(path) != stamp) or ["a deleted file"]
            log.info("reloading: %s changed", ", ".join(names[:3]))
            seen = now
            changed()


def _snapshot() -> dict[Path, float]:
    """When each source file below the working directory last changed."""
    stamps: dict[Path, float] = {}
    for folder, folders, files in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("__pycache__", "node_modules")]
        for path in _sources(folder, files):
            with contextlib.suppress(OSError):
                stamps[path] = path.stat().st_mtime
    return stamps


def _sources(folder: str, files: Iterable[str]) -> Iterable[Path]:
    return (Path(folder, name) for name in files if name.endswith(".py"))
