"""What goes into a backend's verbs and comes out of them."""

from __future__ import annotations

import math
import re
from enum import Enum

import msgspec

from millstream.model.ending import encode_cancelled

OVERDUE_SECONDS = 1.5
"""A lease that is past its deadline lapses only if it is still overdue this long after it was first seen so."""

SUSPECT_AFTER = 2
"""From this many crashes on a message runs with nothing beside it, so that its neighbours are never blamed."""

CANCELLED_TTL = 600.0
"""Seconds for which the ending of a cancelled job is kept."""


REQUEST_SECONDS = 60.0
"""How long a broker remembers what it answered to a named request."""


class Post(msgspec.Struct, frozen=True, gc=False):
    """One job to publish."""

    id: str
    body: bytes
    """The encoded Message."""
    task: str = ""
    """Compared when a given id is used again."""
    serial: int = 0
    """For a generated id ``<sender>-<serial>``: its number, rising by one per sender and queue. 0: the caller gave the id."""
    delay: float = 0.0
    """Seconds from acceptance until it is due."""
    at: float = 0.0
    """Or the moment it is due, in epoch seconds; 0: use ``delay``."""
    expires: float = 0.0
    """Seconds from acceptance until it must have been claimed; 0: never expires."""
    expires_at: float = 0.0
    """Or the moment it expires, in epoch seconds; 0: use ``expires``."""
    key: bytes | None = None
    """Messages of one key are given one at a time and in this order. None: it is in no order."""
    request: str = ""
    """For a given id: names this request, so that the same post sent again is CREATED again, not EXISTS."""
    id_ttl: float | None = None
    """For a given id: seconds for which it is remembered after the job has ended; 0: it is free then, unless the job is dead,
    which keeps it until it is purged. None: as the backend says."""


class OrderRules(msgspec.Struct, frozen=True):
    """What holds at an address for messages that have a key."""

    stop: bool = False
    """When one is dead, what follows of its key dies too (``stopped``), until it is cleared; otherwise the next goes on."""
    max_pending: int = 1000
    """While a key waits for a retry: when so many wait behind it, those that come die (``pending_full``)."""


class Membership(msgspec.Struct, frozen=True):
    """Who shares the shards of an address."""

    members: list[str]
    """Sorted."""
    next_check: float | None = None
    """Seconds until the first of the others is overdue, unless it joins again; None: there are no others."""


LogPosition = str | float
"""Where a group reads on in its topic's log: BEGINNING, END, after an entry by its id, or from a moment in epoch seconds."""

BEGINNING = "beginning"
"""Everything the topic still keeps."""
END = "new"
"""What is published from now on."""

_ENTRY = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def parse_entry(position: str) -> tuple[int, int]:
    """The numbers that are an entry's id: its millisecond, and which of that millisecond's. ValueError: it is none."""
    found = _ENTRY.fullmatch(position)
    if found is None:
        raise ValueError(
            f"{position!r} is no position in a topic's log: {BEGINNING!r}, {END!r}, an entry's id, or epoch seconds"
        )
    ms, seq = int(found[1]), int(found[2] or 0)
    if max(ms, seq) >= 2**64:
        raise ValueError(f"{position!r} is no position in a topic's log: its numbers have 64 bits")
    return ms, seq


def millisecond_of(moment: float) -> int:
    """The millisecond in which a moment lies, as servers count them: never a later one, so that a group that is moved there
    misses nothing that was published after it."""
    return math.floor(moment * 1000 + 0.001)  # a microsecond is more than a float of our days is off


class Receipt(Enum):
    """What became of one Post."""

    CREATED = "created"
    EXISTS = "exists"
    """The id was accepted before, by this call's first sending or an earlier call; nothing was written."""
    FULL = "full"
    """``max_length`` is reached; nothing was written."""
    CONFLICT = "conflict"
    """The given id belongs to another task; nothing was written."""


class Cancellation(Enum):
    """What became of a cancel."""

    CANCELLED = "cancelled"
    RUNNING = "running"
    ENDED = "ended"
    """It is dead, done, cancelled, expired, or was never known."""


def cancelled_by(request: str) -> bytes:
    """The ending that a cancel writes."""
    return encode_cancelled(CANCELLED_TTL, request)


class Entry(msgspec.Struct, gc=False):
    """One claimed message. ``ref`` names the claim in every later verb."""

    ref: bytes
    body: bytes | None
    """None: an entry that another program wrote; its fields are in ``raw``."""
    crashes: int = 0
    """How many consumers died or lapsed while holding it."""
    expires_ms: int = 0
    """Server time in milliseconds at which it expires; 0: never."""
    raw: bytes = b""


def entry_name(ref: bytes) -> str:
    """What people are told of a claim: its entry. A backend may put more into a ref, behind a slash."""
    return ref.partition(b"/")[0].decode("ascii", "replace")


class Claim(msgspec.Struct, gc=False):
    """What a claim brought, and what the caller should know to plan the next one."""

    entries: list[Entry]
    now_ms: int
    """Server time."""
    next_due: float | None = None
    """Seconds until the earliest scheduled message is due; None: nothing is scheduled."""
    paused: bool = False
    suspects: bool = False
    """Suspects are waiting for a claim with ``alone=True``."""


class Position(msgspec.Struct, frozen=True):
    """How far someone who follows a topic has read its log. Made by ``follow`` and only good for it."""

    entry: str
    number: int
    """How many events had been published up to here."""
    life: str = ""
    """Of the log: another one has taken its place if this is another."""
    bell: str = ""
    """What was last rung for delayed events."""


UNKNOWN = -1
"""How many events were missed, if nobody knows but that it may be any number."""


class Followed(msgspec.Struct, gc=False):
    """What was read of a log, and what was not."""

    entries: list[Entry]
    position: Position
    """After the last of them."""
    missed: int
    """How many events before them had left the log when it was read, or UNKNOWN."""
    now_ms: int
    """Server time."""
    next_due: float | None = None
    """Seconds until the earliest delayed event is due; None: none is delayed."""


class Capabilities(msgspec.Struct, frozen=True):
    """What this backend and its server can do."""

    durable: bool
    shared: bool
    """Other processes see the same queues."""
    server: str = ""
    """Name and version, for people."""
