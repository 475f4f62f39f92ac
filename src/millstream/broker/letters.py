"""Dead letters as messages, as they are claimed at the address of a group's dead letters."""

from __future__ import annotations

import contextlib

import msgspec

from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter, encode_letter
from millstream.model.message import Message, decode_message, encode_message

NO_LETTER = msgspec.Raw(b"\xc0")
"""Arguments of a message without its letter."""


def enclose(letter: DeadLetter, tried: bytes = b"") -> bytes:
    """Return a dead letter as the body of a message of its own.

    ``tried`` is that message, without the letter, as the last attempt to handle the letter left it. Empty: no attempt was made.
    """
    message = Message(letter.id, str(Address(letter.queue).dead), NO_LETTER, letter.enqueued_ms)
    if tried:
        with contextlib.suppress(UnicodeDecodeError, msgspec.MsgspecError):  # unreadable: start again with the first attempt
            message = decode_message(tried)
    return encode_message(msgspec.structs.replace(message, args=msgspec.Raw(encode_letter(letter))))


def without_letter(message: Message) -> Message:
    """Return the message of ``enclose`` without the letter, as it is stored between two attempts to handle the letter."""
    return msgspec.structs.replace(message, args=NO_LETTER)
