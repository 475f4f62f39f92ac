"""The app that the workers of the suite run and its producers use. Each worker reads its settings from the environment."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from chaos.ledger import Flake, RunPen
from millstream import Millstream, RetryPolicy, current_job
from millstream.model.address import Address

SETTINGS, LEDGER = "CHAOS_SETTINGS", "CHAOS_LEDGER"
"""Environment variables: the app's settings as JSON, and the folder of the ledger."""

app = Millstream(**json.loads(os.environ.get(SETTINGS, "{}")))


@cache
def _pen() -> RunPen:
    return RunPen(Path(os.environ[LEDGER]))


def _entry(key: str) -> AbstractContextManager[None]:
    job = current_job()
    return _pen().run(key, job.id, job.attempt, job.crashes)


@app.task
async def nap(key: str, seconds: float) -> str:
    with _entry(key):
        await asyncio.sleep(seconds)
        return key


@app.task(result_ttl=0)
async def forgotten(key: str, seconds: float) -> None:
    """A task whose results the server does not keep."""
    with _entry(key):
        await asyncio.sleep(seconds)


@app.task(retry=RetryPolicy(3, delay=0.05, backoff="fixed"))
async def flaky(key: str, seconds: float) -> str:
    """Fails on the first attempt."""
    with _entry(key):
        await asyncio.sleep(seconds)
        if current_job().attempt == 1:
            raise Flake(key)
        return key


@app.task(queue="threads")
def thread(key: str, seconds: float) -> str:
    with _entry(key):
        time.sleep(seconds)
        return key


@app.task(queue="once", max_crashes=0)
async def once(key: str, seconds: float) -> str:
    """An at-most-once task."""
    with _entry(key):
        await asyncio.sleep(seconds)
        return key


@app.task
async def heavy(key: str, seconds: float, ballast: str) -> None:
    """A task whose jobs use much memory on the server."""
    with _entry(key):
        await asyncio.sleep(seconds)


@app.task(max_payload_bytes=100)
async def narrow(key: str, seconds: float, ballast: str) -> None:
    """A task with a small payload limit."""
    with _entry(key):
        await asyncio.sleep(seconds)


QUEUES = tuple(map(Address, ("default", "threads", "once")))
