"""Events of several types in one topic: the class's name travels beside the value."""

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
    """The types of a union; none if it is no union. Aliases (``type Event = Placed | Sent``) and unions inside are expanded."""
    meant = _meant(type_)
    if get_origin(meant) not in (Union, UnionType):
        return ()
    return tuple(dict.fromkeys(kind for each in get_args(meant) for kind in members(each) or (each,)))


def _meant(type_: Any) -> Any:
    """What an alias or Annotated stands for."""
    if get_origin(type_) is Annotated:
        return _meant(get_args(type_)[0])
    if type(type_).__name__ == "TypeAliasType":  # in typing from Python 3.12 on, and in typing_extensions
        return _meant(type_.__value__)
    return type_


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
        self._kinds: dict[str, Any] = {}
        for each, kind in zip(classes, kinds, strict=True):
            if not isinstance(each, type):
                raise UsageError(
                    f"{what}: {each!r} in a union is no class, so it has no name that could travel with a value: put it into a "
                    "dataclass or a Struct"
                )
            if each.__qualname__ in self._read:
                raise UsageError(f"{what}: two classes of a union are called {each.__qualname__!r}, which is all that travels")
            self._names[each] = each.__qualname__
            self._read[each.__qualname__] = encoder.decoder(kind)
            self._kinds[each.__qualname__] = kind

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

    def from_plain(self, value: Any) -> Any:
        """The event that ``[name, value]`` says, made of what JSON can hold. TypeError if it names none of the classes."""
        try:
            name, fields = value
            kind = self._kinds[name]
        except (TypeError, ValueError, KeyError):
            raise TypeError(f"write [CLASS, VALUE], with one of the classes {', '.join(self._kinds)}") from None
        return encoder.from_plain(fields, kind)
