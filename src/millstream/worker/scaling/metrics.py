"""What a strategy is told. Values, no I/O."""

from __future__ import annotations

import msgspec

from millstream.model.address import Address


class Load(msgspec.Struct, frozen=True):
    """What there is to do at one address, with all its shards."""

    address: Address
    ready: int = 0
    """Ready to be claimed: in a group, what it was not given yet is in it."""
    due: int = 0
    """Scheduled and due, but not ready yet since nobody has claimed."""
    running: int = 0
    rate: float | None = None
    """Outcomes per second of one process that has nothing else to do and enough of this; None: never measured yet."""
    throughput: float = 0.0
    """Outcomes per second of all processes together, lately."""
    consumers: int = 0
    """Processes of all workers that serve it."""
    ours: int = 0
    """Those of them that are counted in ``Metrics.processes``."""
    slots: int = 32
    """How many of it one process runs at once."""
    least: int = 0
    most: int | None = None
    """``consumers=(least, most)``: how many processes may serve it, over all workers; with shards, no more than these."""
    paused: bool = False
    suspects: int = 0
    """Set aside to run alone, in a spare process, one after the other: no process more is of use to them. Not in ``ready``."""

    @property
    def waiting(self) -> int:
        """What could start now if there were a slot. Of a paused address nothing could; blocked ones wait for their keys."""
        return 0 if self.paused else self.ready + self.due

    @property
    def backlog(self) -> int:
        """All that is to be done now."""
        return self.waiting + self.running

    @property
    def share(self) -> float:
        """Which part of it is ours to do: others serve it, too, and scale by the same figures."""
        ours = max(1, self.ours)
        return ours / (ours + max(0, self.consumers - self.ours))


class Metrics(msgspec.Struct, frozen=True):
    """What a strategy decides by."""

    processes: int
    """That there are now."""
    minimum: int
    maximum: int
    concurrency: int
    """How many jobs one process runs at once, of all it serves."""
    loads: tuple[Load, ...] = ()

    def within(self, wanted: int) -> int:
        """A number of processes within the bounds: the worker's own, and what addresses need at least (``consumers``)."""
        least = max([self.minimum, *(load.least - max(0, load.consumers - load.ours) for load in self.loads)])
        return max(self.minimum, min(self.maximum, max(least, wanted)))

    def __str__(self) -> str:
        waiting, running = sum(load.waiting for load in self.loads), sum(load.running for load in self.loads)
        rates = [load.rate for load in self.loads if load.rate is not None and load.backlog]
        rate = f", {min(rates):.3g}/s a process" if rates else ""
        return f"{waiting:,} waiting, {running:,} running{rate}"
