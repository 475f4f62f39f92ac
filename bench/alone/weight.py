"""Memory of a job on the server and of a worker on its machine, and many workers compared with few: rows of ``make bench``."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from statistics import mean

from alone.limit import Figures, Limit, Measurement
from contest.judge import BYTES_JOBS, Judge
from contest.roster import US, Entry, describe
from contest.rows import ROWS
from contest.server import throwaway_server
from millstream.bench.figures import Measured, RowFailed

# jobs of the rows with many worker processes
CROWD_JOBS = 400_000


@cache
def _us() -> Entry:
    return describe(US, python=Path(sys.executable))


def _measure(row: str, jobs: int = 0) -> Measured:
    with throwaway_server() as server:
        measured = Judge(server).measure(_us(), ROWS[row], jobs=jobs, seconds=0.0)
    if not measured.exact:
        raise RowFailed(f"not exact: {measured.note}")
    return measured


def _bytes() -> Figures:
    return {"bytes": _measure("bytes").value}


def _memory() -> Figures:
    measured = _measure("rss")
    return {"child": measured.value, "supervisor": measured.more["others"]}


def _crowd() -> Figures:
    rates: dict[str, list[float]] = {}
    for row in ("workers-10", "workers-40", "workers-40", "workers-10"):  # this order spreads temporary load over both
        rates.setdefault(row, []).append(_measure(row, CROWD_JOBS).value)
    ten, forty = map(mean, rates.values())
    return {"slower": 100 * (1 - forty / ten), "ten": ten, "forty": forty}


BYTES = Measurement(
    name="bytes",
    measure=_bytes,
    limits=(Limit("Server bytes per ready tiny job, index included", "bytes", "bytes", 120),),
    how=f"Growth of `used_memory` per job over {BYTES_JOBS:,} jobs with one small integer as argument, after the first 1,000.",
)
MEMORY = Measurement(
    name="memory",
    measure=_memory,
    limits=(
        Limit("Resident memory of an idle worker child", "child", "MB", 40),
        Limit("Resident memory of its supervisor", "supervisor", "MB", 35),
    ),
    how="`millstream worker` with one task and uvloop, after its first job. MB are 10⁶ bytes. Resident pages are counted as "
    "the kernel does, including pages shared with other processes. Bytecode is compiled beforehand, as after an installation.",
)
CROWD = Measurement(
    name="crowd",
    measure=_crowd,
    limits=(Limit("Slowdown with 40 instead of 10 worker processes on one queue", "slower", "%", 5),),
    how=f"Each number of processes runs twice, in turn, with {CROWD_JOBS:,} no-op jobs. All processes have started and hold a "
    "job at a closed gate before the clock starts. 10: {ten} jobs/s, 40: {forty} jobs/s.",
)
