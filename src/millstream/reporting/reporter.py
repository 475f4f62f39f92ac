"""The reporter: every problem of a worker or client goes through here, to the app's observers and to the log."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Protocol

from millstream.model.address import Address
from millstream.reporting.problem import During, Problem

STRAGGLER_SECONDS = 1.0
"""Who misses the server so soon after another reached it again had asked before: that is no new outage, the first time."""


class Audience(Protocol):
    """Whoever is told of problems."""

    @property
    def listening(self) -> bool: ...
    def tell(self, problem: Problem) -> None: ...


class Reporter:
    """Tells observers of each problem, and the log of the first in a row.

    A row is what fails in the same place, doing the same, until it works again: ``fail`` goes on with it, ``heal`` ends it.
    What is about one job or event is no row: ``tell``, and the caller has told the log.
    """

    def __init__(self, audience: Audience | None, log: logging.Logger, *, worker: str | None = None) -> None:
        self._audience = audience
        self._log = log
        self.worker = worker
        """The id of the worker that reports; None for a client."""
        self._rows: dict[tuple[During, str | None], tuple[int, int]] = {}
        """How long each row is, and how loudly the log was told of it."""
        self._away_since: float | None = None
        self._back_at = float("-inf")
        self._stragglers: set[tuple[During, str | None]] = set()
        """Who has missed the server since."""

    @property
    def observed(self) -> bool:
        """Whether anyone is told. If not, nobody need go to the trouble of making an error."""
        return self._audience is not None and self._audience.listening

    @property
    def troubled(self) -> bool:
        """Whether there is a row that ``heal`` could end."""
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
        """Tell observers, and not the log."""
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
        """It failed once more. The log has the first of a row at ``level``, with its traceback if it is a crash, and the others
        as debug unless they are worse."""
        news = self._count(during, address, error, level, crash=crash)
        self._log.log(level if news else logging.DEBUG, text, *values, exc_info=error if crash else None)

    def heal(self, during: During, address: Address | None) -> None:
        """It works, again or still."""
        self._rows.pop((during, address), None)

    def miss(self, during: During, address: Address | None, error: BaseException) -> None:
        """A worker did not reach the server. It is away for all of it at once, and that is logged once each way: whoever first
        misses it begins the outage, whoever first reaches it again ends it."""
        self._count(during, address, error, logging.WARNING)
        late = time.monotonic() - self._back_at < STRAGGLER_SECONDS and (during, address) not in self._stragglers
        if self._away_since is None and late:
            self._stragglers.add((during, address))
            self._log.debug("the server was still away a moment ago: %s", error)
        elif self._away_since is None:
            self._away_since = time.monotonic()
            self._log.warning("the server is away; no new job starts until it is back, and outcomes are kept: %s", error)
        else:
            self._log.debug("the server is still away: %s", error)

    def reach(self, during: During, address: Address | None) -> None:
        """It reached the server again."""
        self.heal(during, address)
        if self._away_since is not None:
            self._log.info("the server is back after %.1f s", time.monotonic() - self._away_since)
            self._away_since = None
            self._back_at = time.monotonic()
            self._stragglers.clear()

    def pass_on(self, problem: Problem) -> None:
        """Tell observers of what went wrong elsewhere."""
        if self._audience is not None:
            self._audience.tell(problem)

    def _count(self, during: During, address: Address | None, error: BaseException, level: int, *, crash: bool = False) -> bool:
        """One more of a row; whether it is louder than all before it."""
        before, loudest = self._rows.get((during, address), (0, logging.NOTSET))
        self._rows[during, address] = before + 1, max(loudest, level)
        self.tell(during, address, error, crash=crash, streak=before + 1)
        return level > loudest
