"""What a worker runs: a task, a group's subscription, or a broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from millstream.codec.wire import Payload
from millstream.settings import TaskSettings


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
