"""The circuit breaker of a managed process: how soon a child that died is replaced, and when no more. No I/O."""

from __future__ import annotations

RESTART_SECONDS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Waits before a child that died is started again; longer when it dies again soon."""

SOON_SECONDS = 5.0
"""A child that lived this long was not one that dies at once."""

FRUITLESS = 5
"""So many in a row that died at once, without a job in their hands, open the circuit."""

PROBE_SECONDS = 60.0
"""How long a circuit stays open before one process is tried again."""


class Circuit:
    """Closed, or open since one child after another died at once.

    A death counts if the child had not begun to serve, or died within SOON_SECONDS with empty hands. One that held jobs was
    killed by a job, as far as anybody knows: that job is on its way to the dead letters, and the place is a good one.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.fruitless = 0
        """Children in a row that died at once without a job."""
        self._quick = 0
        """Children in a row that died at once."""

    def died(self, lived: float, *, blameless: bool) -> bool:
        """A child died after serving for ``lived`` seconds. ``blameless``: it died of a job. True: the circuit opens now."""
        quick = lived <= SOON_SECONDS
        self._quick = self._quick + 1 if quick else 0
        self.fruitless = 0 if blameless or not quick else self.fruitless + 1
        if self.is_open:
            self.is_open = quick and not blameless
            return self.is_open
        self.is_open = self.fruitless >= FRUITLESS
        return self.is_open

    def serves(self) -> None:
        """A child lives and has served for SOON_SECONDS."""
        self.is_open, self.fruitless, self._quick = False, 0, 0

    @property
    def pause(self) -> float:
        """Seconds until the next child may be started."""
        if self.is_open:
            return PROBE_SECONDS
        return RESTART_SECONDS[min(self._quick, len(RESTART_SECONDS) - 1)]
