"""Outcomes of deliveries, as values. The runner makes them, the broker settles them. No I/O."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec

from millstream.model.dead_letter import DeadLetter


class Kind(IntEnum):
    """How a delivery ends. To a broker, a snooze is a retry: the message becomes ready again later."""

    DONE = 0
    RETRY = 1
    DEAD = 2
    EXPIRED = 3


DONE = Kind.DONE
"""For hot paths: looking up the enum member would cost as much as creating an outcome."""


class Said(msgspec.Struct, frozen=True, gc=False):
    """The outcome that was set with ``ack()``, ``nack()`` or ``retry()`` of a delivery."""

    verb: Literal["ack", "nack", "retry"]
    reason: str = ""
    delay: float | None = None
    """retry: seconds, or ``None`` for the delay of the retry policy."""


SETTLED = Said("ack")
"""Marks a delivery whose outcome is already settled."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of one delivery. It holds everything that a broker needs to settle it."""

    kind: Kind
    ref: bytes
    """The broker's name for the claim."""
    id: str
    result: bytes | None = None
    """The encoded ``Ending``, stored for ``result_ttl``. ``None`` stores nothing; for EXPIRED it stores an ending without
    details."""
    result_ttl: float = 0.0
    given_id: bool = False
    """Keep the id reserved for ``id_ttl`` from now on."""
    body: bytes = b""
    """RETRY: the message of the next attempt. DEAD: the message that a replay runs, with its attempts reset. If the delivery is
    a claimed dead letter, the broker adds the letter to the message of the next attempt, and DEAD needs no message."""
    delay: float = 0.0
    """RETRY: seconds until the message is due."""
    expires_ms: int = 0
    """RETRY: the expiry of the entry, unchanged."""
    task: str = ""
    """DEAD: the name of the task, for filters."""
    letter: DeadLetter | None = None
    """DEAD: the reason. If the delivery is a claimed dead letter: why it is unhandled; ``None`` does not mark it."""
