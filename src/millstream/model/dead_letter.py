"""Dead letters: messages that failed for good, and why. No I/O."""

from __future__ import annotations

import msgspec

from millstream.model.message import Attempt, ErrorNote
from millstream.model.types import DeadReason


class DeadLetter(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Why a message is dead. After storing, also which message, and where.

    The worker fills in the fields up to ``failures``. The backend that stores the letter fills in the rest. A stored letter is
    an array. New fields are added at the end, with a default, so that every version can read the letters of all others.
    """

    reason: DeadReason
    error: ErrorNote
    attempts: int
    """Number of attempts, including the last one."""
    crashes: int
    enqueued_ms: int
    failures: tuple[Attempt, ...] = ()
    """The last failed attempts, oldest first. The copy of the letter in an ``Ending`` leaves them out."""

    id: str = ""
    task: str = ""
    queue: str = ""
    died_at: float = 0.0
    """Epoch seconds, server time."""
    body: bytes = b""
    """The message that a replay runs. For ``malformed``: the original bytes."""
    cursor: str = ""
    """Pass it to ``dead_letters`` to continue after this letter."""
    source: str = ""
    """The backend's name for the claim under which the message died."""
    key: bytes | None = None
    """The ordering key, or ``None``."""
    unhandled: DeadLetter | None = None
    """Why the dead-letter handler gave up on this letter, or ``None``. The handler does not receive an unhandled letter
    again."""


encode_letter = msgspec.msgpack.Encoder().encode
decode_letter = msgspec.msgpack.Decoder(DeadLetter).decode
