"""The reasons why a job is not running, as values. The decision is made in ``explaining``."""

from __future__ import annotations

from typing import Literal

import msgspec

WhyCode = Literal[
    "running",
    "done",
    "dead",
    "cancelled",
    "expired",
    "unknown",
    "read_only",
    "full",
    "scheduled",
    "retry",
    "stopped_key",
    "blocked",
    "paused",
    "no_worker",
    "unknown_task",
    "suspect",
    "busy",
    "ready",
]
"""Why a job is not running: a closed list.

running, done, dead, cancelled, expired   the state of a job that runs or has ended
unknown        the server does not know this id
read_only      the server is a replica and takes no writes
full           the server's disk or memory is full, so it refuses writes
scheduled      it is not due yet, or its handler snoozed it
retry          an attempt failed, and the next one is not due yet
stopped_key    an earlier message with its key failed, and the key waits to be cleared
blocked        an earlier message with its key has not ended
paused         its queue or group is paused
no_worker      no worker serves its queue or group
unknown_task   no worker of its queue knows its task
suspect        workers crashed while running it, so it waits to run alone
busy           every worker that can run it is at its limit
ready          nothing holds it up: a worker will claim it
"""


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is not running. ``text`` is a sentence in which "it" is the job: "it is …"."""

    code: WhyCode
    text: str
    also: tuple[WhyCode, ...] = ()
    """Other causes, from ``read_only``, ``full``, ``paused`` and ``no_worker``. ``text`` names these too."""
    at: float | None = None
    """Epoch seconds: due time (scheduled, retry), start of the run (running), or time of death (dead, stopped_key)."""
    error: str = ""
    """The last error, as ``Type: text`` (retry, dead)."""
    job: str = ""
    """Id of the job ahead of this one (blocked), or of the job whose failure stopped the key (stopped_key)."""
    key: bytes | None = None
    """The ordering key (blocked, stopped_key)."""
    workers: tuple[str, ...] = ()
    """Ids of the workers concerned: the one that runs the job, or those that do not know its task or are at their limit."""

    def __str__(self) -> str:
        return self.text


class Standing(msgspec.Struct, frozen=True):
    """A job's situation at its address: the server time, its ordering key, and the job that has the key's turn."""

    now: float
    """Epoch seconds, server time."""
    key: bytes | None = None
    """Ordering key of the job, or ``None`` if it has none."""
    turn: str = ""
    """Id of the job that has the turn of the key; empty if no job has it."""
    stopped_by: str = ""
    """Id of the job whose failure stopped the key; empty if the key is not stopped."""


class Trouble(msgspec.Struct, frozen=True):
    """Why a server refuses writes."""

    code: Literal["read_only", "full"]
    text: str
    claims: bool = False
    """Workers can still claim and settle jobs; the server refuses only new jobs."""


def key_text(key: bytes) -> str:
    """Return an ordering key as text for people."""
    return key.decode(errors="backslashreplace")
