"""What became of a delivery, as a value: made by the runner, settled by the broker. No I/O."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec

from millstream.model.dead_letter import DeadLetter


class Kind(IntEnum):
    """How a delivery ends. Snooze and retry are the same to a broker: the message comes back later."""

    DONE = 0
    RETRY = 1
    DEAD = 2
    EXPIRED = 3


DONE = Kind.DONE
"""For hot paths: a member costs as much to look up as an outcome to make."""


class Said(msgspec.Struct, frozen=True, gc=False):
    """What a handler said of its delivery, before it returned or raised."""

    verb: Literal["ack", "nack", "retry"]
    reason: str = ""
    delay: float | None = None
    """retry: seconds; None: as the policy says."""


SETTLED = Said("ack")
"""What a handler said was settled already."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """One delivery's end, complete: a broker needs nothing else to settle it."""

    kind: Kind
    ref: bytes
    """The delivery's claim, as the broker named it."""
    id: str
    result: bytes | None = None
    """The encoded ``Ending`` to keep for ``result_ttl``; None keeps nothing, but of EXPIRED one that says only that."""
    result_ttl: float = 0.0
    given_id: bool = False
    """Remember the id for ``id_ttl`` from now on."""
    body: bytes = b""
    """RETRY: the message to run next. DEAD: the message to run if it is replayed, attempts reset. For a dead letter that was
    claimed the broker adds the letter to the message of the next attempt, and needs no message to replay."""
    delay: float = 0.0
    """RETRY: seconds until it is due."""
    expires_ms: int = 0
    """RETRY: the entry's expiry, handed on unchanged."""
    task: str = ""
    """DEAD: the task's name, for filters."""
    letter: DeadLetter | None = None
    """DEAD: why. For a dead letter that was claimed: why it stays unhandled; ``None`` marks nothing."""
