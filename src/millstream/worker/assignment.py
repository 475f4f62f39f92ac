"""What an app gives one of its workers to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from millstream.events.broadcast import Broadcast
from millstream.events.subscription import PrefixSubscription
from millstream.jobs.task import Task
from millstream.model.address import Address
from millstream.model.handler import GroupHandler
from millstream.model.serving import Serving
from millstream.model.settings import AppSettings
from millstream.reporting.observers import Observers


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Where a worker serves, which handlers it runs there, and how many at once."""

    settings: AppSettings
    queues: Sequence[Address]
    """The addresses that it serves."""
    serving: Sequence[Serving] = ()
    """How it joins them. An address that is not here has no shards, and no limit of consumers."""
    tasks: Mapping[str, Task[..., Any]] = field(default_factory=dict[str, Task[..., Any]])
    subscriptions: Mapping[Address, GroupHandler] = field(default_factory=dict[Address, GroupHandler])
    """What handles events and dead letters, by address."""
    prefixes: Mapping[Address, PrefixSubscription] = field(default_factory=dict[Address, PrefixSubscription])
    broadcasts: Sequence[Broadcast] = ()
    concurrency: int
    """How many coroutines it runs at once."""
    threads: int
    """How many functions it runs at once, each in a thread."""
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """Entered when the worker starts, left when it stops."""
    observers: Observers | None = None
    where: str = ""
    """Where the queues are, for the log."""
