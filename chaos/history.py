"""The history of a case as values: enqueues, runs, faults. No I/O."""

from __future__ import annotations

from typing import Literal, NamedTuple

Fate = Literal["accepted", "unknown", "refused"]
"""The producer's answer. ``unknown``: send the job again with its id. ``refused``: the job does not exist and never ran."""

How = Literal["cut", "end", "failed", "snoozed", "broken"]
"""How a run ended. ``cut``: its process recorded no end. ``end``: success. ``failed``: the handler raised on purpose.
``snoozed``: the handler requested a later run of the same attempt. ``broken``: the run was stopped."""


class Enqueue(NamedTuple):
    """The answer to one enqueue. A key that was sent again has several answers, and the last one counts."""

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
    """A disturbance of processes or servers, and its possible consequences."""

    name: str
    began: float
    ended: float
    pids: tuple[int, ...] = ()
    """The worker processes that were struck; empty: all of them."""
    kills: bool = False
    """The processes are dead when the fault ends, so their running jobs run again."""
    fences: bool = False
    """Nobody could renew the processes' leases during the fault. If that took longer than a lease, running jobs run again."""
    forgets: bool = False
    """The server forgot which process was running which job."""
    forgets_starts: bool = False
    """The server also forgot which jobs were started, so even at-most-once jobs may start again."""
    loses_since: float | None = None
    """The server lost data: jobs and outcomes written after this time may be gone."""
    away: bool = False
    """Nothing could be written during the fault."""
    restarts: bool = False
    """The server restarted."""
    held: tuple[str, ...] = ()
    """Ids of the jobs that the killed processes held, according to the server."""


class History(NamedTuple):
    """Everything that happened in one case."""

    enqueues: list[Enqueue]
    runs: list[Run]
    faults: list[Fault]
