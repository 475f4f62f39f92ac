"""What every contender shares: its two commands, the tally of what was handled, and the one line it prints.

    python on_<name>.py drain N      enqueue N jobs (not timed), run one worker until all are handled and settled
    python on_<name>.py enqueue N    enqueue N jobs in bulk

The server's address is in BENCH_URL. The line is JSON: {"rate": jobs per second, "exact": every job once and none left}.
"""

import asyncio
import json
import os
import sys
from array import array
from collections.abc import Awaitable, Callable
from time import perf_counter

import uvloop

CONCURRENCY = 100
# seconds to wait for the last acknowledgements after the last job was handled
SETTLE_TIMEOUT = 10.0

Row = Callable[[str, int], Awaitable[tuple[float, bool]]]
"""What a command runs: address and number of jobs in, rate and exactness out."""


class Tally:
    """Counts every job by its number, and the time from the first one handled to the last; start-up is not in it."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.all_handled = asyncio.Event()
        self._times_handled = array("H", bytes(2 * jobs))
        self._left = jobs
        self._first = self._last = 0.0

    def handled(self, number: int) -> None:
        if self._left == self.jobs:
            self._first = perf_counter()
        self._times_handled[number] += 1
        self._left -= 1
        if self._left == 0:
            self._last = perf_counter()
            self.all_handled.set()

    @property
    def rate(self) -> float:
        return self.jobs / (self._last - self._first)

    @property
    def exact(self) -> bool:
        return self._times_handled == array("H", [1]) * self.jobs


async def settled(left: Callable[[], Awaitable[int]]) -> bool:
    """Whether ``left()``, what the server still holds of the jobs, comes down to 0 in time."""
    deadline = perf_counter() + SETTLE_TIMEOUT
    while await left() > 0:
        if perf_counter() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def main(drain: Row, enqueue: Row) -> None:
    command, jobs = sys.argv[1], int(sys.argv[2])
    row = {"drain": drain, "enqueue": enqueue}[command]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rate, exact = runner.run(row(os.environ["BENCH_URL"], jobs))
    print(json.dumps({"rate": rate, "exact": exact}))
