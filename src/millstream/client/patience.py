"""How long and how often a client tries again when the server is away."""

from __future__ import annotations

from collections.abc import Iterator

PATIENCE_SECONDS = 5.0
"""A call that finds the server away is tried again for this long, then raises BrokerUnavailable."""

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5


def pauses() -> Iterator[float]:
    """Seconds to wait before each new try."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
