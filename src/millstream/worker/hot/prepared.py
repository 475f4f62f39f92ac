"""Handlers as a worker runs them. Each is composed once, here, when the worker starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from millstream.codec.encoder import Payload
from millstream.model.handler import Handler
from millstream.model.settings import TaskSettings


class Prepared(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A handler with everything that a run needs, looked up in advance."""

    handler: Handler
    name: str
    settings: TaskSettings
    is_async: bool
    decode: Callable[[Payload], tuple[tuple[Any, ...], Mapping[str, Any]]]
    """Decodes the payload into arguments. Raises InvalidArguments if they do not match the function's annotations."""
    call: Callable[..., Any]
    """The user's function, with everything that is wrapped around it."""
    encode: Callable[[Any], bytes]
    """Encodes the return value. Raises InvalidResult if that is not possible."""


def prepare(handler: Handler) -> Prepared:
    """Compose a handler's callable. This is the only place that does so.

    Code that wraps every run is wrapped around ``call`` here. Without any, ``call`` is the user's function itself, so that a
    run has no extra frame.
    """
    return Prepared(
        handler,
        handler.name,
        handler.settings,
        handler.is_async,
        handler.arguments.decode,
        handler.fn,
        handler.returns.encode,
    )
