"""Frozen settings of apps, queues and tasks, and the checks every option passes at declaration."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from millstream.broker.values import OrderRules
from millstream.errors import UsageError
from millstream.model.policy import RetryPolicy

FORBIDDEN_IN_NAMES = ":{}>/"
"""Names are parts of keys and addresses: these characters would break out of a key's hash tag, or divide an address."""


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """What holds for a whole app. Seconds throughout."""

    namespace: str = "millstream"
    lease: float = 30.0
    max_crashes: int = 3
    grace: float = 25.0
    timeout: float = 1800.0
    retry: RetryPolicy = RetryPolicy()
    result_ttl: float = 600.0
    id_ttl: float = 86_400.0
    unknown_task_grace: float = 600.0
    max_payload_bytes: int | None = 1 << 20


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """What holds for one queue."""

    name: str
    max_length: int | None = None
    shards: int = 0
    """0: it is none of several."""
    consumers: tuple[int, int] | None = None
    """How many worker processes serve it, at least and at most; None: any number."""


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """What holds for one topic."""

    name: str
    max_length: int | None = 1_000_000
    keep: float | None = None
    """Seconds for which an event is kept although every group was given it; None: as it is, 0: not at all."""
    keep_count: int | None = None
    """How many of the latest are."""
    start: str | float = "beginning"
    """Where its groups begin, if they do not say: a place in its log."""
    shards: int = 0
    """0: it has no order."""
    order: OrderRules | None = None
    """What holds for its groups if they do not say; None: it has no order."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What holds for one task, with the app's defaults filled in. Seconds throughout."""

    name: str
    aliases: tuple[str, ...]
    queue: str
    timeout: float
    """0: no timeout."""
    result_ttl: float
    """0: no result is kept."""
    expires: float
    """0: never expires."""
    max_crashes: int
    """0: at most once."""
    retry: RetryPolicy
    max_payload_bytes: int | None
    order: OrderRules | None = None
    """What holds in its queue for jobs that have a key; None: its own have none."""
    id_ttl: float | None = None
    """For how long a given id is remembered after its job has ended; None: as the app says."""


def seconds(value: Any, option: str, *, minimum: float = 0.0, above: bool = False) -> float:
    """A duration option as float seconds. ``above``: the minimum itself is refused too."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise UsageError(f"{option} must be a number of seconds or a timedelta, not {value!r}")
    if number < minimum or (above and number <= minimum):
        raise UsageError(f"{option} must be {'more than' if above else 'at least'} {minimum:g} s, not {value!r}")
    return float(number)


def integer(value: Any, option: str, *, minimum: int) -> int:
    """A counting option."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UsageError(f"{option} must be a whole number, {minimum} or more, not {value!r}")
    return value


def topic_name(value: Any, option: str = "topic") -> str:
    """The name of a topic, or what it begins with: '*' stands for the rest of one."""
    if "*" in name(value, option):
        raise UsageError(f"{option} may not contain '*', which stands for the rest of a topic's name: {value!r}")
    return str(value)


def name(value: Any, option: str) -> str:
    """A name that may become part of a key."""
    if not isinstance(value, str) or not value.strip() or len(value) > 200:
        raise UsageError(f"{option} must be text of 1 to 200 characters, not all of them blank, not {value!r:.250}")
    if any(c in FORBIDDEN_IN_NAMES or unicodedata.category(c) in ("Cc", "Cs") for c in value):
        raise UsageError(f"{option} may not contain ':', '{{', '}}', '>', '/' or control characters: {value!r}")
    return value
