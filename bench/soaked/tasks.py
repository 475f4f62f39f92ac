"""The app of a soak: each kind of job that Millstream has. Handlers count their runs per job number, in a file per process."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from millstream import Millstream, Reject, Retry, RetryPolicy, current_job
from soaked import KEYS, RESULT_TTL

app = Millstream(os.environ.get("SOAK_URL"), result_ttl=RESULT_TTL, retry=RetryPolicy(3, delay=0.1))
ticks = app.topic("ticks", int)

_counts: mmap.mmap | None = None


def ran(number: int) -> None:
    """Count one more run of a job."""
    global _counts
    if _counts is None:
        path = Path(os.environ["SOAK_COUNTS"], str(os.getpid()))
        with path.open("w+b") as file:
            file.truncate(int(os.environ["SOAK_MOST"]))
            _counts = mmap.mmap(file.fileno(), 0)
    _counts[number] = min(255, _counts[number] + 1)


@app.task(result_ttl=0)
async def plain(number: int) -> None:
    ran(number)


@app.task(result_ttl=0)
def threaded(number: int) -> None:
    ran(number)


@app.task
async def kept(number: int) -> int:
    ran(number)
    return number


@app.task
async def retried(number: int) -> None:
    if current_job().attempt == 1:
        raise Retry(delay=0.1)
    ran(number)


def key_of(number: int) -> int:
    return number % KEYS


@app.task(queue="ordered", order_by=key_of)
async def ordered(number: int) -> None:
    ran(number)


@app.task
async def doomed(number: int) -> None:
    ran(number)
    raise Reject("a soak needs dead letters")


@ticks.subscribe("first")
async def first(number: int) -> None:
    ran(number)


@ticks.subscribe("second")
async def second(number: int) -> None:
    pass
