"""The stabilizer: hysteresis and cooldown around any strategy, so that processes do not come and go with every gust. No I/O."""

from __future__ import annotations

from collections.abc import Callable


class Stabilizer:
    """Lets a wish through when it has been the same way for ``hysteresis`` seconds, and none for ``cooldown`` seconds after
    something was done.

    Only what was really done begins a cooldown (``acted``): a refusal does not. How long a wish lasts is watched during a
    cooldown, too, so that one which ended meanwhile does not count when it comes back.
    """

    def __init__(self, hysteresis: float, cooldown: float, clock: Callable[[], float]) -> None:
        self._hysteresis = hysteresis
        self._cooldown = cooldown
        self._clock = clock
        self._way = 0
        self._since = 0.0
        self._cool_at = float("-inf")

    def passes(self, now: int, wanted: int) -> bool:
        """Whether to go from ``now`` to ``wanted`` processes at this moment. To be asked at every poll."""
        moment = self._clock()
        way = (wanted > now) - (wanted < now)
        if way != self._way:
            self._way, self._since = way, moment
        return way != 0 and moment - self._since >= self._hysteresis and moment >= self._cool_at

    def acted(self) -> None:
        """Something was done."""
        self._way = 0
        self._cool_at = self._clock() + self._cooldown
