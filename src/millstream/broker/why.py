"""Why a job is not running, as a value, and what an inspector reads to find out. The reasoning is in ``explaining``."""

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

running, done, dead, cancelled, expired   the job's state: it runs, or it has ended
unknown        the server knows no job of this id
read_only      the server is a replica and takes no writes
full           the server's disk or memory is full, so it refuses writes
scheduled      it is not due yet, or its handler snoozed it
retry          an attempt failed, and the next one is not due yet
stopped_key    an earlier message with its key failed, and the key waits to be cleared
blocked        an earlier message with its key has not ended
paused         its queue or group is paused
no_worker      no worker serves its queue or group
unknown_task   no worker of its queue knows its task
suspect        workers died while they ran it, so it waits to run alone
busy           every worker that can run it is at its limit
ready          nothing stands in its way: a worker will claim it in its turn
"""


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is not running. ``text`` is a sentence about the job, without a subject of its own: "it is …"."""

    code: WhyCode
    text: str
    also: tuple[WhyCode, ...] = ()
    """What else holds it up, from ``read_only``, ``full``, ``paused`` and ``no_worker``; ``text`` says these, too."""
    at: float | None = None
    """Epoch seconds: when it is due (scheduled, retry), since when it runs (running), when it died (dead, stopped_key)."""
    error: str = ""
    """The last error, as ``Type: text`` (retry, dead)."""
    job: str = ""
    """The id of the job ahead of it (blocked), or of the one whose failure stopped the key (stopped_key)."""
    key: bytes | None = None
    """The ordering key (blocked, stopped_key)."""
    workers: tuple[str, ...] = ()
    """Ids of the workers that it is about: the one that runs it, or those that do not know its task or are at their limit."""

    def __str__(self) -> str:
        return self.text


class Standing(msgspec.Struct, frozen=True):
    """Where a job stands at its address: the time there, its ordering key, and who has the key's turn."""

    now: float
    """Epoch seconds, server time."""
    key: bytes | None = None
    """Its ordering key, or ``None`` if it has none."""
    turn: str = ""
    """The id of the job that has the turn of the key; empty if no job has it."""
    stopped_by: str = ""
    """The id of the job whose failure stopped the key; empty if the key is not stopped."""


class Trouble(msgspec.Struct, frozen=True):
    """Why a server refuses writes."""

    code: Literal["read_only", "full"]
    text: str
    claims: bool = False
    """Workers can still claim and settle jobs: only new ones are refused."""


def key_text(key: bytes) -> str:
    """An ordering key as people read it."""
    return key.decode(errors="backslashreplace")
