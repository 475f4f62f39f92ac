"""The clock of a row that empties a queue. It starts when a share of the jobs is handled, so that startup is not counted."""

from __future__ import annotations

import time
from time import perf_counter

from millstream.bench.figures import RowFailed
from millstream.bench.tally import Tally
from millstream.bench.workers import Workers

HEAD = 0.05
"""Share of the jobs handled before the clock starts. They open connections and fill caches."""

START_SECONDS = 45.0
"""How long a worker may take to handle its first job."""

STALL_SECONDS = 12.0
"""After this long without progress, the remaining jobs count as lost."""

LOOK_SECONDS = 0.005
"""Interval between reads of the tally."""


def watch(tally: Tally, workers: Workers, head: float = HEAD) -> tuple[int, float]:
    """Return the number of jobs and the seconds from the moment when the share ``head`` was handled to the last job.

    Raises RowFailed if less than half of the jobs were handled.
    """
    before, handled, counting = perf_counter(), 0, False
    seen, moved, look = 0, before, before
    while not tally.complete:
        now = perf_counter()
        if not counting:
            share = tally.share
            if share > head:
                counting, before, handled = True, now, tally.count()
            elif share == 0.0:
                before = now
        if now - look > 1.0:
            workers.check()
            look, count = now, tally.count()
            if count > seen:
                seen, moved = count, now
            elif now - moved > (STALL_SECONDS if count else START_SECONDS):
                if count < tally.jobs / 2:
                    raise RowFailed(
                        f"no progress after {count:,} of {tally.jobs:,} jobs; output of the workers: {workers.said()}"
                    )
                return count - handled, moved - before
        time.sleep(LOOK_SECONDS)
    return tally.jobs - handled, perf_counter() - before
