"""The figures of the scaler for those outside (KEDA, an HPA): how many processes each address wants, by the same strategies.

Needs a server alone, no supervisor and no user code. Rates are those that supervisors have measured and registered, else what
is seen while it looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from millstream.broker import Inspector
from millstream.model.address import Address
from millstream.worker.scaling.gauge import MEASURE_SECONDS, Gauge
from millstream.worker.scaling.metrics import Load, Metrics
from millstream.worker.scaling.strategies import Strategy

CONCURRENCY = 32
"""Slots of a process, as long as nobody says otherwise: what ``millstream worker`` has."""


MOST = 10_000
"""The bound is the outside scaler's to set."""


class Wanted(msgspec.Struct, frozen=True):
    """How many processes an address wants, and by which figures."""

    address: Address
    wanted: int
    processes: int
    """That serve it now, of all workers."""
    ready: int
    due: int
    running: int
    rate: float | None
    """Jobs that one process does per second; None: it was never measured."""
    throughput: float
    """Jobs that all do per second, while it was looked at."""
    paused: bool


class Forecast:
    """What is wanted, look by look. The first look knows no rates but those that supervisors have registered."""

    def __init__(self, inspector: Inspector, strategy: Strategy, *, concurrency: int = CONCURRENCY) -> None:
        self._inspector = inspector
        self._strategy = strategy
        self._concurrency = concurrency
        self._gauge: Gauge | None = None
        self._letters: set[Address] = set()
        """Where dead letters are handled: told of from then on, also when there are none."""

    async def look(self) -> list[Wanted]:
        """Every address, as it is now."""
        if self._gauge is None:
            known: dict[str, float] = {}
            for supervisor in await self._inspector.supervisors():
                known |= {} if supervisor.team is None else supervisor.team.rates
            self._gauge = Gauge(self._inspector, time.monotonic, known)
        loads = await self._gauge.read(await _addresses(self._inspector, self._letters))
        self._letters |= {load.address for load in loads if load.address.is_dead and _is_read(load)}
        return [self._weigh(load) for load in loads if not load.address.is_dead or load.address in self._letters]

    def _weigh(self, load: Load) -> Wanted:
        load = msgspec.structs.replace(load, ours=load.consumers, slots=self._concurrency)
        metrics = Metrics(load.consumers, 0, MOST, self._concurrency, (load,))
        anything = load.backlog or (load.suspects and not load.paused)
        wanted = max(metrics.within(self._strategy(metrics)), int(bool(anything)))  # one begins to claim, and to measure
        return Wanted(
            load.address,
            wanted,
            load.consumers,
            load.ready,
            load.due,
            load.running,
            load.rate,
            load.throughput,
            load.paused,
        )


async def wanted(
    inspector: Inspector, strategy: Strategy, *, concurrency: int = CONCURRENCY, window: float = MEASURE_SECONDS
) -> list[Wanted]:
    """How many processes each address wants, after having looked for ``window`` seconds."""
    forecast = Forecast(inspector, strategy, concurrency=concurrency)
    until = time.monotonic() + window
    found = await forecast.look()
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, 1.0))
        found = await forecast.look()
    return found


async def _addresses(inspector: Inspector, letters: Collection[Address]) -> list[Address]:
    """Every queue and group; also where dead letters are, or were handled: somebody may be there to do that."""
    found = [Address(name) for name in await inspector.queues()]
    served = {*letters, *(Address(name).base for worker in await inspector.workers() for name in worker.queues)}
    for name in await inspector.topics():
        for group in (await inspector.topic(name)).groups:
            address = Address.of_group(name, group.name)
            found.append(address)
            if group.dead or address.dead in served:
                found.append(address.dead)
    return found


def _is_read(load: Load) -> bool:
    """Whether anybody handles the dead letters there, or did: for those of others none are ready."""
    return bool(load.ready or load.running or load.suspects or load.consumers or load.throughput)


def as_prometheus(found: Iterable[Wanted]) -> str:
    """In the text format that Prometheus reads."""
    lines: list[str] = []
    for field, help in _GAUGES.items():
        lines += [f"# HELP millstream_{field} {help}", f"# TYPE millstream_{field} gauge"]
        lines += [f'millstream_{field}{{address="{_escaped(each.address)}"}} {_value(each, field)}' for each in found]
    return "\n".join(lines) + "\n"


_GAUGES = {
    "processes_wanted": "Worker processes that an address wants.",
    "processes": "Worker processes that serve it.",
    "ready": "Messages that are ready to be claimed.",
    "due": "Messages that are due, and not ready since nobody has claimed.",
    "running": "Messages that are being handled.",
}


def _value(wanted: Wanted, field: str) -> Any:
    return wanted.wanted if field == "processes_wanted" else getattr(wanted, field)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
