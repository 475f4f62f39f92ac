"""Serialization of arguments, results and events. Arguments are checked at enqueue and decoded into their annotated types.

This package encodes the arguments and the result of one function. The message around them is ``millstream.model.message``.

**The wire format** is msgpack. Arguments have one of two forms, distinguished by the first byte:

- An array of the positional arguments: ``resize(42)`` is ``[42]``, two bytes. Keywords that continue the positions are
  added to it, so ``resize(42, width=100)`` and ``resize(width=100, image_id=42)`` are both ``[42, 100]``.
- If keywords remain (keyword-only parameters, ``**kwargs``, a skipped default), a map of the keywords. It holds the array
  of positional arguments, if any, under the empty name: ``resize(42, crop=True)`` is ``{"": [42], "crop": true}``.

Defaults are not sent: the worker applies its own, so parameters with defaults may be added while jobs wait. Positional
arguments bind by position: a parameter may be renamed, but not moved. A result is encoded as its value only.

**Types**: None, bool, int (64 bits), float, str, bytes, datetime, date, time, timedelta, UUID, Decimal, Path, IP
addresses, Enum (of str or int values), Literal, tuple, list, dict, set, frozenset, unions whose members have different
wire formats, TypedDict, NamedTuple, dataclasses, msgspec Structs, pydantic models, and any of these inside another.

Guarantees and limits:

- Arguments that enqueue accepts can be decoded with the same signature: enqueue checks them by decoding them strictly
  ("1" and True are not an int, 1 is a float). So ``__post_init__`` and validators also run at enqueue.
- An aware datetime is decoded as the same instant in UTC. A naive datetime is unchanged.
- Without an annotation, or with Any or object, a value is decoded to a msgpack type: tuples and sets become lists;
  dataclasses, Structs and models become dicts; Enums become their values; UUID, Decimal, date, time, timedelta and naive
  datetime become text.
- A pydantic model is encoded as its fields by name, without computed fields. It is validated in lax mode, because msgpack
  has fewer types than Python. Before pydantic 2.11, a model with aliases needs ``populate_by_name``. A SecretStr is
  refused, because it would be stored in clear text or lost.
"""

from __future__ import annotations

from millstream.codec.arguments import ArgumentCodec
from millstream.codec.event import Codec, CodecName, EventCodec
from millstream.codec.result import ResultCodec

__all__ = ["ArgumentCodec", "Codec", "CodecName", "EventCodec", "ResultCodec"]
