"""The gauge: reads backlogs and measures rates.

Rates come from the totals of the addresses, not from reports of processes: totals include all workers on all machines, outlive
processes, and can be read with only the URL. A rate is measured only while messages wait, because otherwise it shows the
demand and not the capacity. It counts only the part of a process that is busy with the address.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from millstream.broker import Inspector, QueueState, WorkerInfo
from millstream.model.address import Address
from millstream.worker.scaling.metrics import Load

MEASURE_SECONDS = 2.0
"""Seconds for which an address must be observed before its rate is known."""

WINDOW_SECONDS = 10.0
"""Length of the measured window. It is extended up to LONG_WINDOW_SECONDS until it contains WINDOW_OUTCOMES outcomes."""
WINDOW_OUTCOMES = 20
LONG_WINDOW_SECONDS = 60.0

KNOWN_SECONDS = 5.0
"""Seconds for which the list of workers and the numbers of shards are cached, so that an idle worker sends few commands."""


@dataclass(slots=True)
class _Stretch:
    """The time between two readings."""

    seconds: float
    outcomes: int
    process_seconds: float


@dataclass(slots=True)
class _History:
    """The measurements of one address."""

    at: float
    outcomes: int
    waiting: int
    busy: float
    rate: float | None = None
    loaded: deque[_Stretch] = field(default_factory=deque)
    """Stretches during which messages were waiting all the time."""
    lately: deque[_Stretch] = field(default_factory=deque)


class Gauge:
    """Reads loads. Read it about once per second: each reading improves the rates."""

    def __init__(self, inspector: Inspector, clock: Callable[[], float], known: Mapping[str, float] | None = None) -> None:
        self._inspector = inspector
        self._clock = clock
        self._known = dict(known or {})
        """Rates that other supervisors have measured."""
        self._seen: dict[str, _History] = {}
        self._shards: dict[str, int] = {}
        self._workers: list[WorkerInfo] = []
        self._known_until = float("-inf")

    @property
    def rates(self) -> dict[str, float]:
        """Outcomes per second of one process, by address, where measured."""
        return {address: seen.rate for address, seen in self._seen.items() if seen.rate is not None}

    async def read(self, addresses: Iterable[Address]) -> list[Load]:
        """Return the current load of each address."""
        if self._clock() >= self._known_until:
            self._shards.clear()
            self._workers = await self._inspector.workers()
            self._known_until = self._clock() + KNOWN_SECONDS
        states = {address: await self._state(address) for address in addresses}
        workers = self._workers
        for address, (state, due) in states.items():
            if state.shards:  # each shard has one consumer, and a process may own several shards
                serving = sum(address in (Address(name).base for name in worker.queues) for worker in workers)
                states[address] = msgspec.structs.replace(state, consumers=serving), due
        shares = _busy_with(states, workers)
        now = self._clock()
        loads: list[Load] = []
        for address, (state, due) in states.items():
            seen = self._see(now, state, due, shares[address] * state.consumers)
            loads.append(
                Load(
                    address,
                    state.ready - state.suspects,
                    due,
                    state.running,
                    seen.rate if seen.rate is not None else self._known.get(address),
                    _per_second(seen.lately),
                    state.consumers,
                    most=state.shards or None,  # each shard has one owner at a time
                    paused=state.paused,
                    suspects=state.suspects,
                )
            )
        return loads

    async def _state(self, address: Address) -> tuple[QueueState, int]:
        """Return the state of an address, summed over its shards, and its number of due messages."""
        whose = address.sharded
        if whose not in self._shards:
            self._shards[whose] = await self._inspector.shards(whose)
        shards = self._shards[whose]
        places = address.shards(shards)
        states = [await self._inspector.queue(place) for place in places]
        state = _sum(address, states) if shards else states[0]
        return state, sum([await self._inspector.due(place) for place in places])

    def _see(self, now: float, state: QueueState, due: int, busy: float) -> _History:
        outcomes = sum(state.totals.get(total, 0) for total in ("done", "retried", "dead", "expired"))
        waiting = 0 if state.paused else state.ready - state.suspects + due
        seen = self._seen.get(state.queue)
        if seen is None or outcomes < seen.outcomes:  # a new address, or the server was flushed
            rate = None if seen is None else seen.rate
            seen = self._seen[state.queue] = _History(now, outcomes, waiting, busy, rate)
            return seen
        seconds = now - seen.at
        if seconds <= 0:
            return seen
        stretch = _Stretch(seconds, outcomes - seen.outcomes, seconds * (busy + seen.busy) / 2)
        _append(seen.lately, stretch, WINDOW_SECONDS / 2, 0)
        if waiting and seen.waiting:
            _append(seen.loaded, stretch, WINDOW_SECONDS, WINDOW_OUTCOMES)
            seen.rate = _rate(seen.loaded, seen.rate)
        else:
            seen.loaded.clear()
            if seen.rate is not None and state.consumers:  # the observed throughput is a lower bound of the rate
                seen.rate = max(seen.rate, stretch.outcomes / (seconds * state.consumers))
        seen.at, seen.outcomes, seen.waiting, seen.busy = now, outcomes, waiting, busy
        return seen


def _rate(loaded: Collection[_Stretch], before: float | None) -> float | None:
    """Return the outcomes per second of one process. If there was no outcome, assume at most one in the observed time."""
    process_seconds = sum(stretch.process_seconds for stretch in loaded)
    if sum(stretch.seconds for stretch in loaded) < MEASURE_SECONDS or process_seconds <= 0:
        return before
    outcomes = sum(stretch.outcomes for stretch in loaded)
    if outcomes:
        return outcomes / process_seconds
    bound = 1 / process_seconds
    return bound if before is None else min(before, bound)


def _append(stretches: deque[_Stretch], stretch: _Stretch, seconds: float, outcomes: int) -> None:
    stretches.append(stretch)
    while len(stretches) > 1:
        left, did = sum(each.seconds for each in stretches), sum(each.outcomes for each in stretches)
        enough = did - stretches[0].outcomes >= outcomes or left > LONG_WINDOW_SECONDS
        if left - stretches[0].seconds < seconds or not enough:
            return
        stretches.popleft()


def _per_second(stretches: Collection[_Stretch]) -> float:
    seconds = sum(stretch.seconds for stretch in stretches)
    return sum(stretch.outcomes for stretch in stretches) / seconds if seconds else 0.0


def _busy_with(states: Mapping[Address, tuple[QueueState, int]], workers: Sequence[WorkerInfo]) -> dict[str, float]:
    """Return for each address the average part of its processes that is busy with it: they may serve other addresses, too."""
    parts: dict[str, list[float]] = {address: [] for address in states}
    for worker in workers:
        serves = [address for address in dict.fromkeys(Address(name).base for name in worker.queues) if address in states]
        running = {address: states[address][0].running for address in serves}
        for address in serves:
            parts[address].append(running[address] / sum(running.values()) if any(running.values()) else 1 / len(serves))
    return {address: sum(found) / len(found) if found else 1.0 for address, found in parts.items()}


def _sum(address: Address, states: Sequence[QueueState]) -> QueueState:
    totals: dict[str, int] = {}
    for state in states:
        for name, count in state.totals.items():
            totals[name] = totals.get(name, 0) + count
    return QueueState(
        str(address),
        sum(state.ready for state in states),
        sum(state.running for state in states),
        sum(state.scheduled for state in states),
        sum(state.dead for state in states),
        any(state.paused for state in states),
        sum(state.consumers for state in states),
        totals,
        shards=len(states),
        suspects=sum(state.suspects for state in states),
    )
