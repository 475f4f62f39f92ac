"""A topic with two groups, one of which fails each event once."""

from __future__ import annotations

import asyncio
import json
import os

from millstream import Millstream, RetryPolicy, current_job

try:
    from ledger import entry  # in a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # in the tests, which only publish

app = Millstream(retry=RetryPolicy(5, delay=0.05, jitter=False), **json.loads(os.environ.get("JOBS_SETTINGS", "{}")))
numbers = app.topic("numbers", int)


@numbers.subscribe("picky")
async def picky(number: int) -> None:
    if current_job().attempt == 1:
        raise ValueError("the first attempt fails")
    with entry(f"picky-{number}"):
        await asyncio.sleep(0)


@numbers.subscribe("easy")
async def easy(number: int) -> None:
    with entry(f"easy-{number}"):
        await asyncio.sleep(0)
