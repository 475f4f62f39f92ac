"""The one encoder, and the types msgspec does not know: how they are put on the wire and taken off it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec

Payload = bytes | memoryview | msgspec.Raw

TEXT: tuple[type, ...] = (
    PurePath,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
"""Types whose ``str()`` is what their constructor takes: they travel as text."""

PLAIN: tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((str,), str.__str__),
    ((int,), int.__index__),
    ((float,), float.__float__),
    ((bytes,), memoryview),
    ((date, time), lambda value: value.isoformat()),
    ((UUID, Decimal, *TEXT), str),
)
"""msgspec encodes these types but not their subclasses, which libraries hand out freely (Django's SafeString, asyncpg's
UUID, pendulum's DateTime, numpy's float64): how to make them plain."""


def encode_foreign(value: Any) -> Any:
    """What msgspec shall encode in place of a value it does not know; TypeError if the value cannot travel."""
    kind = value.__class__
    if is_model(kind):
        # by_alias=False: names are unambiguous, aliases may differ between serialization and validation.
        return value.model_dump(round_trip=True, by_alias=False)
    for kinds, plain in PLAIN:
        if isinstance(value, kinds):
            return plain(value)
    if is_url(kind):
        return str(value)
    raise TypeError(
        f"a value of type {kind.__qualname__} has no wire form; send plain values, dataclasses, msgspec Structs "
        f"or pydantic models, or what the function needs to make it"
    )


def decode_foreign(kind: Any, value: Any) -> Any:
    """A value of one of the types that ``travels`` lets through; ValueError or TypeError if it does not fit."""
    if kind is object:
        return value
    if is_model(kind):
        return kind.model_validate(value, **_lax(sys.modules["pydantic.main"].BaseModel))
    return kind(value)


def travels(kind: Any) -> bool:
    """Whether ``decode_foreign`` can make a type that msgspec does not know."""
    return kind is object or issubclass(kind, TEXT) or is_model(kind) or is_url(kind)


def is_model(kind: Any) -> bool:
    """Whether this is a pydantic model, version 2. Never imports pydantic: where there is a model, it is loaded."""
    pydantic = sys.modules.get("pydantic.main")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel) and hasattr(kind, "model_validate")


def is_url(kind: Any) -> bool:
    """Whether this is one of pydantic's URL types, which models often hold."""
    networks = sys.modules.get("pydantic.networks")
    return networks is not None and issubclass(kind, networks.AnyUrl)


@functools.cache
def _lax(base_model: Any) -> dict[str, bool]:
    """How to validate what ``encode_foreign`` dumped: by name, which pydantic can be asked for from 2.11 on."""
    by_name = "by_name" in inspect.signature(base_model.model_validate).parameters
    return {"strict": False, "by_alias": True, "by_name": True} if by_name else {"strict": False}


encode = msgspec.msgpack.Encoder(enc_hook=encode_foreign).encode
"""Holds no state between calls, so one serves every codec."""


def decoder(kind: Any) -> Callable[[Payload], Any]:
    """The strict decoder of one checked type."""
    return msgspec.msgpack.Decoder(kind, dec_hook=decode_foreign).decode


def from_plain(value: Any, kind: Any) -> Any:
    """A value of one checked type, made of what JSON can hold."""
    return msgspec.convert(value, kind, dec_hook=decode_foreign)
