"""The plan of a supervisor."""

from __future__ import annotations

import msgspec

from millstream.worker import messages


class Plan(msgspec.Struct, frozen=True):
    """The orders for the child processes, and their number."""

    orders: messages.Orders
    processes: int = 1
    """Number of processes at the start, and minimum."""
    maximum: int | None = None
    """Maximum number of processes. None: the same as ``processes``."""
    strategy: str = "backlog"
    """Scaling strategy, as written on the command line."""
    reload: bool = False

    @property
    def most(self) -> int:
        return self.processes if self.maximum is None else self.maximum

    @property
    def scales(self) -> bool:
        """Whether the number of processes may change."""
        return self.most > self.processes
