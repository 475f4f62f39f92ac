"""Retry policies: when a failed job runs again. Pure functions of attempts and exceptions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, Literal, Self, cast, get_args

import msgspec

from millstream.errors import Retry, UsageError
from millstream.model.types import Seconds

BackoffKind = Literal["fixed", "linear", "exponential"]
ExceptionSpec = type[BaseException] | str
"""An exception class, or its dotted name, as stored with a call."""


class RetryRule(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A ``RetryPolicy`` as stored with a call. Exception classes are dotted names."""

    max_retries: int
    delay: float
    backoff: BackoffKind
    max_delay: float
    jitter: bool
    delays: tuple[float, ...] | None
    on: tuple[str, ...]
    never_on: tuple[str, ...]
    retry_timeouts: bool = True


@dataclass(frozen=True)
class RetryPolicy:
    """When and how often a failed job or event runs again. ``RetryPolicy(n)`` allows n retries after the first attempt.

    Durations are seconds or timedeltas. Raises ``UsageError`` if a value is invalid.
    """

    max_retries: int = 8
    """Maximum number of retries, so that there are at most ``max_retries + 1`` attempts. 0 disables retries."""
    _: KW_ONLY
    delay: Seconds = 2.0
    """Delay before the first retry."""
    backoff: BackoffKind = "exponential"
    """Delay before retry k: ``delay`` (``"fixed"``), ``delay * k`` (``"linear"``) or ``delay * 2**(k-1)``
    (``"exponential"``)."""
    max_delay: Seconds = 600.0
    """Maximum delay before a retry."""
    jitter: bool = True
    """Reduce each delay by a random part, up to half of it, so that failed jobs do not all run again at the same time."""
    delays: Sequence[Seconds] | None = None
    """The exact delays, instead of ``delay``, ``backoff``, ``max_delay`` and ``jitter``. The last one repeats."""
    retry_timeouts: bool = True
    """Whether an attempt that timed out is retried. With ``False`` it is dead immediately, with the reason ``timeout``."""
    on: Sequence[ExceptionSpec] = (Exception,)
    """Exception classes that are retried. Any other exception makes the job dead immediately, with the reason ``rejected``."""
    never_on: Sequence[ExceptionSpec] = ()
    """Exception classes that are not retried, even if they match ``on``."""

    def __post_init__(self) -> None:
        if isinstance(self.max_retries, bool) or not isinstance(self.max_retries, int) or self.max_retries < 0:
            raise UsageError(f"RetryPolicy(max_retries) must be a whole number, zero or more, not {self.max_retries!r}")
        for name in ("delay", "max_delay"):
            object.__setattr__(self, name, _seconds(getattr(self, name), name))
        if self.backoff not in get_args(BackoffKind):
            raise UsageError(f"RetryPolicy(backoff) must be one of {', '.join(get_args(BackoffKind))}, not {self.backoff!r}")
        if self.delays is not None:
            ladder = _items(self.delays, "RetryPolicy(delays) takes a sequence of delays, like [1, 10, 60]")
            if not ladder:
                raise UsageError("RetryPolicy(delays) must have at least one delay; pass None to use delay and backoff")
            object.__setattr__(self, "delays", tuple(_seconds(rung, "delays") for rung in ladder))
        if not isinstance(self.retry_timeouts, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"RetryPolicy(retry_timeouts) must be True or False, not {self.retry_timeouts!r}")
        for name in ("on", "never_on"):
            object.__setattr__(self, name, _check_exceptions(getattr(self, name), name))

    def replace(self, **changes: Any) -> Self:
        """Return a copy of this policy with other values: ``policy.replace(delay=1.0)``."""
        return dataclasses.replace(self, **changes)

    def retries(self, error: BaseException) -> bool:
        """Return whether this kind of exception is retried."""
        if isinstance(error, Retry):
            return True
        return _matches(error, self.on) and not _matches(error, self.never_on)

    def wait(self, attempt: int, random: Callable[[], float]) -> float:
        """Return the seconds between the failure of ``attempt`` (starting at 1) and the next attempt. It never overflows."""
        if self.delays is not None:
            return cast(float, self.delays[min(attempt, len(self.delays)) - 1])
        delay = cast(float, self.delay)
        if self.backoff == "fixed":
            wait = delay
        elif self.backoff == "linear":
            wait = delay * attempt
        else:
            # 2**64 seconds exceed any max_delay. Without the limit, the float power would overflow near attempt 1,030.
            wait = delay * 2.0 ** min(attempt - 1, 64)
        wait = min(wait, cast(float, self.max_delay))
        return wait * (0.5 + 0.5 * random()) if self.jitter else wait

    def to_rule(self) -> RetryRule:
        """Return the form that is stored with a call."""
        return RetryRule(
            self.max_retries,
            cast(float, self.delay),
            self.backoff,
            cast(float, self.max_delay),
            self.jitter,
            cast("tuple[float, ...] | None", self.delays),
            tuple(_name(e) for e in self.on),
            tuple(_name(e) for e in self.never_on),
            self.retry_timeouts,
        )

    @classmethod
    def from_rule(cls, rule: RetryRule) -> RetryPolicy:
        """Return the policy that was stored with a call."""
        return cls(
            rule.max_retries,
            delay=rule.delay,
            backoff=rule.backoff,
            max_delay=rule.max_delay,
            jitter=rule.jitter,
            delays=rule.delays,
            on=rule.on,
            never_on=rule.never_on,
            retry_timeouts=rule.retry_timeouts,
        )


def as_policy(value: object, base: RetryPolicy, option: str = "retry") -> RetryPolicy:
    """Return the value of a ``retry`` option as a policy. A number replaces ``max_retries`` of ``base``."""
    if isinstance(value, RetryPolicy):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return base.replace(max_retries=value)
    if value is Retry or isinstance(value, Retry):
        raise UsageError(f"{option}={value!r}: handlers raise Retry; this option takes a RetryPolicy or a number of retries")
    raise UsageError(f"{option} takes a RetryPolicy or a number of retries, not {value!r}")


def _name(spec: ExceptionSpec) -> str:
    return spec if isinstance(spec, str) else f"{spec.__module__}.{spec.__qualname__}"


def _matches(error: BaseException, specs: Sequence[ExceptionSpec]) -> bool:
    lineage = type(error).__mro__
    return any(spec in lineage if isinstance(spec, type) else any(_name(c) == spec for c in lineage) for spec in specs)


def _seconds(value: Any, name: str) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number) or number < 0:
        raise UsageError(f"RetryPolicy({name}) must be a number of seconds or a timedelta, zero or more, not {value!r}")
    return float(number)


def _check_exceptions(value: Any, name: str) -> tuple[ExceptionSpec, ...]:
    rule = f"RetryPolicy({name}) takes exception classes"
    specs = (value,) if isinstance(value, type | str) else _items(value, rule)
    for spec in specs:
        if not (isinstance(spec, str) or (isinstance(spec, type) and issubclass(spec, BaseException))):
            raise UsageError(f"{rule}, not {spec!r}")
    return specs


def _items(value: Any, rule: str) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError:
        raise UsageError(f"{rule}, not {value!r}") from None
