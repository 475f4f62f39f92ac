"""Ordering keys: their types, their shards, and the users' ``order_by`` functions.

The shard of a key is the 32-bit FNV-1a hash of its bytes (offset basis 2166136261, prime 16777619) modulo the number of shards.
This never changes, so that programs in other languages can publish to the right shard (``docs/guide/ordering.md``). With 8
shards:

    key         bytes               hash        shard
    ""          (none)              2166136261  5
    "a"         61                  3826002220  4
    "foobar"    66 6f 6f 62 61 72   3214735720  0
    "ann"       61 6e 6e            355060760   0
    "müller"    6d c3 bc 6c 6c 65 72  1392138076  4
    42          34 32               2279835011  3
    1.5         31 2e 35            3896645433  1
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol, get_args

from millstream.broker.values import OrderRules
from millstream.errors import UsageError
from millstream.model.settings import integer

Key = str | bytes | int | float
"""An ordering key, as an ``order_by`` function returns it: text, bytes or a number."""


class _KeyOfOne(Protocol):
    """The type of ``lambda customer, **_: customer``. From ``Callable[..., Key]`` alone, type checkers cannot infer the
    parameters of a lambda."""

    def __call__(self, first: Any, /, **others: Any) -> Key: ...


KeyFunction = _KeyOfOne | Callable[..., Key]
"""The ``order_by`` function of a task. It takes the task's parameters by name and returns the ordering key."""

OnFailure = Literal["skip", "stop"]
"""When a message is dead: continue with the next message of its key, or stop the key until it is cleared."""

OFFSET, PRIME, MASK = 2166136261, 16777619, 0xFFFFFFFF

REMEMBERED = 16_384
"""Number of keys whose hash is cached. A cached hash costs 0.1 µs, computing it 0.05 µs per byte, and keys repeat often."""

LONGEST_REMEMBERED = 200
"""Maximum length in bytes of a key with a cached hash, which bounds the memory of the cache."""

SHARDS = 8
"""Default number of shards of an ordered topic."""


def fnv1a(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    value = OFFSET
    for byte in data:
        value = ((value ^ byte) * PRIME) & MASK
    return value


_remembered = lru_cache(REMEMBERED)(fnv1a)


def shard_of_key(key: bytes, shards: int) -> int:
    """Return the shard index of a key. The mapping never changes and is the same in every language."""
    return (_remembered(key) if len(key) <= LONGEST_REMEMBERED else fnv1a(key)) % shards


def key_bytes(value: Any, what: str = "key") -> bytes:
    """Return a key as bytes: text as UTF-8, bytes unchanged, a number as its ``repr()``.

    Raises:
        TypeError: The value has another type, or cannot be encoded. ``what`` begins the message.
    """
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes):
            return bytes(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return int.__repr__(value).encode()
        if isinstance(value, float):
            return float.__repr__(value).encode()
    except ValueError as error:  # half of a surrogate pair, or a number with more digits than Python will print
        raise TypeError(f"{what}: the key cannot be encoded as UTF-8: {error}") from error
    raise TypeError(f"{what}: a key must be text, bytes or a number, not {type(value).__qualname__}: {value!r:.200}")


class KeyOf:
    """A user's ``order_by`` function, checked: returns the ordering key of a message."""

    __slots__ = ("_names", "_parameters", "fn", "what")

    def __init__(self, fn: Any, what: str, like: Callable[..., Any] | None = None) -> None:
        """Check the function. Raise ``UsageError`` if its parameters do not match.

        ``like`` is the task's function, whose parameters it takes by name. ``None`` means that it takes one event.
        """
        if not callable(fn) or inspect.iscoroutinefunction(fn):
            raise UsageError(f"order_by of {what} must be a plain function that returns a key, not {fn!r}")
        self.fn = fn
        self.what = f"order_by of {what} ({getattr(fn, '__qualname__', fn)!s})"
        self._parameters = [] if like is None else list(inspect.signature(like).parameters.values())
        self._names = [
            each.name for each in self._parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        self._check(like is None)

    def of_event(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return the key of an event."""
        try:
            key = self.fn(args[0])
        except Exception as error:
            raise self._raised(error) from error
        return key_bytes(key, self.what)

    def of_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return the key of a call whose arguments are already checked. The function gets all parameters by name, with
        defaults."""
        given: dict[str, Any] = {}
        for each in self._parameters:
            if each.kind is each.VAR_POSITIONAL:
                given[each.name] = tuple(args[len(self._names) :])
            elif each.kind is not each.VAR_KEYWORD and each.default is not each.empty:
                given[each.name] = each.default
        given.update(zip(self._names, args, strict=False))
        given.update(kwargs)
        try:
            key = self.fn(**given)
        except Exception as error:
            raise self._raised(error) from error
        return key_bytes(key, self.what)

    def _raised(self, error: Exception) -> TypeError:
        return TypeError(f"{self.what} raised {type(error).__name__}: {error}; nothing was sent")

    def _check(self, takes_event: bool) -> None:
        try:
            signature = inspect.signature(self.fn)
        except (TypeError, ValueError):  # a C function without a signature
            return
        known = {each.name: None for each in self._parameters if each.kind is not each.VAR_KEYWORD}
        try:
            signature.bind(None) if takes_event else signature.bind(**known)
        except TypeError as error:
            takes = "the event" if takes_event else f"the task's parameters by name ({', '.join(known)}; **_ takes the others)"
            raise UsageError(f"{self.what} must take {takes}: {error}") from None


def order_rules(options: Any, base: OrderRules | None, what: str) -> OrderRules | None:
    """Return the ordering rules: ``base`` with the options ``on_failure`` and ``max_pending_per_key``. ``None`` means
    unordered.

    Raises:
        UsageError: An option is invalid, or is given although there is no order.
    """
    said = [option for option in ("on_failure", "max_pending_per_key") if option in options]
    if base is None:
        for option in said:
            raise UsageError(f"{option}={options[option]!r} of {what} needs an order: add order_by= to the task or topic")
        return None
    on_failure = options.get("on_failure", "stop" if base.stop else "skip")
    if on_failure not in get_args(OnFailure):
        raise UsageError(f"on_failure must be 'skip' or 'stop', not {on_failure!r}")
    return OrderRules(
        stop=on_failure == "stop",
        max_pending=integer(options.get("max_pending_per_key", base.max_pending), "max_pending_per_key", minimum=1),
    )


def consumers_option(value: Any) -> tuple[int, int] | None:
    """Check and return the minimum and maximum number of worker processes. ``None`` means any number."""
    if value is None:
        return None
    pair: Any = value
    if not isinstance(value, tuple) or len(pair) != 2:
        raise UsageError(f"consumers must be a tuple (min, max) of two whole numbers, not {value!r}")
    least, most = pair
    integer(least, "consumers' min", minimum=1)
    if integer(most, "consumers' max", minimum=1) < least:
        raise UsageError(f"consumers={value!r}: min is above max")
    return least, most
