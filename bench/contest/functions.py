"""The handlers as plain functions, for libraries without coroutines, and for the row that measures plain functions.

They are the same for all contenders: a contender's file declares ``handler`` as its task. Marking a job takes about 60 ns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from contest import told
from contest.told import marks, say_up, starts


def noop(number: int) -> None:
    marks[number] += 1


def echo(number: int) -> int:
    marks[number] += 1
    return number


def io(number: int) -> None:
    time.sleep(told.IO_SECONDS)
    marks[number] += 1


def stamped(number: int) -> None:
    """Records when it started; the first job also records its process."""
    starts[number] = time.perf_counter()
    if number == 0:
        say_up()
    marks[number] += 1


class _Gate(told.Gate):
    def __init__(self) -> None:
        self._first = threading.Lock()

    def wait(self) -> None:
        say_up()
        with self._first:  # one handler polls the gate, the others wait for it
            while not self.look():
                time.sleep(told.GATE_SECONDS)


_gate = _Gate()


def gated(number: int) -> None:
    if not _gate.open:
        _gate.wait()
    marks[number] += 1


handler: Callable[[int], int | None] = {
    "noop": echo if told.RESULTS else noop,
    "io": io,
    "sync": noop,
    "stamped": stamped,
    "gated": gated,
}.get(told.KIND, noop)
