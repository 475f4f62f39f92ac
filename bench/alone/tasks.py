"""The app of these measurements: handlers that mark their job in the tally and record when or where they ran."""

from __future__ import annotations

import asyncio
import os
import time

from contest import told
from millstream import Millstream

NAMESPACE = "limits"
SLOW_SECONDS = 0.2


async def noop(number: int) -> None:
    told.marks[number] += 1


async def echo(number: int) -> int:
    told.marks[number] += 1
    return number


async def stamped(number: int) -> None:
    """Records when it started."""
    told.starts[number] = time.time()
    told.marks[number] += 1


async def slow(number: int) -> None:
    """Records the process it runs in."""
    told.starts[number] = os.getpid()
    await asyncio.sleep(SLOW_SECONDS)
    told.marks[number] += 1


def make_app(url: str) -> Millstream:
    app = Millstream(url, namespace=NAMESPACE, result_ttl=0)
    for handler in (noop, stamped, slow):
        app.task(handler)
    app.task(result_ttl=600)(echo)
    for queue in ("second", "third"):
        app.queue(queue)
    return app


app = make_app(told.URL)
