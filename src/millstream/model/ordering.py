"""Order per key: what may be a key, where its messages go, and the functions of users that say it.

The shard of a key is the 32-bit FNV-1a hash of its bytes (offset basis 2166136261, prime 16777619) modulo the number of shards.
That never changes, so that programs in other languages can publish; ``docs/guide/ordering.md`` says how. Of 8 shards:

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
"""What a function for ``order_by`` returns: text, bytes, or a number."""


class _KeyOfOne(Protocol):
    """What a checker takes ``lambda customer, **_: customer`` for: of ``Callable[..., Key]`` alone it knows no parameters."""

    def __call__(self, first: Any, /, **others: Any) -> Key: ...


KeyFunction = _KeyOfOne | Callable[..., Key]
"""A function for ``order_by`` of a task: takes the parameters of the task, by name."""

OnFailure = Literal["skip", "stop"]
"""When a message of a key is dead: go on with the next, or stop the key until somebody clears it."""

OFFSET, PRIME, MASK = 2166136261, 16777619, 0xFFFFFFFF

REMEMBERED = 16_384
"""Keys whose hash is kept: 0.1 µs instead of 0.05 µs per byte, and keys come again and again."""

LONGEST_REMEMBERED = 200
"""Bytes; the hash of a longer key is reckoned each time, so that what is kept stays small."""

SHARDS = 8
"""Of an ordered topic that does not say how many."""


def fnv1a(data: bytes) -> int:
    """The 32-bit FNV-1a hash."""
    value = OFFSET
    for byte in data:
        value = ((value ^ byte) * PRIME) & MASK
    return value


_remembered = lru_cache(REMEMBERED)(fnv1a)


def shard_of_key(key: bytes, shards: int) -> int:
    """Which of so many shards the messages of a key go to. It never changes, and is the same in every language."""
    return (_remembered(key) if len(key) <= LONGEST_REMEMBERED else fnv1a(key)) % shards


def key_bytes(value: Any, what: str = "key") -> bytes:
    """A key as it travels: text as UTF-8, bytes as they are, a number as Python writes it. TypeError for anything else."""
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes):
            return bytes(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return int.__repr__(value).encode()
        if isinstance(value, float):
            return float.__repr__(value).encode()
    except ValueError as error:  # half of a surrogate pair, or a number of more digits than Python will write
        raise TypeError(f"{what}: a key travels as UTF-8, and this cannot: {error}") from error
    raise TypeError(f"{what}: a key is text, bytes or a number, not {type(value).__qualname__}: {value!r:.200}")


class KeyOf:
    """A user's function for ``order_by``: which key a message has."""

    __slots__ = ("_names", "_parameters", "fn", "what")

    def __init__(self, fn: Any, what: str, like: Callable[..., Any] | None = None) -> None:
        """``like``: it takes the parameters of this function, by name; None: it takes an event. UsageError if it does not."""
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
        """The key of an event."""
        try:
            key = self.fn(args[0])
        except Exception as error:
            raise self._raised(error) from error
        return key_bytes(key, self.what)

    def of_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """The key of a call whose arguments are known to fit: the function is given all parameters by name, defaults too."""
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
        except (TypeError, ValueError):  # made in C: it says nothing of what it takes
            return
        known = {each.name: None for each in self._parameters if each.kind is not each.VAR_KEYWORD}
        try:
            signature.bind(None) if takes_event else signature.bind(**known)
        except TypeError as error:
            takes = "the event" if takes_event else f"the task's parameters by name ({', '.join(known)}); **_ takes the others"
            raise UsageError(f"{self.what} must take {takes}: {error}") from None


def order_rules(options: Any, base: OrderRules | None, what: str) -> OrderRules | None:
    """What ``on_failure`` and ``max_pending_per_key`` among some options make of the rules; None: there is no order.

    UsageError if they make no sense, or there is no order for which they could hold.
    """
    said = [option for option in ("on_failure", "max_pending_per_key") if option in options]
    if base is None:
        for option in said:
            raise UsageError(f"{option}={options[option]!r} of {what}: it has no order; say order_by= too")
        return None
    on_failure = options.get("on_failure", "stop" if base.stop else "skip")
    if on_failure not in get_args(OnFailure):
        raise UsageError(f"on_failure must be 'skip' or 'stop', not {on_failure!r}")
    return OrderRules(
        stop=on_failure == "stop",
        max_pending=integer(options.get("max_pending_per_key", base.max_pending), "max_pending_per_key", minimum=1),
    )


def consumers_option(value: Any) -> tuple[int, int] | None:
    """How many worker processes serve something, at least and at most; None: any number."""
    if value is None:
        return None
    pair: Any = value
    if not isinstance(value, tuple) or len(pair) != 2:
        raise UsageError(f"consumers must be two whole numbers (min, max), not {value!r}")
    least, most = pair
    integer(least, "consumers' min", minimum=1)
    if integer(most, "consumers' max", minimum=1) < least:
        raise UsageError(f"consumers={value!r}: min is above max")
    return least, most
