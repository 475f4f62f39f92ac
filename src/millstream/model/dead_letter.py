"""A dead letter: a message that ended without success, and why. No I/O."""

from __future__ import annotations

import msgspec

from millstream.model.message import Attempt, ErrorNote
from millstream.model.types import DeadReason


class DeadLetter(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Why a message is dead and, once it is stored, which message and where.

    The worker that gives up a message fills in the first part; the backend that stores the letter fills in the rest. A stored
    letter is an array: new fields are added at the end, with a default, so that every version reads the letters of the others.
    """

    reason: DeadReason
    error: ErrorNote
    attempts: int
    """Number of attempts, the last one included."""
    crashes: int
    enqueued_ms: int
    failures: tuple[Attempt, ...] = ()
    """The last failed attempts, oldest first. An ``Ending`` does not repeat them."""

    id: str = ""
    task: str = ""
    queue: str = ""
    died_at: float = 0.0
    """Epoch seconds, server time."""
    body: bytes = b""
    """The message as it would run again; for ``malformed`` the bytes that were found."""
    cursor: str = ""
    """Pass it to ``dead_letters`` to continue after this letter."""
    source: str = ""
    """The claim under which it died, as the backend names it."""
    key: bytes | None = None
    """Its ordering key, or ``None``."""
    unhandled: DeadLetter | None = None
    """Why the handler of the group's dead letters gave up, or ``None`` if it did not. It is not given this letter again."""


encode_letter = msgspec.msgpack.Encoder().encode
decode_letter = msgspec.msgpack.Decoder(DeadLetter).decode
