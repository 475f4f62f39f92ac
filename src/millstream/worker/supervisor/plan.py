"""What a supervisor is to run."""

from __future__ import annotations

import msgspec

from millstream.worker import messages


class Plan(msgspec.Struct, frozen=True):
    """What to run, and in how many processes."""

    orders: messages.Orders
    processes: int = 1
    """To begin with, and never fewer."""
    maximum: int | None = None
    """Never more; None: as many as to begin with."""
    strategy: str = "backlog"
    """By which it scales between the two, as it is written on a command line."""
    reload: bool = False

    @property
    def most(self) -> int:
        return self.processes if self.maximum is None else self.maximum

    @property
    def scales(self) -> bool:
        """Whether the number of processes may change."""
        return self.most > self.processes
