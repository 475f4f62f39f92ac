"""The judge: measures one row at a time in a namespace of its own, and checks that every job was handled exactly once."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TypeVar, assert_never, cast

from millstream.backends.redis.sandbox import Sandbox
from millstream.bench.callers import WARM_UP, Callers
from millstream.bench.drain import watch
from millstream.bench.figures import Measured, RowFailed, percentile
from millstream.bench.rows import Row
from millstream.bench.tally import STARTS, Tally, mapped
from millstream.bench.tasks import CONCURRENCY, GROUP, NAMESPACE, TALLY, URL, make_app
from millstream.bench.workers import Workers
from millstream.broker import QueueState
from millstream.errors import BrokerError
from millstream.jobs.job import Job
from millstream.jobs.task import AsyncTask
from millstream.model.address import Address
from millstream.worker.child.process import loop_factory

T = TypeVar("T")

SETTLE_SECONDS = 10.0
"""How long the last outcomes may take to be settled after the last job was handled."""

BYTES_FIRST = 1_000
"""Number of jobs of the memory row that are not counted: they create what exists once (scripts, groups, registries)."""
BYTES_JOBS = 20_000

REST_SECONDS = 0.7
"""Time for the server to finish resizing its tables, and for a worker to become idle."""

LATENCY_JOBS = 20_000
"""Maximum number of jobs of the latency row."""

TOPICS = {"event": "events", "batch": "batches", "publish": "events"}
"""The topic of a row, by its kind of handler."""

MB = 1_000_000


class Judge:
    """Measures Millstream on one server, in a unique namespace that is deleted afterwards.

    Entering it raises BrokerError if the server is unreachable or refuses access.
    """

    def __init__(self, url: str) -> None:
        self.namespace = f"bench-{secrets.token_hex(4)}"
        self._url = url
        self._app = make_app(url, self.namespace)
        self._sandbox = Sandbox(url, self.namespace)
        self._runner = asyncio.Runner(loop_factory=loop_factory())

    def __enter__(self) -> Self:
        try:
            self.server = self._run(self._name)
        except BrokerError:
            self._runner.close()
            raise
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._runner:
            self._sandbox.erase()

    def measure(self, row: Row, *, jobs: int, seconds: float) -> Measured:
        """Measure one row: with ``jobs`` jobs if it drains a queue, for ``seconds`` otherwise. Raises RowFailed."""
        try:
            match row.way:
                case "drain":
                    return self._drain(row, jobs)
                case "enqueue":
                    return self._enqueue(row, seconds)
                case "latency":
                    return self._latency(row, seconds)
                case "bytes":
                    return self._bytes(row)
                case "rss":
                    return self._rss(row)
                case _:
                    assert_never(row.way)
        finally:
            self._sandbox.erase()

    def _drain(self, row: Row, jobs: int) -> Measured:
        with _Course(self._url, self.namespace, jobs) as course:
            sample = self._call(row, lambda callers: callers.fill(jobs))
            waiting = self._state(row).ready
            if waiting != jobs:
                raise RowFailed(f"{jobs:,} jobs were enqueued, but {waiting:,} are waiting")
            with course.workers(self._queue(row)) as workers:
                counted, took = watch(course.tally, workers)
                wrong = course.tally.wrong() or self._unsettled(row, jobs) or (self._unkept(sample) if row.results else "")
            return Measured(counted / took, jobs, took, not wrong, wrong)

    def _unsettled(self, row: Row, jobs: int) -> str:
        """Return how the server's counts differ from what they should be after SETTLE_SECONDS, or an empty string."""
        deadline = perf_counter() + SETTLE_SECONDS
        while True:
            state = self._state(row)
            left = state.ready + state.running + state.scheduled + state.dead
            done = state.totals["done"]
            if left == 0 and done == jobs:
                return ""
            if perf_counter() > deadline:
                return f"{left:,} handled but not settled" if left else f"{done:,} of {jobs:,} settled"
            time.sleep(0.02)

    def _enqueue(self, row: Row, seconds: float) -> Measured:
        single = {"concurrent": Callers.concurrent, "sequential": Callers.sequential}
        sent = self._call(row, lambda callers: single.get(row.name, Callers.bulk)(callers, seconds))
        waiting = self._state(row).ready
        note = "" if waiting == sent.jobs else f"{sent.jobs:,} enqueued, {waiting:,} waiting"
        return Measured(sent.jobs / sent.seconds, sent.jobs, sent.seconds, not note, note)

    def _latency(self, row: Row, seconds: float) -> Measured:
        with _Course(self._url, self.namespace, LATENCY_JOBS) as course, course.workers(self._queue(row)) as workers:
            with course.starts() as starts:
                found = self._call(row, lambda callers: callers.latencies(seconds, starts))
            workers.check()
            handled = course.tally.count()
        note = "" if handled == len(found) else f"{len(found):,} enqueued, {handled:,} handled"
        counted = sorted(1_000 * latency for latency in found[WARM_UP:])
        more = {"p99": percentile(counted, 99), "worst": counted[-1]}
        return Measured(percentile(counted, 50), len(found), seconds, not note, note, more)

    def _bytes(self, row: Row) -> Measured:
        before = perf_counter()
        self._call(row, lambda callers: callers.fill(BYTES_FIRST))
        time.sleep(REST_SECONDS)
        first = self._sandbox.used_memory()
        self._call(row, lambda callers: callers.fill(BYTES_JOBS, first=BYTES_FIRST))
        time.sleep(REST_SECONDS)
        used = self._sandbox.used_memory() - first
        waiting = self._state(row).ready
        note = "" if waiting == BYTES_FIRST + BYTES_JOBS else f"{BYTES_FIRST + BYTES_JOBS:,} enqueued, {waiting:,} waiting"
        return Measured(used / BYTES_JOBS, BYTES_JOBS, perf_counter() - before, not note, note)

    def _rss(self, row: Row) -> Measured:
        before = perf_counter()
        with _Course(self._url, self.namespace, 1) as course, course.workers(self._queue(row)) as workers:
            self._call(row, lambda callers: callers.fill(1))
            watch(course.tally, workers)
            time.sleep(REST_SECONDS)
            resident = workers.resident()
            child = max(resident.get(pid, 0) for pid in course.tally.processes())
            wrong = course.tally.wrong()
        more = {"supervisor": (sum(resident.values()) - child) / MB}
        return Measured(child / MB, 1, perf_counter() - before, not wrong, wrong, more)

    # -- asking --------------------------------------------------------------------------------------------------------------

    def _call(self, row: Row, verb: Callable[[Callers], Awaitable[T]]) -> T:
        return self._run(lambda: verb(self._callers(row)))

    def _callers(self, row: Row) -> Callers:
        app = self._app
        if row.handler in TOPICS:
            topic = app.topics[TOPICS[row.handler]]
            return Callers(topic.publish, topic.publish_many)
        task = self._task(row)
        return Callers(task.enqueue, lambda numbers: app.enqueue_many(task.bind(number) for number in numbers))

    def _task(self, row: Row) -> AsyncTask[[int], int | None]:
        return cast("AsyncTask[[int], int | None]", self._app.tasks["echo" if row.results else row.handler])

    def _queue(self, row: Row) -> str:
        """Return the address at which the jobs or events of a row are claimed."""
        topic = TOPICS.get(row.handler)
        return self._task(row).settings.queue if topic is None else Address.of_group(topic, GROUP)

    async def _name(self) -> str:
        """Return the server's name and version."""
        return (await self._app.broker()).capabilities.server

    def _state(self, row: Row) -> QueueState:
        return self._run(lambda: self._app.inspector.queue(self._queue(row)))

    def _unkept(self, sample: Sequence[Job[Any]]) -> str:
        """Check in a sample that results were stored. Return what is wrong, or an empty string."""

        async def kept() -> int:
            return [await job.status() for job in sample].count("done")

        found = self._run(kept)
        return "" if found == len(sample) else f"only {found} of {len(sample)} results were stored"

    def _run(self, do: Callable[[], Awaitable[T]]) -> T:
        async def inside() -> T:
            async with self._app:
                return await do()

        return self._runner.run(inside())


class _Course:
    """The environment of one measurement with workers: a folder, a tally and the workers."""

    def __init__(self, url: str, namespace: str, jobs: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-bench-")
        self.tally = Tally(Path(self._folder.name), jobs)
        self._environment = {**os.environ, URL: url, NAMESPACE: namespace, TALLY: self._folder.name}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tally.close()
        self._folder.cleanup()

    @contextmanager
    def starts(self) -> Iterator[memoryview[float]]:
        """Yield the start time of each job by ``perf_counter``, a clock that all processes of a machine share. 0 means not
        started."""
        with mapped(str(self.tally.folder / STARTS)) as file, memoryview(file) as raw, raw.cast("d") as starts:
            yield starts

    def workers(self, queue: str) -> Workers:
        """Start a worker for a queue with the usual command."""
        what = ("millstream.bench.tasks:app", "--queue", queue, "--concurrency", str(CONCURRENCY))
        command = [sys.executable, "-m", "millstream", "worker", *what]
        return Workers([command], self._environment, Path(self._folder.name))
