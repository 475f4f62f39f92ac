"""Dead letters as messages: what is claimed at the address of a group's dead letters."""

from __future__ import annotations

import msgspec

from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter, encode_letter
from millstream.model.message import Message, encode_message


def enclose(letter: DeadLetter) -> bytes:
    """A dead letter as the body of a message of its own."""
    carried = msgspec.Raw(encode_letter(letter))
    return encode_message(Message(letter.id, str(Address(letter.queue).dead), carried, letter.enqueued_ms))
