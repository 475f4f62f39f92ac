"""Dead letters as messages: what is claimed at the address of a group's dead letters."""

from __future__ import annotations

import contextlib

import msgspec

from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter, encode_letter
from millstream.model.message import Message, decode_message, encode_message

NO_LETTER = msgspec.Raw(b"\xc0")
"""The arguments of a message whose letter is left out."""


def enclose(letter: DeadLetter, tried: bytes = b"") -> bytes:
    """A dead letter as the body of a message of its own. ``tried``: that message, without the letter, as the last attempt to
    handle the letter left it; empty if there was none."""
    message = Message(letter.id, str(Address(letter.queue).dead), NO_LETTER, letter.enqueued_ms)
    if tried:
        with contextlib.suppress(UnicodeDecodeError, msgspec.MsgspecError):  # then it is its first attempt again
            message = decode_message(tried)
    return encode_message(msgspec.structs.replace(message, args=msgspec.Raw(encode_letter(letter))))


def without_letter(message: Message) -> Message:
    """The message of ``enclose`` without the letter: what is kept between two attempts to handle it."""
    return msgspec.structs.replace(message, args=NO_LETTER)
