"""Handlers, as a worker runs them: tasks, subscriptions, broadcasts, and handlers or forwarders of dead letters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from millstream.codec.encoder import Payload
from millstream.events.batch import Batch
from millstream.model.settings import TaskSettings

Letters = Literal["", "handled", "moved"]
"""For an address of dead letters: a handler receives them, or they are forwarded to a topic. Empty for other addresses."""


class Arguments(Protocol):
    """Decodes a payload into the arguments of a function. Raises ``InvalidArguments`` if they do not match it."""

    def decode(self, payload: Payload, /) -> tuple[tuple[Any, ...], Mapping[str, Any]]: ...


class Returns(Protocol):
    """Encodes a return value for storing. Raises ``InvalidResult`` if that is not possible."""

    def encode(self, value: Any, /) -> bytes: ...


class Handler(Protocol):
    """A function and the settings that a worker needs to run it."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> TaskSettings: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def arguments(self) -> Arguments: ...
    @property
    def returns(self) -> Returns: ...


class GroupHandler(Handler, Protocol):
    """The only handler of an address: every message there goes to it."""

    @property
    def address(self) -> str: ...
    @property
    def concurrency(self) -> int | None: ...
    @property
    def batch(self) -> Batch | None: ...
    @property
    def ack(self) -> str: ...
    @property
    def keep_expired(self) -> bool: ...
    @property
    def foreign(self) -> Callable[[bytes], bytes] | None: ...
    @property
    def letters(self) -> Letters: ...


def is_coroutine(fn: Callable[..., Any]) -> bool:
    """Return whether a handler must be awaited. It may be an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
