"""The app whose jobs are measured. Each handler marks its job in the tally, which takes about 60 ns.

Worker processes import this module, and their memory is measured, so it imports very little.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time

from millstream.app import Millstream
from millstream.bench.tally import MARKS, STARTS, mapped, say_up
from millstream.events.batch import Batch

URL, NAMESPACE, TALLY = "MILLSTREAM_BENCH_URL", "MILLSTREAM_BENCH_NAMESPACE", "MILLSTREAM_BENCH_TALLY"
"""Environment variables that configure a worker process."""

CONCURRENCY = 100
BATCH = 500
GROUP = "workers"
IO_SECONDS = 0.01
RESULT_TTL = 600.0

_folder = os.environ.get(TALLY, "")
# Without a tally no job can be handled, but jobs can be enqueued.
_marks = mapped(os.path.join(_folder, MARKS)) if _folder else mmap.mmap(-1, 1)
_starts = memoryview(mapped(os.path.join(_folder, STARTS)) if _folder else mmap.mmap(-1, 8)).cast("d")


async def noop(number: int) -> None:
    """Do nothing."""
    _marks[number] += 1


async def echo(number: int) -> int:
    """Do nothing and return a result, which is stored."""
    _marks[number] += 1
    return number


async def io(number: int) -> None:
    """Wait, as if for an answer over the network."""
    await asyncio.sleep(IO_SECONDS)
    _marks[number] += 1


async def batch(numbers: list[int]) -> None:
    """Do nothing, with a batch of events."""
    for number in numbers:
        _marks[number] += 1


def sync(number: int) -> None:
    """Do nothing, in a thread."""
    _marks[number] += 1


async def stamped(number: int) -> None:
    """Record the start time, and for the first job the pid of its process."""
    _starts[number] = time.perf_counter()
    if number == 0:
        say_up(_folder)
    _marks[number] += 1


def make_app(url: str | None, namespace: str) -> Millstream:
    """Return the app with default leases, timeouts and retries. Only the task ``echo`` stores its results."""
    app = Millstream(url, namespace=namespace, result_ttl=0)
    for handler in (noop, io, stamped):
        app.task(handler)
    app.task(result_ttl=RESULT_TTL)(echo)
    app.task(queue="threads")(sync)
    app.topic("events", int, max_length=None).subscribe(GROUP)(noop)
    app.topic("batches", int, max_length=None).subscribe(GROUP, batch=Batch(BATCH))(batch)
    return app


app = make_app(os.environ.get(URL), os.environ.get(NAMESPACE, "bench"))
