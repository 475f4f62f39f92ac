"""Events of several types in one topic: the class's name travels beside the value."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from millstream.codec import encoder
from millstream.errors import UsageError

_read_named = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw]).decode
_write_named = msgspec.msgpack.Encoder().encode


def members(type_: Any) -> tuple[Any, ...]:
    """The types of a union; none if it is no union."""
    return get_args(type_) if get_origin(type_) in (Union, UnionType) else ()


def travels_as_it_is(kinds: Any) -> bool:
    """Whether a value of this union says itself of which type it is: plain values that differ, and Structs with tags."""
    try:
        msgspec.msgpack.Decoder(kinds)
    except TypeError:
        return False
    return True


class NamedUnion:
    """Values of several classes, each with the name of its class. ``kinds``: by name, as they are decoded."""

    def __init__(self, classes: tuple[Any, ...], kinds: tuple[Any, ...], what: str) -> None:
        self._names: dict[type, str] = {}
        self._read: dict[str, Callable[[Any], Any]] = {}
        for each, kind in zip(classes, kinds, strict=True):
            if not isinstance(each, type):
                raise UsageError(f"{what}: {each!r} in a union is no class, so it has no name that could travel with a value")
            if each.__qualname__ in self._read:
                raise UsageError(f"{what}: two classes of a union are called {each.__qualname__!r}, which is all that travels")
            self._names[each] = each.__qualname__
            self._read[each.__qualname__] = encoder.decoder(kind)

    def write(self, event: Any) -> bytes:
        """TypeError if it is of none of the classes."""
        for kind in type(event).__mro__:
            name = self._names.get(kind)
            if name is not None:
                return _write_named((name, msgspec.Raw(encoder.encode(event))))
        raise TypeError(f"it is a {type(event).__qualname__}, and none of {', '.join(self._read)}")

    def read(self, payload: Any) -> Any:
        name, value = _read_named(payload)
        decode = self._read.get(name)
        if decode is None:
            raise TypeError(f"it is a {name}, and none of {', '.join(self._read)}")
        return decode(value)
