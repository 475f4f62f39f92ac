"""Dead letters as messages: what is claimed at the address of a group's dead letters."""

from __future__ import annotations

import msgspec

from millstream.broker.inspector import DeadLetter
from millstream.model.address import Address
from millstream.model.message import Message, encode_message

_encode = msgspec.msgpack.Encoder().encode
open_letter = msgspec.msgpack.Decoder(DeadLetter).decode
"""The letter that a message of ``enclose`` carries as its arguments."""


def enclose(letter: DeadLetter) -> bytes:
    """A dead letter as the body of a message of its own."""
    carried = msgspec.Raw(_encode(letter))
    return encode_message(Message(letter.id, str(Address(letter.queue).dead), carried, letter.letter.enqueued_ms))
