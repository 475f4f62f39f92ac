"""What happened, as values: enqueues, runs, faults. No I/O."""

from __future__ import annotations

from typing import Literal, NamedTuple

Fate = Literal["accepted", "unknown", "refused"]
"""What a producer was told: it exists; nobody knows, send it again under its id; it does not exist and never ran."""

How = Literal["cut", "end", "failed", "snoozed", "broken"]
"""How a run ended: not at all, as far as its process could tell; well; by an exception of its own; by asking for a later run
of the same attempt; by being stopped."""


class Enqueue(NamedTuple):
    """An answer to one enqueue. A key that was sent again has several; the last one counts."""

    key: str
    job_id: str
    fate: Fate
    at: float


class Run(NamedTuple):
    """One start of one handler."""

    key: str
    job_id: str
    pid: int
    attempt: int
    crashes: int
    began: float
    ended: float | None = None
    how: How = "cut"


class Fault(NamedTuple):
    """Something that was done to processes or servers, and what it may lead to."""

    name: str
    began: float
    ended: float
    pids: tuple[int, ...] = ()
    """The worker processes it struck; none named: all of them."""
    kills: bool = False
    """They are dead once it has ended: what they were running is run again."""
    fences: bool = False
    """Nobody could renew their leases meanwhile: if that took longer than a lease, what they were running is run again."""
    forgets: bool = False
    """The server forgot who was running what."""
    forgets_starts: bool = False
    """The server also forgot what had been started at all: even what may start only once is started again."""
    loses_since: float | None = None
    """The server lost data: what it wrote after this moment, jobs or what became of them, may be gone."""
    away: bool = False
    """Nothing could be written meanwhile."""
    restarts: bool = False
    """The server began a new life."""
    held: tuple[str, ...] = ()
    """Ids of the jobs that the server says the killed processes held."""


class History(NamedTuple):
    """Everything that happened in one case."""

    enqueues: list[Enqueue]
    runs: list[Run]
    faults: list[Fault]
