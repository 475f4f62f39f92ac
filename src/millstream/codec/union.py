"""Events of several types in one topic: the name of the class is stored with the value."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from millstream.codec import encoder
from millstream.errors import UsageError

_read_named = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw]).decode
_write_named = msgspec.msgpack.Encoder().encode


def members(type_: Any) -> tuple[Any, ...]:
    """Return the types of a union, or an empty tuple if it is not a union. Aliases (``type Event = Placed | Sent``) and nested
    unions are expanded."""
    meant = _meant(type_)
    if get_origin(meant) not in (Union, UnionType):
        return ()
    return tuple(dict.fromkeys(kind for each in get_args(meant) for kind in members(each) or (each,)))


def _meant(type_: Any) -> Any:
    """Return the type behind an alias or Annotated."""
    if get_origin(type_) is Annotated:
        return _meant(get_args(type_)[0])
    if type(type_).__name__ == "TypeAliasType":  # in typing from Python 3.12 on, and in typing_extensions
        return _meant(type_.__value__)
    return type_


def travels_as_it_is(kinds: Any) -> bool:
    """Return whether the encoded value alone identifies its type: plain values of different types, and tagged Structs."""
    try:
        msgspec.msgpack.Decoder(kinds)
    except TypeError:
        return False
    return True


class NamedUnion:
    """Encodes values of several classes with the name of the class. ``kinds`` are the types to decode, one per class."""

    def __init__(self, classes: tuple[Any, ...], kinds: tuple[Any, ...], what: str) -> None:
        self._names: dict[type, str] = {}
        self._read: dict[str, Callable[[Any], Any]] = {}
        self._kinds: dict[str, Any] = {}
        for each, kind in zip(classes, kinds, strict=True):
            if not isinstance(each, type):
                raise UsageError(
                    f"{what}: {each!r} in a union is not a class, so it has no name to store with a value: put it into a "
                    "dataclass or a Struct"
                )
            if each.__qualname__ in self._read:
                raise UsageError(f"{what}: two classes of a union have the same name, {each.__qualname__!r}: rename one")
            self._names[each] = each.__qualname__
            self._read[each.__qualname__] = encoder.decoder(kind)
            self._kinds[each.__qualname__] = kind

    def write(self, event: Any) -> bytes:
        """Encode an event. Raises TypeError if it is not an instance of one of the classes."""
        for kind in type(event).__mro__:
            name = self._names.get(kind)
            if name is not None:
                return _write_named((name, msgspec.Raw(encoder.encode(event))))
        raise TypeError(f"it is a {type(event).__qualname__}, not one of {', '.join(self._read)}")

    def read(self, payload: Any) -> Any:
        name, value = _read_named(payload)
        decode = self._read.get(name)
        if decode is None:
            raise TypeError(f"it is a {name}, not one of {', '.join(self._read)}")
        return decode(value)

    def from_plain(self, value: Any) -> Any:
        """Convert ``[name, value]``, in plain JSON values, into an event. Raises TypeError if it names none of the classes."""
        try:
            name, fields = value
            kind = self._kinds[name]
        except (TypeError, ValueError, KeyError):
            raise TypeError(f"expected [CLASS, VALUE], where CLASS is one of {', '.join(self._kinds)}") from None
        return encoder.from_plain(fields, kind)
