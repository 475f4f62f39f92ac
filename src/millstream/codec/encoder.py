"""The encoder shared by all codecs, and how to encode and decode the types that msgspec does not support."""

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
"""Types encoded as text: their constructor accepts their ``str()``."""

PLAIN: tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((str,), str.__str__),
    ((int,), int.__index__),
    ((float,), float.__float__),
    ((bytes,), memoryview),
    ((date, time), lambda value: value.isoformat()),
    ((UUID, Decimal, *TEXT), str),
)
"""How to convert subclasses of types that msgspec encodes. It refuses subclasses, which many libraries return (Django's
SafeString, asyncpg's UUID, pendulum's DateTime, numpy's float64)."""


def encode_foreign(value: Any) -> Any:
    """Return what msgspec encodes instead of a value of an unsupported type. Raises TypeError if it cannot be serialized."""
    kind = value.__class__
    if is_model(kind):
        # by_alias=False: names are unambiguous, while aliases may differ between serialization and validation.
        return value.model_dump(round_trip=True, by_alias=False)
    for kinds, plain in PLAIN:
        if isinstance(value, kinds):
            return plain(value)
    if is_url(kind):
        return str(value)
    raise TypeError(
        f"a value of type {kind.__qualname__} cannot be serialized; send plain values, dataclasses, msgspec Structs "
        f"or pydantic models instead, or an id with which the function can load it"
    )


def decode_foreign(kind: Any, value: Any) -> Any:
    """Decode a value into a type that ``travels`` accepts. Raises ValueError or TypeError if it does not fit."""
    if kind is object:
        return value
    if is_model(kind):
        return kind.model_validate(value, **_lax(sys.modules["pydantic.main"].BaseModel))
    return kind(value)


def travels(kind: Any) -> bool:
    """Return whether ``decode_foreign`` supports a type that msgspec does not."""
    return kind is object or issubclass(kind, TEXT) or is_model(kind) or is_url(kind)


def is_model(kind: Any) -> bool:
    """Return whether this is a model of pydantic 2. Never imports pydantic: if a model exists, pydantic is loaded."""
    pydantic = sys.modules.get("pydantic.main")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel) and hasattr(kind, "model_validate")


def is_url(kind: Any) -> bool:
    """Return whether this is one of pydantic's URL types, which models often contain."""
    networks = sys.modules.get("pydantic.networks")
    return networks is not None and issubclass(kind, networks.AnyUrl)


@functools.cache
def _lax(base_model: Any) -> dict[str, bool]:
    """Return the options that validate the output of ``encode_foreign`` by field name. pydantic supports this from 2.11 on."""
    by_name = "by_name" in inspect.signature(base_model.model_validate).parameters
    return {"strict": False, "by_alias": True, "by_name": True} if by_name else {"strict": False}


encode = msgspec.msgpack.Encoder(enc_hook=encode_foreign).encode
"""Keeps no state between calls, so all codecs share it."""


def decoder(kind: Any) -> Callable[[Payload], Any]:
    """Return the strict decoder of one checked type."""
    return msgspec.msgpack.Decoder(kind, dec_hook=decode_foreign).decode


def from_plain(value: Any, kind: Any) -> Any:
    """Convert plain JSON values into one checked type."""
    return msgspec.convert(value, kind, dec_hook=decode_foreign)
