"""The stabilizer: hysteresis and cooldown for any strategy, so that short peaks do not start and end processes. No I/O."""

from __future__ import annotations

from collections.abc import Callable


class Stabilizer:
    """Allows a change if the strategy has wanted the same direction for ``hysteresis`` seconds, and the last change was at
    least ``cooldown`` seconds ago.

    Only a real change (``acted``) starts a cooldown; a refusal does not. The direction is also tracked during a cooldown. If it
    changes in between, the ``hysteresis`` time starts again.
    """

    def __init__(self, hysteresis: float, cooldown: float, clock: Callable[[], float]) -> None:
        self._hysteresis = hysteresis
        self._cooldown = cooldown
        self._clock = clock
        self._way = 0
        self._since = 0.0
        self._cool_at = float("-inf")

    def passes(self, now: int, wanted: int) -> bool:
        """Return whether to change from ``now`` to ``wanted`` processes at this moment. Call it at every poll."""
        moment = self._clock()
        way = (wanted > now) - (wanted < now)
        if way != self._way:
            self._way, self._since = way, moment
        return way != 0 and moment - self._since >= self._hysteresis and moment >= self._cool_at

    def acted(self) -> None:
        """Start a cooldown, because the number of processes was changed."""
        self._way = 0
        self._cool_at = self._clock() + self._cooldown
