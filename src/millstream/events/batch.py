"""Handlers that take many events at once."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.model.settings import integer, seconds
from millstream.model.types import Seconds


@dataclass(frozen=True, slots=True)
class Batch:
    """A handler is given up to ``size`` events at once, those that came within ``wait`` seconds of the first.

    A batch that is not full is given earlier once nothing has come for a fifth of ``wait``.
    """

    size: int
    wait: Seconds = 0.25

    def __post_init__(self) -> None:
        integer(self.size, "Batch size", minimum=1)
        object.__setattr__(self, "wait", seconds(self.wait, "Batch wait"))
