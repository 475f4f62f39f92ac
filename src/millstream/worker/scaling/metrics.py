"""The input of a scaling strategy. Values, no I/O."""

from __future__ import annotations

import msgspec

from millstream.model.address import Address


class Load(msgspec.Struct, frozen=True):
    """The load of one address, with all its shards."""

    address: Address
    ready: int = 0
    """Messages that are ready to be claimed. For a group, this includes events that were not delivered yet."""
    due: int = 0
    """Scheduled messages that are due, but not ready yet because no worker has claimed since."""
    running: int = 0
    rate: float | None = None
    """Outcomes per second of one process that works only on this address and never waits. None: not measured yet."""
    throughput: float = 0.0
    """Recent outcomes per second of all processes together."""
    consumers: int = 0
    """Number of processes of all workers that serve the address."""
    ours: int = 0
    """Number of these processes that are counted in ``Metrics.processes``."""
    slots: int = 32
    """Number of messages of this address that one process runs at the same time."""
    least: int = 0
    most: int | None = None
    """``consumers=(least, most)``: bounds for the number of processes over all workers. Shards also limit ``most``."""
    paused: bool = False
    suspects: int = 0
    """Messages that must run alone, in a spare process: more processes do not help. Not included in ``ready``."""

    @property
    def waiting(self) -> int:
        """Messages that could start now if slots were free: 0 for a paused address. Blocked messages are not included."""
        return 0 if self.paused else self.ready + self.due

    @property
    def backlog(self) -> int:
        """Messages that are waiting or running."""
        return self.waiting + self.running

    @property
    def share(self) -> float:
        """The part of the load that this worker scales for. Other workers that serve the address scale for the rest."""
        ours = max(1, self.ours)
        return ours / (ours + max(0, self.consumers - self.ours))


class Metrics(msgspec.Struct, frozen=True):
    """The figures by which a strategy decides."""

    processes: int
    """Current number of processes."""
    minimum: int
    maximum: int
    concurrency: int
    """Number of jobs of all addresses that one process runs at the same time."""
    loads: tuple[Load, ...] = ()

    def within(self, wanted: int) -> int:
        """Return ``wanted``, brought within the worker's bounds and the minimum that addresses need (``consumers``)."""
        least = max([self.minimum, *(load.least - max(0, load.consumers - load.ours) for load in self.loads)])
        return max(self.minimum, min(self.maximum, max(least, wanted)))

    def __str__(self) -> str:
        waiting, running = sum(load.waiting for load in self.loads), sum(load.running for load in self.loads)
        rates = [load.rate for load in self.loads if load.rate is not None and load.backlog]
        rate = f", {min(rates):.3g}/s per process" if rates else ""
        return f"{waiting:,} waiting, {running:,} running{rate}"
