"""The scaler's figures for external scalers (KEDA, an HPA): the wanted number of processes per address.

Needs only a server, no supervisor and no user code. Rates are those that supervisors have measured and registered, or else are
measured here.
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
"""Default number of slots of a process: the default of ``millstream worker``."""


MOST = 10_000
"""Upper bound of the wanted number. The real bound is set in the external scaler."""


class Wanted(msgspec.Struct, frozen=True):
    """The wanted number of processes of an address, and the figures behind it."""

    address: Address
    wanted: int
    processes: int
    """Number of processes of all workers that serve the address now."""
    ready: int
    due: int
    running: int
    rate: float | None
    """Jobs per second of one process. None: never measured."""
    throughput: float
    """Jobs per second of all processes during the measurement."""
    paused: bool


class Forecast:
    """Computes the wanted numbers, reading by reading. The first reading only knows rates that supervisors have registered."""

    def __init__(self, inspector: Inspector, strategy: Strategy, *, concurrency: int = CONCURRENCY) -> None:
        self._inspector = inspector
        self._strategy = strategy
        self._concurrency = concurrency
        self._gauge: Gauge | None = None
        self._letters: set[Address] = set()
        """Addresses whose dead letters have a handler. They stay listed, even while they have no dead letters."""

    async def look(self) -> list[Wanted]:
        """Return the current figures of every address."""
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
        wanted = max(metrics.within(self._strategy(metrics)), int(bool(anything)))  # one process starts claiming and measuring
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
    """Return the wanted number of processes of each address, after measuring for ``window`` seconds."""
    forecast = Forecast(inspector, strategy, concurrency=concurrency)
    until = time.monotonic() + window
    found = await forecast.look()
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, 1.0))
        found = await forecast.look()
    return found


async def _addresses(inspector: Inspector, letters: Collection[Address]) -> list[Address]:
    """Return every queue and group, and the addresses of dead letters that exist or may have a handler."""
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
    """Return whether the dead letters of this address have or had a handler. Without one, dead letters are never ready."""
    return bool(load.ready or load.running or load.suspects or load.consumers or load.throughput)


def as_prometheus(found: Iterable[Wanted]) -> str:
    """Return the figures in the text format of Prometheus."""
    lines: list[str] = []
    for field, help in _GAUGES.items():
        lines += [f"# HELP millstream_{field} {help}", f"# TYPE millstream_{field} gauge"]
        lines += [f'millstream_{field}{{address="{_escaped(each.address)}"}} {_value(each, field)}' for each in found]
    return "\n".join(lines) + "\n"


_GAUGES = {
    "processes_wanted": "Worker processes wanted for an address.",
    "processes": "Worker processes that serve an address.",
    "ready": "Messages that are ready to be claimed.",
    "due": "Messages that are due, but not ready because no worker has claimed since.",
    "running": "Messages that are running.",
}


def _value(wanted: Wanted, field: str) -> Any:
    return wanted.wanted if field == "processes_wanted" else getattr(wanted, field)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
