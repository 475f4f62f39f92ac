"""The events of a topic, as they travel."""

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
    """A wire form of the user's own: text or bytes of his making."""

    def encode(self, event: Any, /) -> bytes:
        """The event as bytes."""
        ...

    def decode(self, data: bytes, /) -> Any:
        """The event these bytes are."""
        ...


CodecName = Literal["msgpack", "json", "raw", "fields"]

_bin = msgspec.msgpack.Encoder().encode
_from_bin = msgspec.msgpack.Decoder(bytes).decode


class EventCodec:
    """One topic's events: checked when they are published, decoded into their type for each handler.

    msgpack travels as it is; what another codec makes travels as bytes within. ``fields`` is msgpack that also reads what other
    programs write to the topic's stream with a plain XADD: its fields, as text, are those of the event.
    """

    def __init__(self, topic: str, type_: Any, codec: CodecName | Codec = "msgpack") -> None:
        self._topic = topic
        self.type = type_
        self.codec: CodecName | Codec = codec
        what = f"topic {topic!r}: its type"
        self.foreign: Callable[[bytes], bytes] | None = None
        """Makes a payload of the fields of another program's entry; None: there are none to be read."""
        self._write: Callable[[Any], bytes]
        self._read: Callable[[Payload], Any]
        self.from_plain: Callable[[Any], Any]
        """Makes an event of what JSON can hold; TypeError or msgspec.ValidationError if it does not fit the topic's type."""
        classes = union.members(type_)
        if classes and codec not in ("msgpack", "json"):
            raise UsageError(f"topic {topic!r}: a topic of several types has codec='msgpack' or 'json', not {codec!r}")
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
                raise UsageError(f"topic {topic!r} has codec='raw', so its events are bytes, not {hints.describe(type_)}")
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
        """The bytes of one event, known to be decodable; TypeError if it is not of the topic's type."""
        try:
            payload = self._write(args[0])
            self._read(payload)
        except Exception as error:
            raise TypeError(
                f"topic {self._topic!r} takes {hints.describe(self.type)}, and this is not one that travels: {error}; "
                f"it was {args[0]!r:.200}"
            ) from error
        return payload

    def decode(self, payload: Payload) -> Any:
        """The event; InvalidArguments if it is not of the topic's type any more."""
        try:
            return self._read(payload)
        except Exception as error:
            raise InvalidArguments(f"the event is no {hints.describe(self.type)}: {error}") from error

    def own_bytes(self, payload: Payload) -> bytes:
        """What the codec made of an event; the bytes as they are if it made none of them."""
        if self.codec != "msgpack":
            with suppress(msgspec.MsgspecError):
                return _from_bin(payload)
        return bytes(payload)

    def adopt(self, payload: Payload, other: EventCodec) -> bytes:
        """Another topic's event as this one's: the same bytes if both have one codec.

        InvalidArguments if it is no event of the other topic's type any more, TypeError if it is none of this one's.
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
        raise TypeError("codec='fields' takes what has fields: a dataclass, a Struct, a model or a dict")
    return payload


def _read_fields(kind: Any, payload: Payload) -> Any:
    """Numbers and the like may come as text."""
    return msgspec.convert(_anything(payload), kind, strict=False, dec_hook=encoder.decode_foreign)


def _foreign_fields(as_bytes: Collection[str], entry: bytes) -> bytes:
    flat: list[bytes] = _anything(entry)
    names = [name.decode() for name in flat[::2]]
    values = (value if name in as_bytes else value.decode() for name, value in zip(names, flat[1::2], strict=True))
    return _bin(dict(zip(names, values, strict=True)))


def _fields_of_bytes(type_: Any) -> set[str]:
    """Which of its fields are not text."""
    try:
        return {name for name, kind in get_type_hints(type_).items() if kind in (bytes, bytes | None)}
    except (TypeError, NameError):
        return set()


def _as_it_is(data: bytes) -> bytes:
    if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected bytes, got {type(data).__qualname__}")
    return data


def _nowhere() -> None:
    """Where a topic's type is looked up: it is a type already."""
