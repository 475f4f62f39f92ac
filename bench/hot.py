"""Shows where a worker's time goes while it drains no-op jobs, by a sample of its stack every millisecond of CPU time.

    make bench-hot                      results off
    make bench-hot ARGS="--results"     results on

The worker runs in this process on its own core, the server on another core if there is one. A line includes the C functions it
called. PROFILE.md describes what was done about the top lines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter
from types import FrameType

import uvloop

from contest.server import on_core, throwaway_server
from millstream import Millstream

SAMPLE_SECONDS = 0.001
Place = tuple[str, int, str]
"""File, line, function."""


class Sampler:
    """Counts the current source line after every interval of CPU time."""

    def __init__(self) -> None:
        self.places: Counter[Place] = Counter()

    def __enter__(self) -> Sampler:
        signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _note(self, _: int, frame: FrameType | None) -> None:
        if frame is not None:
            code = frame.f_code
            self.places[code.co_filename, frame.f_lineno, code.co_qualname] += 1


async def drain(url: str, jobs: int, *, results: bool) -> Sampler:
    app = Millstream(url, result_ttl=600 if results else 0)

    @app.task
    async def noop(number: int) -> None:
        pass

    async with app:
        await app.enqueue_many(noop.bind(number) for number in range(jobs))
        before, cpu = perf_counter(), _cpu()
        with Sampler() as sampler:
            async with app.worker(concurrency=100) as worker:
                while worker.totals["done"] < jobs:
                    await asyncio.sleep(0.005)
                took, cpu = perf_counter() - before, _cpu() - cpu
    each = 1e6 / jobs
    print(f"{jobs:,} jobs, {jobs / took:,.0f} jobs/s: {took * each:.2f} µs per job, of which {cpu * each:.2f} µs on the CPU\n")
    return sampler


def show(places: Counter[Place], lines: int) -> None:
    total = places.total()
    by_function: Counter[tuple[str, str]] = Counter()
    for (file, _, function), count in places.items():
        by_function[file, function] += count
    print(" share  function")
    for (file, function), count in by_function.most_common(lines):
        print(f"{count / total:6.1%}  {function}  {_short(file)}")
    print("\n share  line")
    for (file, line, function), count in places.most_common(lines):
        print(f"{count / total:6.1%}  {function}  {_short(file)}:{line}  {_source(file, line)}")


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-3:])


def _source(file: str, line: int) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    except (OSError, IndexError):
        return ""


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description="Show where a worker's time goes while it drains no-op jobs.")
    parser.add_argument("--jobs", type=int, default=500_000)
    parser.add_argument("--results", action="store_true")
    parser.add_argument("--lines", type=int, default=20)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with throwaway_server(core=cores[-1] if len(cores) > 1 else None) as server, on_core(cores[0]):
        show(uvloop.run(drain(server.url, options.jobs, results=options.results)).places, options.lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
