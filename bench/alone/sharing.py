"""How evenly two workers share slow jobs."""

from __future__ import annotations

from collections import Counter

from alone.limit import Figures, Limit, Measurement
from alone.stage import Stage
from contest.server import throwaway_server

JOBS = 400


def measure() -> Figures:
    with throwaway_server() as server, Stage(server, JOBS) as stage, stage.workers(count=2) as workers:
        stage.until_served(workers, 2)
        stage.send("slow", range(JOBS))
        stage.until_handled(workers)
        shares = Counter(stage.starts())
    most = max(shares.values())
    even = JOBS / 2
    return {"uneven": 100 * (most - even) / even, "most": most, "least": JOBS - most}


SHARING = Measurement(
    name="sharing",
    measure=measure,
    limits=(Limit("Deviation from equal shares of two workers with 400 jobs of 200 ms", "uneven", "%", 10),),
    how="Two idle workers with default settings (32 coroutines each), and 400 jobs in one `enqueue_many`. The busier worker "
    "ran {most}, the other {least}.",
)
