"""The reporter: passes every problem of a worker or client to the app's observers and to the log."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Protocol

from millstream.model.address import Address
from millstream.reporting.problem import During, Problem

STRAGGLER_SECONDS = 1.0
"""An error this soon after a reconnect belongs to the previous outage. This applies once per operation and outage."""


class Audience(Protocol):
    """Receives problems."""

    @property
    def listening(self) -> bool: ...
    def tell(self, problem: Problem) -> None: ...


class Reporter:
    """Passes each problem to the observers, and the first of a streak to the log.

    A streak is a series of failures of the same operation at the same address: ``fail`` continues it, and the first success
    ends it (``heal``). A problem of a single job or event has no streak: use ``tell``; the caller logs it.
    """

    def __init__(self, audience: Audience | None, log: logging.Logger, *, worker: str | None = None) -> None:
        self._audience = audience
        self._log = log
        self.worker = worker
        """Id of the worker that reports, or ``None`` for a client."""
        self._rows: dict[tuple[During, str | None], tuple[int, int]] = {}
        """Length and highest log level of each streak, by operation and address."""
        self._away_since: dict[str, float] = {}
        """When each unreachable server was first missed."""
        self._missed: dict[tuple[During, str | None], str] = {}
        """Operations whose last call did not reach this server."""
        self._back_at = float("-inf")
        self._stragglers: set[tuple[During, str | None]] = set()
        """Operations that have failed since the reconnect."""

    @property
    def observed(self) -> bool:
        """Whether there are observers. If not, callers need not create an error."""
        return self._audience is not None and self._audience.listening

    @property
    def troubled(self) -> bool:
        """Whether an operation is failing: it has a streak that ``heal`` has not ended yet."""
        return bool(self._rows)

    def tell(
        self,
        during: During,
        address: Address | None,
        error: BaseException,
        *,
        job_id: str | None = None,
        attempt: int | None = None,
        crash: bool = False,
        streak: int = 1,
    ) -> None:
        """Report a problem to the observers, and not to the log."""
        if self._audience is not None and self._audience.listening:
            self._audience.tell(
                Problem(
                    during=during,
                    error=error,
                    at=datetime.now(UTC),
                    address=None if address is None else str(address),
                    worker=self.worker,
                    job_id=job_id,
                    attempt=attempt,
                    crash=crash,
                    streak=streak,
                )
            )

    def fail(
        self,
        during: During,
        address: Address | None,
        error: BaseException,
        text: str,
        *values: object,
        level: int = logging.WARNING,
        crash: bool = False,
    ) -> None:
        """Report a failure. The first of a streak is logged at ``level``, the others at debug unless their level is higher.

        A crash is logged with its traceback.
        """
        news = self._count(during, address, error, level, crash=crash)
        self._log.log(level if news else logging.DEBUG, text, *values, exc_info=error if crash else None)

    def heal(self, during: During, address: Address | None) -> None:
        """End a streak, because the operation succeeded."""
        self._rows.pop((during, address), None)

    def miss(self, during: During, address: Address | None, error: BaseException, server: str = "") -> None:
        """Report that a worker did not reach the server, or one node of a cluster. The first failed operation begins an outage,
        and the first of these operations that succeeds again ends it. Each is logged once."""
        self._count(during, address, error, logging.WARNING)
        before = self._missed.get((during, address), server)
        self._missed[during, address] = server
        if before not in self._missed.values():  # its queues have moved to another node
            self._away_since.pop(before, None)
        late = time.monotonic() - self._back_at < STRAGGLER_SECONDS and (during, address) not in self._stragglers
        if server not in self._away_since and late:
            self._stragglers.add((during, address))
            self._log.debug("a call on the old connection failed: %s", error)
        elif server not in self._away_since:
            self._away_since[server] = time.monotonic()
            text = "%s is unreachable; no new job starts until it is back, and outcomes are kept: %s"
            self._log.warning(text, _named(server), error)
        else:
            self._log.debug("%s is still unreachable: %s", _named(server), error)

    def reach(self, during: During, address: Address | None) -> None:
        """Report that an operation that missed its server has succeeded."""
        self.heal(during, address)
        server = self._missed.pop((during, address), "")
        since = self._away_since.pop(server, None)
        if since is not None:
            self._log.info("%s is back after %.1f s", _named(server), time.monotonic() - since)
            self._back_at = time.monotonic()
            self._stragglers.clear()

    def pass_on(self, problem: Problem) -> None:
        """Pass a problem from another process to the observers."""
        if self._audience is not None:
            self._audience.tell(problem)

    def _count(self, during: During, address: Address | None, error: BaseException, level: int, *, crash: bool = False) -> bool:
        """Add a failure to its streak. Return whether its level is higher than that of all before it."""
        before, loudest = self._rows.get((during, address), (0, logging.NOTSET))
        self._rows[during, address] = before + 1, max(loudest, level)
        self.tell(during, address, error, crash=crash, streak=before + 1)
        return level > loudest


def _named(server: str) -> str:
    return f"node {server}" if server else "the server"
