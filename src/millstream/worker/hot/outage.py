"""An outage: the server is away for all of a worker at once, and that is said once each way."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("millstream.worker")


class Outage:
    """Whoever first misses the server begins it, whoever first reaches it again ends it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self, error: Exception) -> None:
        """Somebody did not reach the server."""
        if self._since is None:
            self._since = time.monotonic()
            log.warning("the server is away; no new job starts until it is back, and outcomes are kept: %s", error)
        else:
            log.debug("the server is still away: %s", error)

    def end(self) -> None:
        """Somebody reached the server."""
        if self._since is not None:
            log.info("the server is back after %.1f s", time.monotonic() - self._since)
            self._since = None
