"""What a worker runs: a task, a group's subscription, a broadcast, or what becomes of a group's dead letters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from millstream.codec.encoder import Payload
from millstream.events.batch import Batch
from millstream.model.settings import TaskSettings

Letters = Literal["", "handled", "moved"]
"""What is done with what comes, where these are dead letters: given to a handler, or moved to a topic."""


class Arguments(Protocol):
    """Turns what travelled into what the function is called with; InvalidArguments if it does not fit."""

    def decode(self, payload: Payload, /) -> tuple[tuple[Any, ...], Mapping[str, Any]]: ...


class Returns(Protocol):
    """Turns what the function returned into what is kept; InvalidResult if it cannot be."""

    def encode(self, value: Any, /) -> bytes: ...


class Handler(Protocol):
    """A function with what a worker must know to run it."""

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
    """What handles all that comes at one address."""

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
    """Whether a handler is awaited; an object may be one."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
