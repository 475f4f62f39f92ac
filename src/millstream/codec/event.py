"""Encoding of the events of a topic."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol, Union, get_args, get_type_hints

import msgspec

from millstream.codec import encoder, hints, union
from millstream.codec.encoder import Payload
from millstream.errors import UsageError
from millstream.model.invalid import InvalidArguments


class Codec(Protocol):
    """A custom wire format, implemented by the user."""

    def encode(self, event: Any, /) -> bytes:
        """Return the event as bytes."""
        ...

    def decode(self, data: bytes, /) -> Any:
        """Return the event that the bytes encode."""
        ...


CodecName = Literal["msgpack", "json", "raw", "fields"]

_bin = msgspec.msgpack.Encoder().encode
_from_bin = msgspec.msgpack.Decoder(bytes).decode


class EventCodec:
    """Encodes the events of one topic: checked when they are published, decoded into their type for each handler.

    msgpack is stored as it is; the output of another codec is stored as bytes inside msgpack. ``fields`` is msgpack that also
    reads entries that other programs add to the topic's stream with a plain XADD: their text fields are the event's fields.
    """

    def __init__(self, topic: str, type_: Any, codec: CodecName | Codec = "msgpack") -> None:
        self._topic = topic
        self.type = type_
        self.codec: CodecName | Codec = codec
        what = f"topic {topic!r}: its type"
        self.foreign: Callable[[bytes], bytes] | None = None
        """Converts the fields of another program's entry into a payload. ``None`` if such entries are not supported."""
        self._write: Callable[[Any], bytes]
        self._read: Callable[[Payload], Any]
        self.from_plain: Callable[[Any], Any]
        """Converts plain JSON values into an event. Raises TypeError or msgspec.ValidationError if they do not fit the type."""
        classes = union.members(type_)
        if classes and codec not in ("msgpack", "json"):
            raise UsageError(f"topic {topic!r}: a topic of several types needs codec='msgpack' or 'json', not {codec!r}")
        if classes:
            type_ = Union[classes]  # noqa: UP007, which has no other form for a tuple
        if classes and not union.travels_as_it_is(type_):
            if codec == "json":
                names = ", ".join(map(hints.describe, classes))
                raise UsageError(
                    f"topic {topic!r}: codec='json' cannot tell {names} apart: use codec='msgpack', which adds the name of the "
                    "class, or Structs with tags: class Order(Struct, tag=True)"
                )
            kinds = tuple(hints.resolve(_nowhere, each, {}, what) for each in classes)
            named = union.NamedUnion(classes, kinds, what)
            self._write, self._read, self.from_plain = named.write, named.read, named.from_plain
            return
        kind = Any if type_ is Any else hints.resolve(_nowhere, type_, {}, what)
        self.from_plain = partial(encoder.from_plain, kind=kind)
        if codec == "msgpack":
            self._write, self._read = encoder.encode, encoder.decoder(kind)
        elif codec == "json":
            write = msgspec.json.Encoder(enc_hook=encoder.encode_foreign).encode
            self._write, self._read = _within(write, msgspec.json.Decoder(kind, dec_hook=encoder.decode_foreign).decode)
        elif codec == "raw":
            if type_ is not bytes:
                raise UsageError(f"topic {topic!r} has codec='raw', so its type must be bytes, not {hints.describe(type_)}")
            self._write, self._read = _within(_as_it_is, _as_it_is)
        elif codec == "fields":
            self._write, self._read = _write_fields, partial(_read_fields, kind)
            self.foreign = partial(_foreign_fields, _fields_of_bytes(type_))
        elif callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None)):
            self._write, self._read = _within(codec.encode, codec.decode)
        else:
            raise UsageError(
                f"topic {topic!r}: codec must be one of {', '.join(map(repr, get_args(CodecName)))}, or an object with encode "
                f"and decode, not {codec!r}"
            )

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the bytes of one event, checked to be decodable. Raises TypeError if it does not fit the topic's type."""
        try:
            payload = self._write(args[0])
            self._read(payload)
        except Exception as error:
            raise TypeError(
                f"topic {self._topic!r} takes {hints.describe(self.type)}, and this event does not fit: {error}; "
                f"the value was {args[0]!r:.200}"
            ) from error
        return payload

    def decode(self, payload: Payload) -> Any:
        """Return the event. Raises InvalidArguments if it no longer fits the topic's type."""
        try:
            return self._read(payload)
        except Exception as error:
            raise InvalidArguments(f"the event is not a valid {hints.describe(self.type)}: {error}") from error

    def own_bytes(self, payload: Payload) -> bytes:
        """Return the bytes that the codec produced for an event, or the payload itself if it contains no such bytes."""
        if self.codec != "msgpack":
            with suppress(msgspec.MsgspecError):
                return _from_bin(payload)
        return bytes(payload)

    def adopt(self, payload: Payload, other: EventCodec) -> bytes:
        """Convert an event of another topic into a payload of this topic. With the same codec the bytes stay the same.

        Raises InvalidArguments if it no longer fits the other topic's type, TypeError if it does not fit this topic's type.
        """
        event = other.decode(payload)
        return bytes(payload) if self.codec == other.codec else self.encode((event,), {})


def _within(
    write: Callable[[Any], bytes], read: Callable[[bytes], Any]
) -> tuple[Callable[[Any], bytes], Callable[[Payload], Any]]:
    return (lambda event: _bin(write(event))), (lambda payload: read(_from_bin(payload)))


_anything = msgspec.msgpack.Decoder().decode


def _write_fields(event: Any) -> bytes:
    payload = encoder.encode(event)
    if not isinstance(_anything(payload), dict):
        raise TypeError("codec='fields' needs an event with fields: a dataclass, a Struct, a model or a dict")
    return payload


def _read_fields(kind: Any, payload: Payload) -> Any:
    """Decode leniently, because other programs send numbers and other values as text."""
    return msgspec.convert(_anything(payload), kind, strict=False, dec_hook=encoder.decode_foreign)


def _foreign_fields(as_bytes: Collection[str], entry: bytes) -> bytes:
    flat: list[bytes] = _anything(entry)
    names = [name.decode() for name in flat[::2]]
    values = (value if name in as_bytes else value.decode() for name, value in zip(names, flat[1::2], strict=True))
    return _bin(dict(zip(names, values, strict=True)))


def _fields_of_bytes(type_: Any) -> set[str]:
    """Return the names of the fields that are bytes, not text."""
    try:
        return {name for name, kind in get_type_hints(type_).items() if kind in (bytes, bytes | None)}
    except (TypeError, NameError):
        return set()


def _as_it_is(data: bytes) -> bytes:
    if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected bytes, got {type(data).__qualname__}")
    return data


def _nowhere() -> None:
    """A function without names around it: a topic's type needs no lookup."""
