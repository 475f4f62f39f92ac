"""The handlers as coroutines, for libraries that support them. The row "sync" measures plain functions with them, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from contest import functions, told
from contest.told import marks, say_up


async def noop(number: int) -> None:
    marks[number] += 1


async def echo(number: int) -> int:
    marks[number] += 1
    return number


async def io(number: int) -> None:
    await asyncio.sleep(told.IO_SECONDS)
    marks[number] += 1


async def stamped(number: int) -> None:
    functions.stamped(number)


class _Gate(told.Gate):
    def __init__(self) -> None:
        self._first = asyncio.Lock()

    async def wait(self) -> None:
        say_up()
        async with self._first:  # one handler polls the gate, the others wait for it
            while not self.look():
                await asyncio.sleep(told.GATE_SECONDS)


_gate = _Gate()


async def gated(number: int) -> None:
    if not _gate.open:
        await _gate.wait()
    marks[number] += 1


async def batch(numbers: list[int]) -> None:
    for number in numbers:
        marks[number] += 1


_HANDLERS: dict[str, Callable[[Any], Any]] = {
    "noop": echo if told.RESULTS else noop,
    "io": io,
    "sync": functions.noop,
    "stamped": stamped,
    "gated": gated,
    "event": noop,
    "batch": batch,
    "publish": noop,
    "ordered": noop,
    "ordered-200": noop,
}
handler = _HANDLERS[told.KIND]
