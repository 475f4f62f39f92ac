"""The supervisor as a worker process sees it: it renews the leases, receives reports, and sends requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from millstream.model.address import Address
from millstream.model.settings import integer
from millstream.worker import messages
from millstream.worker.child.resident import resident_bytes
from millstream.worker.scaling.metrics import Metrics
from millstream.worker.scaling.strategies import Strategy
from millstream.worker.summary import Summary
from millstream.worker.supervisor.relay import TEXT_LIMIT, as_problem

if TYPE_CHECKING:
    from millstream.reporting.reporter import Reporter

BEAT_SECONDS = 1.0
"""Seconds between two beats, which show the supervisor that the child's event loop is responsive."""


class Reporting(Protocol):
    """The part of a worker that is reported to its supervisor."""

    @property
    def held(self) -> int: ...
    @property
    def totals(self) -> Mapping[str, int]: ...
    @property
    def interrupted(self) -> int: ...
    def retire(self) -> bool:
        """Stop claiming and return True if the worker holds no messages. Otherwise return False."""
        ...


class SupervisorKeeper:
    """The supervisor in its role as keeper of this process's leases."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: messages.Hello) -> None:
        self._reader = reader
        self._writer = writer
        self._hello = hello
        self._reporter: Reporter | None = None
        self._worker: Reporting | None = None
        self._strategy: Strategy | None = None
        self._retired: Callable[[], object] = lambda: None
        self._drain: Callable[[], object] = lambda: None
        self._weighs_itself = False
        self._weighing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._reading is not None and not self._reading.done()

    @property
    def error(self) -> BaseException | None:
        return None if self.alive else ConnectionError("the supervisor has died")

    def report_to(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def speak_for(
        self,
        worker: Reporting,
        strategy: Strategy | None,
        *,
        retired: Callable[[], object],
        drain: Callable[[], object],
        memory: bool,
    ) -> None:
        """Set the worker that is reported, and the user's scaling strategy.

        ``retired`` is called when the supervisor asked an idle worker to end and the worker agreed. ``drain`` is called when
        another process has replaced this one. ``memory``: report the resident memory.
        """
        self._worker, self._strategy, self._retired, self._drain = worker, strategy, retired, drain
        self._weighs_itself = memory

    async def start(self) -> None:
        messages.say(self._writer, self._hello)
        if await messages.hear(self._reader) is None:
            raise ConnectionError("the supervisor has died")
        self._reading = asyncio.create_task(self._until_gone())
        self._beating = asyncio.create_task(self._beat())

    def keep(self, queue: Address, consumer: str, lease: float) -> None:
        messages.say(self._writer, messages.Keep(queue, consumer, lease))

    def drop(self, queue: Address, consumer: str) -> None:
        messages.say(self._writer, messages.Drop(queue, consumer))

    def isolate(self, queue: Address) -> None:
        """Ask for a spare process for this queue's suspects."""
        messages.say(self._writer, messages.Suspects(queue))

    def longer(self, timeout: float) -> None:
        """Raise the longest timeout: a job may block the loop for this many seconds before the child counts as wedged."""
        messages.say(self._writer, messages.Longer(timeout))

    async def stop(self) -> None:
        """Stop reading requests, after the leases were given up. Beats continue, because a lifespan may take long to end."""
        if self._reading is not None:
            self._reading.cancel()
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def say_bye(self, summary: Summary) -> None:
        """Send the summary of the worker."""
        error = "" if summary.error is None else f"{type(summary.error).__name__}: {summary.error}"[:TEXT_LIMIT]
        messages.say(self._writer, messages.Bye(dict(summary.totals), summary.interrupted, summary.abandoned, error))
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def _until_gone(self) -> None:
        while (word := await messages.hear(self._reader)) is not None:
            match word:
                case messages.Trouble() if self._reporter is not None:
                    self._reporter.pass_on(as_problem(word))
                case messages.Retire(until):
                    self._retire(until)
                case messages.Drain():
                    self._drain()
                case messages.Weigh(number, metrics):
                    self._weighing = asyncio.create_task(self._weigh(number, metrics))
                case _:
                    pass

    def _retire(self, until: float) -> None:
        worker = self._worker
        if worker is not None and time.monotonic() <= until and worker.retire():
            messages.say(self._writer, messages.Retiring())
            self._retired()
        else:
            messages.say(self._writer, messages.Busy(0 if worker is None else worker.held))

    async def _weigh(self, number: int, metrics: Metrics) -> None:
        """Ask the strategy in a thread, so that it cannot block jobs and beats."""
        try:
            assert self._strategy is not None
            wanted = integer(await asyncio.to_thread(self._strategy, metrics), "the result of a strategy", minimum=0)
        except Exception as error:
            messages.say(self._writer, messages.Weighed(number, error=f"{type(error).__name__}: {error}"[:TEXT_LIMIT]))
        else:
            messages.say(self._writer, messages.Weighed(number, wanted))

    async def _beat(self) -> None:
        while True:
            worker = self._worker
            memory = resident_bytes() if self._weighs_itself else 0
            beat = messages.Beat(memory=memory)
            if worker is not None:
                beat = messages.Beat(worker.held, dict(worker.totals), worker.interrupted, memory)
            messages.say(self._writer, beat)
            await asyncio.sleep(BEAT_SECONDS)
