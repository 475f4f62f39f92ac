"""Handlers as a worker runs them: each is composed once, here, when the worker starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from millstream.codec.encoder import Payload
from millstream.model.handler import Handler
from millstream.model.settings import TaskSettings


class Prepared(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A handler with all that a run needs, looked up beforehand."""

    handler: Handler
    name: str
    settings: TaskSettings
    is_async: bool
    decode: Callable[[Payload], tuple[tuple[Any, ...], Mapping[str, Any]]]
    """Turns what travelled into arguments; InvalidArguments if it does not fit."""
    call: Callable[..., Any]
    """What is called with them: the user's function, and all that is wrapped around it."""
    encode: Callable[[Any], bytes]
    """Turns what it returned into what is kept; InvalidResult if it cannot be."""


def prepare(handler: Handler) -> Prepared:
    """The one place where a handler's callable is composed. What wraps every run is wrapped around ``call`` here; where nothing
    does, it is the user's function itself, so that a run has no frame more."""
    return Prepared(
        handler,
        handler.name,
        handler.settings,
        handler.is_async,
        handler.arguments.decode,
        handler.fn,
        handler.returns.encode,
    )
