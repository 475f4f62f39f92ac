"""How late delayed jobs start."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime

from alone.limit import Figures, Limit, Measurement
from alone.stage import Stage
from contest.server import throwaway_server
from millstream import Millstream
from millstream.bench.figures import percentile

JOBS = 10_000
# seconds over which jobs are due, and seconds before the first due time
SPAN = 20.0
AHEAD = 3.0


def measure() -> Figures:
    with throwaway_server() as server, Stage(server, JOBS) as stage, stage.workers() as workers:
        stage.until_served(workers)
        first = time.time() + AHEAD
        due = [first + random.uniform(0.0, SPAN) for _ in range(JOBS)]

        async def schedule(app: Millstream) -> None:
            task = app.tasks["stamped"]
            await app.enqueue_many(
                task.options(at=datetime.fromtimestamp(moment, UTC)).bind(number) for number, moment in enumerate(due)
            )

        stage.ask(schedule)
        ahead = first - time.time()
        stage.until_handled(workers)
        late = sorted(1_000 * (start - moment) for start, moment in zip(stage.starts(), due, strict=True))
    return {
        "p99": percentile(late, 99),
        "p50": percentile(late, 50),
        "worst": late[-1],
        "earliest": late[0],
        "ahead": ahead,
    }


DELAYS = Measurement(
    name="delays",
    measure=measure,
    limits=(Limit("Lateness of 10,000 delayed jobs due over 20 s, p99", "p99", "ms", 25),),
    how="10,000 jobs with `at=` at random times within 20 s, all enqueued {ahead} s before the first due time; one worker with "
    "default settings. Lateness is the time from the due time to the first line of the handler, on the machine's one clock. It "
    "includes everything from promotion to claim. p50 {p50} ms, worst {worst} ms; the earliest start was {earliest} ms after "
    "its due time (due times are stored in whole milliseconds).",
)
