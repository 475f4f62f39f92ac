"""The handlers that every contender runs, the same functions for all; a contender's file declares one of them as its task.

Which one, and where the tally is, the judge says through the environment. The module is imported by every worker process, so it
imports next to nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from contest.tally import mapped

URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379")
RESULTS = os.environ.get("BENCH_RESULTS") == "1"
KIND = os.environ.get("BENCH_HANDLER", "noop")
CONCURRENCY = 100
# seconds that an I/O handler waits for its I/O
IO_SECONDS = 0.01
# seconds between two looks at a gate that is still closed
GATE_SECONDS = 0.01

_folder = os.environ.get("BENCH_TALLY")
if _folder:
    marks: Any = mapped(Path(_folder, "marks"))
    starts: Any = memoryview(mapped(Path(_folder, "starts"))).cast("d")


async def noop(number: int) -> int:
    marks[number] += 1
    return number


def plain_noop(number: int) -> int:
    marks[number] += 1
    return number


async def io(number: int) -> int:
    await asyncio.sleep(IO_SECONDS)
    marks[number] += 1
    return number


def plain_io(number: int) -> int:
    time.sleep(IO_SECONDS)
    marks[number] += 1
    return number


async def stamped(number: int) -> int:
    return plain_stamped(number)


def plain_stamped(number: int) -> int:
    """Writes down when it started, and in which process."""
    starts[number] = perf_counter()
    if number == 0:
        _say_up()
    marks[number] += 1
    return number


class Gate:
    """Closed while workers start: a handler that comes to it says that its process is up, and waits until the judge opens."""

    def __init__(self) -> None:
        self.open = False
        self._first = asyncio.Lock()
        self._first_thread = threading.Lock()

    async def wait(self) -> None:
        _say_up()
        async with self._first:  # one looks, the others wait for it
            while not self._look():
                await asyncio.sleep(GATE_SECONDS)

    def wait_thread(self) -> None:
        _say_up()
        with self._first_thread:
            while not self._look():
                time.sleep(GATE_SECONDS)

    def _look(self) -> bool:
        if not self.open:
            self.open = Path(_folder or "", "open").exists()
        return self.open


gate = Gate()


async def gated(number: int) -> int:
    if not gate.open:
        await gate.wait()
    marks[number] += 1
    return number


def plain_gated(number: int) -> int:
    if not gate.open:
        gate.wait_thread()
    marks[number] += 1
    return number


def _say_up() -> None:
    Path(_folder or "", f"up-{os.getpid()}").touch()


# of contenders that run coroutines; plain functions are what the row "sync" is about
HANDLERS: dict[str, Callable[[int], Any]] = {
    "noop": noop,
    "io": io,
    "sync": plain_noop,
    "stamped": stamped,
    "gated": gated,
}
# of contenders that run plain functions only
PLAIN_HANDLERS: dict[str, Callable[[int], Any]] = {
    "noop": plain_noop,
    "io": plain_io,
    "sync": plain_noop,
    "stamped": plain_stamped,
    "gated": plain_gated,
}
handler = HANDLERS[KIND]
plain_handler = PLAIN_HANDLERS[KIND]
