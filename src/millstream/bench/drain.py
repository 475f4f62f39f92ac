"""The clock of a row that empties a queue. It starts when some jobs have been handled, so that starting up is not counted."""

from __future__ import annotations

import time
from time import perf_counter

from millstream.bench.figures import RowFailed
from millstream.bench.tally import Tally
from millstream.bench.workers import Workers

HEAD = 0.05
"""Share of the jobs that is handled before the clock starts: connections and caches are made with them."""

START_SECONDS = 45.0
"""In which a worker has to handle its first job."""

STALL_SECONDS = 12.0
"""After which what is not handled counts as lost."""

LOOK_SECONDS = 0.005
"""Between two looks at the tally."""


def watch(tally: Tally, workers: Workers, head: float = HEAD) -> tuple[int, float]:
    """Jobs and seconds from when ``head`` of the jobs was handled until all were, or until nothing more was.

    RowFailed if not even half of them were.
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
                    raise RowFailed(f"nothing more handled at {count:,} of {tally.jobs:,} jobs; {workers.said()}")
                return count - handled, moved - before
        time.sleep(LOOK_SECONDS)
    return tally.jobs - handled, perf_counter() - before
