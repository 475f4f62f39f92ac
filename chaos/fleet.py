"""The app of the mixed-fleet trial, in two releases: the new release has tasks that the old release does not know."""

from __future__ import annotations

import asyncio
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from chaos.app import LEDGER, SETTINGS
from chaos.ledger import Flake, RunPen
from millstream import Millstream, RetryPolicy, Snooze, current_job

VERSION = "CHAOS_VERSION"
"""Environment variable: the release that a worker runs."""

Version = Literal["old", "new", "next"]
"""No worker runs ``next``. Only ``next`` knows the last task."""

QUEUE = "default"

RETRY = RetryPolicy(4, delay=1.0, backoff="fixed", jitter=False)


@cache
def _pen(folder: str) -> RunPen:
    return RunPen(Path(folder))


def _entry(folder: str, key: str) -> Any:
    job = current_job()
    return _pen(folder).run(key, job.id, job.attempt, job.crashes)


def make_app(version: Version = "next", **settings: Any) -> Millstream:
    """Return the app of this release."""
    app, folder = Millstream(**settings), os.environ.get(LEDGER, "")

    @app.task
    async def shared(key: str) -> None:
        with _entry(folder, key):
            await asyncio.sleep(0.01)

    if version == "old":
        return app

    @app.task
    async def fresh(key: str) -> None:
        with _entry(folder, key):
            await asyncio.sleep(0.01)

    @app.task(retry=RETRY)
    async def failing(key: str) -> None:
        """Fails until its last attempt."""
        with _entry(folder, key):
            if current_job().attempt <= RETRY.max_retries:
                raise Flake(key)

    @app.task
    async def snoozing(key: str, times: int) -> None:
        """Requests ``times`` later runs. The count is kept in a file, because a snooze does not change the job."""
        with _entry(folder, key):
            mark = Path(folder) / f"snoozes-{key}"
            if (mark.stat().st_size if mark.exists() else 0) < times:
                with mark.open("ab") as file:
                    file.write(b".")
                raise Snooze(1.0)

    if version == "next":

        @app.task
        async def unheard_of(key: str) -> None:
            with _entry(folder, key):
                pass

    return app


def _version() -> Version:
    return next(each for each in get_args(Version) if each == os.environ.get(VERSION, "next"))


app = make_app(_version(), **json.loads(os.environ.get(SETTINGS, "{}")))
