"""The supervisor, as a worker process sees it: it keeps the leases, is told how things are, and asks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from millstream.model.settings import integer
from millstream.worker import messages
from millstream.worker.resident import resident_bytes
from millstream.worker.scaling.metrics import Metrics
from millstream.worker.scaling.strategies import Strategy
from millstream.worker.summary import Summary
from millstream.worker.supervisor.relay import TEXT_LIMIT, as_problem
from millstream.worker.worker import Worker

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.reporting.reporter import Reporter

BEAT_SECONDS = 1.0
"""How often a child tells its supervisor that its loop turns."""


class SupervisorKeeper:
    """The supervisor, as the keeper of this process's leases."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: messages.Hello) -> None:
        self._reader = reader
        self._writer = writer
        self._hello = hello
        self._reporter: Reporter | None = None
        self._worker: Worker | None = None
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
        return None if self.alive else ConnectionError("the supervisor is gone")

    def report_to(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def speak_for(
        self,
        worker: Worker,
        strategy: Strategy | None,
        *,
        retired: Callable[[], object],
        drain: Callable[[], object],
        memory: bool,
    ) -> None:
        """Whose work is told of.

        ``retired`` is called when the supervisor needs it no more, and it agreed to go; ``drain`` when another process serves
        in its place. ``memory``: say how much it takes.
        """
        self._worker, self._strategy, self._retired, self._drain = worker, strategy, retired, drain
        self._weighs_itself = memory

    async def start(self) -> None:
        messages.say(self._writer, self._hello)
        if await messages.hear(self._reader) is None:
            raise ConnectionError("the supervisor is gone")
        self._reading = asyncio.create_task(self._until_gone())
        self._beating = asyncio.create_task(self._beat())

    def keep(self, queue: str, consumer: str, lease: float) -> None:
        messages.say(self._writer, messages.Keep(queue, consumer, lease))

    def drop(self, queue: str, consumer: str) -> None:
        messages.say(self._writer, messages.Drop(queue, consumer))

    def isolate(self, queue: str) -> None:
        """Ask for a process of their own for this queue's suspects."""
        messages.say(self._writer, messages.Suspects(queue))

    def longer(self, timeout: float) -> None:
        """Allow the loop to be blocked by a job that may run so long."""
        messages.say(self._writer, messages.Longer(timeout))

    async def stop(self) -> None:
        """The leases are given up. The supervisor goes on to hear that the loop turns: a lifespan may take long to end."""
        if self._reading is not None:
            self._reading.cancel()
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def say_bye(self, summary: Summary) -> None:
        """How it went."""
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
        """In a thread: whatever it does there, jobs and beats go on."""
        try:
            assert self._strategy is not None
            wanted = integer(await asyncio.to_thread(self._strategy, metrics), "what a strategy wants", minimum=0)
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


def slots_at(addresses: Iterable[str], app: Millstream, orders: messages.Orders) -> dict[str, dict[bool, int]]:
    """How many jobs of each address one process runs at once: of coroutines (True), and of plain functions."""
    sizes = {True: orders.concurrency, False: orders.threads}
    groups = app.subscriptions_at(addresses)
    slots: dict[str, dict[bool, int]] = {}
    for address in addresses:
        if (group := groups.get(address)) is not None:
            most = sizes[group.is_async]
            slots[address] = {group.is_async: most if group.concurrency is None else min(most, group.concurrency)}
        else:
            kinds = {task.is_async for task in app.tasks.values() if task.settings.queue == address}
            slots[address] = {kind: sizes[kind] for kind in kinds or {True}}
    return slots


def at_once(slots: Mapping[str, Mapping[bool, int]], orders: messages.Orders) -> int:
    """How many jobs of all addresses together: of each kind no more than there are slots for it."""
    sizes = {True: orders.concurrency, False: orders.threads}
    return sum(min(size, sum(each.get(kind, 0) for each in slots.values())) for kind, size in sizes.items())


def consumers_at(addresses: Iterable[str], app: Millstream) -> dict[str, tuple[int, int]]:
    """How many processes may serve each, over all workers, where that is said."""
    declared: dict[str, object] = {**app.queues, **app.subscriptions_at(addresses)}
    # What handles dead letters says nothing of it.
    said = {address: getattr(declared.get(address), "consumers", None) for address in addresses}
    return {address: (bounds[0], bounds[1]) for address, bounds in said.items() if bounds is not None}
