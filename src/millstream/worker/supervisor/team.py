"""A supervisor's processes as the scaler sees them: counts and measures them, starts more, and ends idle ones."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable

import msgspec

from millstream.broker import Inspector
from millstream.model.address import Address
from millstream.worker import messages
from millstream.worker.scaling.gauge import Gauge
from millstream.worker.scaling.metrics import Load, Metrics
from millstream.worker.scaling.scaler import Scaler
from millstream.worker.scaling.spec import parse_spec
from millstream.worker.scaling.stabilizer import Stabilizer
from millstream.worker.supervisor.children.child import Child
from millstream.worker.supervisor.children.managed_process import ManagedProcess
from millstream.worker.supervisor.children.processes import Processes
from millstream.worker.supervisor.plan import Plan
from millstream.worker.supervisor.stopping import Stopping

RETIRE_SECONDS = 2.0
"""Maximum seconds for a child's answer to a Retire. A child whose event loop is blocked does not answer and stays."""

WEIGH_SECONDS = 5.0
"""Maximum seconds for a decision of the user's strategy."""


class StrategyFailed(Exception):
    """The user's strategy raised, or did not answer in time."""


class ProcessTeam:
    """Counts, starts and ends managed processes. Only a child that confirms that it holds no messages is ended."""

    def __init__(self, plan: Plan, processes: Processes, living: Collection[Child], stopping: Stopping) -> None:
        self._plan = plan
        self._processes = processes
        self._living = living
        self._stopping = stopping
        self._spec = parse_spec(plan.strategy)
        self._strategy = None if self._spec.own else self._spec.strategy()
        self._gauge: Gauge | None = None
        self._weighing: tuple[int, asyncio.Future[int]] | None = None
        self._weighings = 0

    def open(self, inspector: Inspector, changed: Callable[[], Awaitable[None]]) -> Scaler:
        """Start measuring, and return the scaler of these processes."""
        self._gauge = Gauge(inspector, time.monotonic)
        stabilizer = Stabilizer(self._spec.hysteresis, self._spec.cooldown, time.monotonic)
        return Scaler(self, self._measure, self._wanted, stabilizer, self._spec.poll, changed)

    # -- the current processes and their load ------------------------------------------------------------------------------

    @property
    def processes(self) -> int:
        """Number of processes that are running or being started."""
        return sum(not process.left for process in self._processes.managed)

    @property
    def minimum(self) -> int:
        return self._plan.processes

    @property
    def maximum(self) -> int:
        return self._plan.most

    @property
    def strategy(self) -> str:
        """The scaling strategy as written on the command line, or empty if the worker does not scale."""
        return self._plan.strategy if self._plan.scales else ""

    @property
    def closed(self) -> str:
        """Why the number of processes must not change any more, or empty if it may."""
        if self._stopping.begun:
            return "the worker is stopping"
        if self._plan.orders.burst and self.processes < self.minimum:
            return "the burst is nearly over"
        return ""

    @property
    def addresses(self) -> list[Address]:
        """The addresses that the children serve, including those that they discovered after their start."""
        found: dict[Address, None] = {}
        for child in self._serving():
            assert child.hello is not None
            found.update(dict.fromkeys(address for address in child.hello.queues if "*" not in address))
            found.update(dict.fromkeys(sorted({address.base for address, _ in child.leases})))
        return list(found)

    @property
    def rates(self) -> dict[str, float]:
        """Jobs per second of one process, by address, where measured."""
        return {} if self._gauge is None else self._gauge.rates

    def _serving(self) -> list[Child]:
        return [
            process.child
            for process in self._processes.managed
            if process.child is not None and process.child.hello is not None
        ]

    async def _measure(self) -> Metrics:
        assert self._gauge is not None
        children, orders = self._serving(), self._plan.orders
        spares = [child for child in self._living if child.spare]
        loads: list[Load] = []
        hello = next((child.hello for child in children if child.hello is not None), None)
        for load in await self._gauge.read(self.addresses):
            bounds = None if hello is None else hello.consumers.get(load.address)
            loads.append(
                msgspec.structs.replace(
                    load,
                    # Spare processes only run suspects, so scaling does not count them.
                    consumers=max(0, load.consumers - _serve(load.address, spares)),
                    ours=_serve(load.address, children),
                    slots=orders.concurrency if hello is None else hello.slots.get(load.address, orders.concurrency),
                    least=0 if bounds is None else bounds[0],
                    most=load.most if bounds is None else min(bounds[1], load.most or bounds[1]),
                )
            )
        at_once = orders.concurrency if hello is None or not hello.at_once else hello.at_once
        return Metrics(self.processes, self.minimum, self.maximum, at_once, tuple(loads))

    # -- the strategy ------------------------------------------------------------------------------------------------------

    async def _wanted(self, metrics: Metrics) -> int:
        if self._strategy is not None:
            return self._strategy(metrics)
        child = next(iter(self._serving()), None)
        if child is None:
            return metrics.processes
        self._weighings += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._weighing = self._weighings, answer
        child.say(messages.Weigh(self._weighings, metrics))
        try:
            async with asyncio.timeout(WEIGH_SECONDS):
                return await answer
        except TimeoutError:
            raise StrategyFailed(f"strategy {self._spec.own} did not answer within {WEIGH_SECONDS:g} s") from None

    def weighed(self, word: messages.Weighed) -> None:
        """Take the answer of the user's strategy."""
        if self._weighing is None or self._weighing[0] != word.number or self._weighing[1].done():
            return
        if word.error:
            self._weighing[1].set_exception(StrategyFailed(f"strategy {self._spec.own} failed: {word.error}"))
        else:
            self._weighing[1].set_result(word.wanted)

    # -- starting and ending processes -------------------------------------------------------------------------------------

    def grow(self, count: int) -> str:
        """Start ``count`` more processes. Return why not if that is refused, otherwise an empty string."""
        if any(process.circuit.is_open for process in self._processes.managed):
            return "worker processes die right after their start"
        for _ in range(count):
            self._processes.begin()
        return ""

    async def shrink(self, count: int) -> int:
        """End up to ``count`` idle processes, and return how many end."""
        before = self.processes
        kept = [process for process in self._processes.managed if not process.left]
        for process in [process for process in reversed(kept) if not process.serves][:count]:
            process.leave()
            if process.child is not None:
                self._stopping.tell(process.child)
        count -= before - self.processes
        idle = [
            process for process in reversed(kept) if process.serves and process.child is not None and process.child.held == 0
        ]
        await asyncio.gather(*map(self._retire, idle[:count]))
        return before - self.processes

    async def _retire(self, process: ManagedProcess) -> None:
        """Ask a child to end. It refuses if it holds messages by now."""
        child = process.child
        assert child is not None
        while not child.answers.empty():
            child.answers.get_nowait()
        child.say(messages.Retire(time.monotonic() + RETIRE_SECONDS))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETIRE_SECONDS):
                await child.answers.get()

    def retiring(self, child: Child) -> None:
        """Handle a child that agreed to end."""
        child.retiring = True
        for process in self._processes.managed:
            if process.child is child:
                process.leave()
        if not self._stopping.begun:
            self._stopping.see_it_end(child)


def _serve(address: Address, children: Iterable[Child]) -> int:
    """Return how many of these children serve an address."""
    return sum(any(held.base == address for held, _ in child.leases) for child in children)
