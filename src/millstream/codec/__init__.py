"""Values as they travel: arguments checked at enqueue and decoded into their annotated types, and results.

What lives here is one function's arguments and its result. The message around them is ``millstream.model.message``.

**The wire form** is msgpack. Arguments are one of two things, told apart by their first byte:

- an array of the positional arguments: ``resize(42)`` is ``[42]``, two bytes. Keywords that continue the positions are
  put there, so ``resize(42, width=100)`` and ``resize(width=100, image_id=42)`` are both ``[42, 100]``;
- when keywords remain (keyword-only parameters, ``**kwargs``, a skipped default), a map of them by name, with the
  array of positional arguments, if any, under the empty name: ``resize(42, crop=True)`` is
  ``{"": [42], "crop": true}``.

A function's defaults are not sent: the worker's own apply, so parameters with defaults may be added while jobs wait.
Positional arguments bind by position: renaming a parameter keeps them, reordering parameters does not. A result is its
value alone.

**Types**: None, bool, int (64 bits), float, str, bytes, datetime, date, time, timedelta, UUID, Decimal, Path, IP
addresses, Enum (of str or int values), Literal, tuple, list, dict, set, frozenset, unions whose members have different
wire forms, TypedDict, NamedTuple, dataclasses, msgspec Structs, pydantic models, and any of these inside another.

What is promised, and what is not:

- Whatever enqueue accepts, the same signature can decode: it is checked by decoding it, strictly ("1" and True are no
  int, 1 is a float). So ``__post_init__`` and validators run at enqueue too.
- An aware datetime comes back as the same instant in UTC; a naive one as it is.
- Where nothing is annotated, or Any or object, a value comes back as msgpack has it: tuples and sets as lists;
  dataclasses, Structs and models as dicts; Enums as their values; UUID, Decimal, date, time, timedelta and naive
  datetime as text.
- A pydantic model travels as its fields by name, computed fields left out, and is validated in lax mode, because the
  wire has fewer types than Python. Before pydantic 2.11 a model with aliases needs ``populate_by_name``. A SecretStr is
  refused: it would be written in the clear or be lost.
"""

from __future__ import annotations

from millstream.codec.arguments import ArgumentCodec
from millstream.codec.event import Codec, CodecName, EventCodec
from millstream.codec.result import ResultCodec

__all__ = ["ArgumentCodec", "Codec", "CodecName", "EventCodec", "ResultCodec"]
