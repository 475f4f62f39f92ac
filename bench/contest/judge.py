"""The judge: measures one row of one contender at a time on an emptied server, and checks that every job was handled once."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, assert_never

from contest.roster import Entry
from contest.server import Server
from millstream.bench.drain import HEAD, START_SECONDS, watch
from millstream.bench.figures import Measured, RowFailed, percentile
from millstream.bench.rows import Row
from millstream.bench.tally import Tally
from millstream.bench.workers import Workers

# seconds after which a client's command counts as hung
CLIENT_TIMEOUT = 300.0
# seconds to wait for the last acknowledgements after the last job was handled
SETTLE_TIMEOUT = 10.0
# share of the jobs handled before the clock starts if many processes wait at a gate: the jobs they hold when it opens
HEAD_GATED = 0.4
# jobs of the memory row; the first are not counted, because they create what exists once (scripts, groups, registries)
BYTES_FIRST = 1_000
BYTES_JOBS = 20_000
# seconds for the server to finish resizing its tables, and for a worker to become idle
REST = 0.7
# the most jobs of the latency row
LATENCY_JOBS = 20_000
MB = 1_000_000


class Judge:
    def __init__(self, server: Server) -> None:
        self.server = server

    def measure(self, entry: Entry, row: Row, *, jobs: int, seconds: float) -> Measured:
        """Measure one row. ``jobs`` applies to rows that drain, ``seconds`` to the others. Raises RowFailed on failure."""
        self.server.empty()
        try:
            match row.way:
                case "drain":
                    return self._drain(entry, row, jobs)
                case "enqueue":
                    return self._enqueue(entry, row, seconds)
                case "latency":
                    return self._latency(entry, row, seconds)
                case "bytes":
                    return self._bytes(entry, row)
                case "rss":
                    return self._rss(entry, row)
                case _:
                    assert_never(row.way)
        except subprocess.CalledProcessError as error:
            raise RowFailed(
                f"{entry.name} {error.cmd[2]} exited with code {error.returncode}: {error.stderr[-2000:]}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RowFailed(f"{entry.name} took more than {error.timeout:.0f} s") from error

    def _drain(self, entry: Entry, row: Row, jobs: int) -> Measured:
        with _Course(self, entry, row, jobs) as course:
            course.call("fill", 0, jobs)
            waiting = self.server.total(entry.queued)
            if waiting != jobs:
                raise RowFailed(f"{jobs} jobs were enqueued, but {waiting} are waiting")
            with course.workers() as workers:
                if row.handler == "gated":
                    course.gather(workers)
                counted, took = watch(course.tally, workers, HEAD_GATED if row.handler == "gated" else HEAD)
                note = "" if course.tally.wrong() else self._unsettled(entry, row, jobs)
                wrong = course.tally.wrong() or note
            return Measured(counted / took, jobs, took, not wrong, wrong)

    def _unsettled(self, entry: Entry, row: Row, jobs: int) -> str:
        """Return what is wrong on the server after a while: unsettled jobs, or missing results; empty if nothing."""
        deadline = perf_counter() + SETTLE_TIMEOUT
        while True:
            left = self.server.total(entry.left)
            results = self.server.total(entry.results) if row.results else jobs
            if left == 0 and results >= jobs:
                return ""
            if perf_counter() > deadline:
                return f"{left} handled but not settled" if left else f"{results:,} of {jobs:,} results stored"
            time.sleep(0.02)

    def _enqueue(self, entry: Entry, row: Row, seconds: float) -> Measured:
        with _Course(self, entry, row, 1) as course:
            done = course.call(row.name, seconds)
        waiting = self.server.total(entry.queued)
        exact = waiting == done["jobs"]
        note = "" if exact else f"{done['jobs']} enqueued, {waiting} waiting"
        return Measured(done["jobs"] / done["seconds"], done["jobs"], done["seconds"], exact, note)

    def _latency(self, entry: Entry, row: Row, seconds: float) -> Measured:
        with _Course(self, entry, row, LATENCY_JOBS) as course, course.workers() as workers:
            done = course.call("latency", seconds)
            workers.check()
            latencies = sorted(1_000 * latency for latency in done["latencies"])
            exact = course.tally.count() == done["jobs"]
        more = {"p99": percentile(latencies, 99), "worst": latencies[-1], "samples": float(len(latencies))}
        return Measured(percentile(latencies, 50), done["jobs"], seconds, exact, more=more)

    def _bytes(self, entry: Entry, row: Row) -> Measured:
        with _Course(self, entry, row, 1) as course:
            before = perf_counter()
            course.call("fill", 0, BYTES_FIRST)
            time.sleep(REST)
            first = self.server.used_memory()
            course.call("fill", BYTES_FIRST, BYTES_JOBS)
            time.sleep(REST)
            used = self.server.used_memory() - first
            exact = self.server.total(entry.queued) == BYTES_FIRST + BYTES_JOBS
        return Measured(used / BYTES_JOBS, BYTES_JOBS, perf_counter() - before, exact)

    def _rss(self, entry: Entry, row: Row) -> Measured:
        with _Course(self, entry, row, 1) as course, course.workers() as workers:
            before = perf_counter()
            course.call("fill", 0, 1)
            watch(course.tally, workers)
            time.sleep(REST)
            resident = workers.resident()
            child = max(resident.get(pid, 0) for pid in course.tally.processes())
            more = {"others": (sum(resident.values()) - child) / MB, "processes": float(len(resident))}
            return Measured(child / MB, 1, perf_counter() - before, not course.tally.wrong(), more=more)


class _Course:
    """The environment of one measurement: its tally, variables, client commands and workers."""

    def __init__(self, judge: Judge, entry: Entry, row: Row, jobs: int) -> None:
        self._entry = entry
        self._row = row
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self.tally = Tally(Path(self._folder.name), jobs)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(path) for path in entry.path),
            "BENCH_URL": judge.server.url,
            "BENCH_TALLY": self._folder.name,
            "BENCH_HANDLER": row.handler,
            "BENCH_RESULTS": "1" if row.results else "0",
        }
        # peers were installed with their bytecode; compiling it at the start would use three megabytes more
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def __enter__(self) -> _Course:
        return self

    def __exit__(self, *_: object) -> None:
        self.tally.close()
        self._folder.cleanup()

    def call(self, command: str, *arguments: object) -> Any:
        """Run one of the contender's client commands to its end."""
        line = [str(self._entry.python), str(self._entry.file), command, *map(str, arguments)]
        done = subprocess.run(
            line, env=self._environment, cwd=self._entry.file.parent, capture_output=True, text=True, check=True,
            timeout=CLIENT_TIMEOUT,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    def workers(self) -> Workers:
        commands: Sequence[Sequence[str]] = self._entry.workers[self._row.handler][str(self._row.processes)]
        return Workers(commands, self._environment, self._entry.file.parent)

    def gather(self, workers: Workers) -> None:
        """Wait until every worker process holds a job at the gate, then open it."""
        deadline = perf_counter() + START_SECONDS + 2 * self._row.processes
        while len(self.tally.processes()) < self._row.processes:
            workers.check()
            if perf_counter() > deadline:
                up = len(self.tally.processes())
                raise RowFailed(f"only {up} of {self._row.processes} processes took a job; {workers.said()}")
            time.sleep(0.05)
        time.sleep(REST)
        self.tally.open_gate()
