"""Frozen settings of apps, queues, topics and tasks, and the checks of options at their declaration."""

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
"""Names are part of Redis keys and of addresses. These characters would end the hash tag of a key, or split an address."""


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """Settings of an app, as ``Millstream(…)`` documents them. All durations are seconds."""

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
    replicas: int = 0
    replicas_timeout: float = 1.0


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """Settings of a queue."""

    name: str
    """Name of the queue."""
    max_length: int | None = None
    """Maximum number of ready, running, scheduled and blocked jobs. ``None`` means no limit."""
    shards: int = 0
    """Number of shards. 0 means the queue is not sharded."""
    consumers: tuple[int, int] | None = None
    """Minimum and maximum number of worker processes that serve the queue. ``None`` means any number."""


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """Settings of a topic."""

    name: str
    """Name of the topic."""
    max_length: int | None = 1_000_000
    """Maximum number of stored events that a group has not received. ``None`` means no limit."""
    keep: float | None = None
    """Seconds for which events stay stored after every group has received them. 0 disables it; ``None`` leaves it unchanged."""
    keep_count: int | None = None
    """Number of newest events that stay stored. 0 disables it; ``None`` leaves it unchanged."""
    start: str | float = "beginning"
    """Position in the log at which new groups start by default."""
    shards: int = 0
    """Number of shards. 0 means the topic is not ordered."""
    order: OrderRules | None = None
    """Default rules for the groups of an ordered topic. ``None`` means the topic is not ordered."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Settings of a task, with the app's defaults filled in. All durations are seconds."""

    name: str
    """Name of the task."""
    aliases: tuple[str, ...]
    """Former names of the task."""
    queue: str
    """Name of the queue."""
    timeout: float
    """Maximum duration of an attempt. 0 means no limit."""
    result_ttl: float
    """How long a result is stored. 0 stores none."""
    expires: float
    """Time after enqueueing until the job is no longer started. 0 means never."""
    max_crashes: int
    """Number of crashes that a job survives. 0 means at most once."""
    retry: RetryPolicy
    """The retry policy."""
    max_payload_bytes: int | None
    """Maximum size of the encoded arguments. ``None`` means no limit."""
    order: OrderRules | None = None
    """Rules for ordered jobs in the task's queue. ``None`` means the task is not ordered."""
    id_ttl: float | None = None
    """How long an id chosen by the caller stays reserved after its job has ended. ``None`` uses the app's setting."""


def seconds(value: Any, option: str, *, minimum: float = 0.0, above: bool = False) -> float:
    """Check a duration and return it in seconds. With ``above`` it must be greater than ``minimum``."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise UsageError(f"{option} must be a number of seconds or a timedelta, not {value!r}")
    if number < minimum or (above and number <= minimum):
        raise UsageError(f"{option} must be {'more than' if above else 'at least'} {minimum:g} s, not {value!r}")
    return float(number)


def integer(value: Any, option: str, *, minimum: int) -> int:
    """Check and return a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UsageError(f"{option} must be a whole number, {minimum} or more, not {value!r}")
    return value


def topic_name(value: Any, option: str = "topic") -> str:
    """Check and return the name of a topic, or a prefix of names."""
    if "*" in name(value, option):
        raise UsageError(f"{option} may not contain '*', which is reserved for prefixes: {value!r}")
    return str(value)


def name(value: Any, option: str) -> str:
    """Check and return a name, which may become part of a key."""
    if not isinstance(value, str) or not value.strip() or len(value) > 200:
        raise UsageError(f"{option} must be non-blank text of 1 to 200 characters, not {value!r:.250}")
    if any(c in FORBIDDEN_IN_NAMES or unicodedata.category(c) in ("Cc", "Cs") for c in value):
        raise UsageError(f"{option} may not contain ':', '{{', '}}', '>', '/' or control characters: {value!r}")
    return value
