"""Arguments and return values of a backend's verbs."""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import NamedTuple

import msgspec

from millstream.errors import BrokerUnavailable
from millstream.model.ending import encode_cancelled

OVERDUE_SECONDS = 1.5
"""Seconds for which a lease must stay overdue, counted from the first lease check that saw it, before it lapses."""

SUSPECT_AFTER = 2
"""Crashes after which a message is a suspect and runs alone, so that no other message is blamed for its crashes."""


class NotReplicated(BrokerUnavailable):
    """Too few replicas have acknowledged a write in time. Callers get it as BrokerUnavailable, without further attempts."""


CANCELLED_TTL = 600.0
"""Seconds for which the ending of a cancelled job is kept."""


REQUEST_SECONDS = 60.0
"""Seconds for which a broker remembers its answer to a named request."""


class Post(msgspec.Struct, frozen=True, gc=False):
    """One job or event to publish."""

    id: str
    body: bytes
    """The encoded Message."""
    task: str = ""
    """Task name. Compared when a caller reuses a given id."""
    serial: int = 0
    """Number of a generated id ``<sender>-<serial>``. It rises by one per sender and queue. 0: the caller gave the id."""
    delay: float = 0.0
    """Seconds from acceptance until the message is due."""
    at: float = 0.0
    """Due time in epoch seconds. 0: use ``delay``."""
    expires: float = 0.0
    """Seconds from acceptance until the message expires unless it was claimed. 0: it never expires."""
    expires_at: float = 0.0
    """Expiry time in epoch seconds. 0: use ``expires``."""
    key: bytes | None = None
    """Ordering key. Messages with the same key are delivered one at a time, in order. None: no ordering."""
    request: str = ""
    """Name of this request, for a given id. The same post sent again under this name returns CREATED again, not EXISTS."""
    id_ttl: float | None = None
    """Seconds for which a given id is remembered after the job has ended.

    None: the backend's default. 0: the id is free immediately. The id of a dead job is in use until its dead letter is purged.
    """


class OrderRules(msgspec.Struct, frozen=True):
    """Rules for messages with an ordering key at one address."""

    stop: bool = False
    """If true, a dead message stops its key: later messages of the key die too (reason ``stopped``) until the key is cleared.

    If false, the next message of the key runs.
    """
    max_pending: int = 1000
    """Maximum number of messages blocked behind a message that waits for a retry.

    Messages beyond it die (reason ``pending_full``).
    """


class Membership(msgspec.Struct, frozen=True):
    """The members that share the shards of an address."""

    members: list[str]
    """Sorted."""
    next_check: float | None = None
    """Seconds until the first of the other members is overdue, unless it joins again. None: there are no other members."""


LogPosition = str | float
"""Start position of a group in its topic's log: BEGINNING, END, an entry's id (start after that entry), or a time in epoch
seconds.
"""

BEGINNING = "beginning"
"""Start with the oldest event the topic still keeps."""
END = "new"
"""Start with the next event published."""

_ENTRY = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def parse_entry(position: str) -> tuple[int, int]:
    """Split an entry's id into its millisecond and its sequence number within that millisecond. Raises ValueError."""
    found = _ENTRY.fullmatch(position)
    if found is None:
        raise ValueError(
            f"{position!r} is not a position in a topic's log; use {BEGINNING!r}, {END!r}, an entry's id, or epoch seconds"
        )
    ms, seq = int(found[1]), int(found[2] or 0)
    if max(ms, seq) >= 2**64:
        raise ValueError(f"{position!r} is not a position in a topic's log: its numbers must fit into 64 bits")
    return ms, seq


def millisecond_of(moment: float) -> int:
    """Return the millisecond that contains a moment, rounded down as servers do: a group moved to that moment misses no event
    published after it.
    """
    return math.floor(moment * 1000 + 0.001)  # a float near today's epoch is off by less than a microsecond


class Receipt(Enum):
    """The result of publishing one Post."""

    CREATED = "created"
    EXISTS = "exists"
    """The id was accepted before, by an earlier call or by an earlier sending of this call. Nothing was written."""
    FULL = "full"
    """``max_length`` is reached; nothing was written."""
    CONFLICT = "conflict"
    """The given id belongs to another task; nothing was written."""


class Cancellation(Enum):
    """The result of a cancel."""

    CANCELLED = "cancelled"
    RUNNING = "running"
    ENDED = "ended"
    """The job is dead, done, cancelled, expired or unknown."""


def cancelled_by(request: str) -> bytes:
    """Return the encoded ending that a cancel writes."""
    return encode_cancelled(CANCELLED_TTL, request)


class Entry(msgspec.Struct, gc=False):
    """One claimed message. ``ref`` identifies the claim in every later verb."""

    ref: bytes
    body: bytes | None
    """None: another program wrote this entry. Its fields are in ``raw``."""
    crashes: int = 0
    """Number of consumers that died or lapsed while they held the message."""
    expires_ms: int = 0
    """Expiry time in milliseconds, server time. 0: it never expires."""
    raw: bytes = b""


class EntryLocation(NamedTuple):
    """Where a claimed message is stored."""

    entry: str
    """The entry's id in its stream."""
    in_log: bool
    """Whether the stream is the log of a topic. If false, it is the stream of a queue, or a group's own stream."""

    def __str__(self) -> str:
        return f"log-{self.entry}" if self.in_log else self.entry

    @property
    def written_ms(self) -> int:
        """When the entry was written, in milliseconds, if its id was made by the server. Other programs may choose any id."""
        return parse_entry(self.entry)[0]


class Claim(msgspec.Struct, gc=False):
    """The claimed messages, and what the caller needs to plan the next claim."""

    entries: list[Entry]
    now_ms: int
    """Server time."""
    next_due: float | None = None
    """Seconds until the earliest scheduled message is due. None: nothing is scheduled."""
    paused: bool = False
    suspects: bool = False
    """Suspects wait for a claim with ``alone=True``."""
    changed: bool = False
    """The server has changed or was restarted since an earlier claim. It may list other messages for the consumer than the
    consumer holds: call ``recover``."""


class Position(msgspec.Struct, frozen=True):
    """A follower's position in the log of a topic. Only ``follow`` makes one, and only ``follow`` accepts it."""

    entry: str
    number: int
    """Number of events published up to this position."""
    life: str = ""
    """Identifies the log. A different value means that a new log has replaced it."""
    bell: str = ""
    """The last wake-up for delayed events that the follower has seen."""


UNKNOWN = -1
"""The number of missed events cannot be determined."""


class Followed(msgspec.Struct, gc=False):
    """The events read from a log, and the number of events missed."""

    entries: list[Entry]
    position: Position
    """Position after the last of the entries."""
    missed: int
    """Number of events before ``entries`` that had left the log before they were read, or UNKNOWN."""
    now_ms: int
    """Server time."""
    next_due: float | None = None
    """Seconds until the earliest delayed event is due. None: no event is delayed."""


class Capabilities(msgspec.Struct, frozen=True):
    """Features of this backend and its server."""

    durable: bool
    shared: bool
    """Other processes see the same queues."""
    server: str = ""
    """Name and version of the server, for display."""
