"""The environment of a measurement: a running server, an app, a tally and worker processes."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import uvloop

from alone.tasks import make_app
from contest.roster import BENCH
from contest.server import Server
from millstream import Millstream
from millstream.bench.figures import RowFailed
from millstream.bench.tally import STARTS, Tally, mapped
from millstream.bench.workers import Workers

# jobs per bulk call
CHUNK = 10_000
# seconds to wait for anything that must happen
PATIENCE = 120.0


class Stage:
    """The client is this process."""

    def __init__(
        self, server: Server, jobs: int, make_app: Callable[[str], Millstream] = make_app, module: str = "alone.tasks"
    ) -> None:
        self.server = server
        self.app = make_app(server.url)
        self._module = module
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self.tally = Tally(Path(self._folder.name), jobs)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(BENCH.parent / "src"), str(BENCH))),
            "BENCH_URL": server.url,
            "BENCH_TALLY": self._folder.name,
        }
        # with bytecode, as after an installation: compiling at every start uses more memory
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self.tally.close()
        self._folder.cleanup()

    def workers(self, *options: str, count: int = 1) -> Workers:
        """Start ``count`` ``millstream worker`` commands of one process each."""
        command = [sys.executable, "-m", "millstream", "worker", f"{self._module}:app", *options]
        return Workers([command] * count, self._environment, BENCH)

    def until_served(self, workers: Workers, count: int = 1) -> None:
        """Wait until ``count`` worker processes have registered."""
        self._until(workers, lambda: len(self.ask(lambda app: app.inspector.workers())) >= count, "the workers to register")

    def until_handled(self, workers: Workers) -> None:
        """Wait until every job was handled exactly once and all are settled."""
        self._until(workers, lambda: self.tally.complete, "all jobs to be handled")
        if wrong := self.tally.wrong():
            raise RowFailed(f"not exact: {wrong}")

        def settled() -> bool:
            state = self.ask(lambda app: app.inspector.queue("default"))
            return bool(state.ready + state.running + state.scheduled == 0)

        self._until(workers, settled, "all jobs to be settled")

    def send(self, task: str, numbers: Iterable[int]) -> None:
        """Enqueue one job per number, in bulk."""

        async def fill(app: Millstream) -> None:
            waiting = list(numbers)
            for start in range(0, len(waiting), CHUNK):
                await app.enqueue_many(app.tasks[task].bind(number) for number in waiting[start : start + CHUNK])

        self.ask(fill)

    def ask(self, do: Callable[[Millstream], Coroutine[Any, Any, Any]]) -> Any:
        """Open the app, call ``do`` with it and return the result."""

        async def inside() -> Any:
            async with self.app:
                return await do(self.app)

        return self._runner.run(inside())

    def starts(self) -> Sequence[float]:
        """Return the start time that each handler recorded."""
        with mapped(str(self.tally.folder / STARTS)) as file, memoryview(file) as raw, raw.cast("d") as starts:
            return starts.tolist()

    @staticmethod
    def _until(workers: Workers, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            workers.check()
            if time.monotonic() > deadline:
                raise RowFailed(f"waited {PATIENCE:.0f} s for {what}; {workers.said()}")
            time.sleep(0.02)
