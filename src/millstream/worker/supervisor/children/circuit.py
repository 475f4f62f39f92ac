"""The circuit breaker of a managed process: how soon a dead child is replaced, and when not at all. No I/O."""

from __future__ import annotations

RESTART_SECONDS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before a dead child is replaced, by the number of consecutive quick deaths."""

SOON_SECONDS = 5.0
"""A child that serves for this many seconds or less before it dies counts as a quick death."""

FRUITLESS = 5
"""Number of consecutive quick deaths, of children that held no job, after which the circuit opens."""

PROBE_SECONDS = 60.0
"""Seconds for which a circuit stays open before one process is tried again."""


class Circuit:
    """Opens after consecutive quick deaths of children.

    A death counts if the child never served, or died within SOON_SECONDS without holding a job. If it held jobs, one of them
    probably killed it: that job will become a dead letter, and a new process can serve.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.fruitless = 0
        """Number of consecutive quick deaths of children that held no job."""
        self._quick = 0
        """Number of consecutive quick deaths."""

    def died(self, lived: float, *, blameless: bool) -> bool:
        """Count a child that died after serving for ``lived`` seconds. ``blameless``: a job may have killed the
        child, so this death does not open the circuit.

        Return True if the circuit opens now, or stays open.
        """
        quick = lived <= SOON_SECONDS
        self._quick = self._quick + 1 if quick else 0
        self.fruitless = 0 if blameless or not quick else self.fruitless + 1
        if self.is_open:
            self.is_open = quick and not blameless
            return self.is_open
        self.is_open = self.fruitless >= FRUITLESS
        return self.is_open

    def serves(self) -> None:
        """Close the circuit, because a child has served for SOON_SECONDS."""
        self.is_open, self.fruitless, self._quick = False, 0, 0

    @property
    def pause(self) -> float:
        """Seconds until the next child may be started."""
        if self.is_open:
            return PROBE_SECONDS
        return RESTART_SECONDS[min(self._quick, len(RESTART_SECONDS) - 1)]
