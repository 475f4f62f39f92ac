"""The assignment: everything that an app passes to one of its workers."""

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
    """The addresses that a worker serves, the handlers that it runs, and its concurrency."""

    settings: AppSettings
    queues: Sequence[Address]
    """The addresses that the worker serves."""
    serving: Sequence[Serving] = ()
    """How the worker joins these addresses. An address that is not listed has no shards and no limit on consumers."""
    tasks: Mapping[str, Task[..., Any]] = field(default_factory=dict[str, Task[..., Any]])
    subscriptions: Mapping[Address, GroupHandler] = field(default_factory=dict[Address, GroupHandler])
    """Handlers of events and dead letters, by address."""
    prefixes: Mapping[Address, PrefixSubscription] = field(default_factory=dict[Address, PrefixSubscription])
    broadcasts: Sequence[Broadcast] = ()
    concurrency: int
    """Maximum number of coroutines that run at the same time."""
    threads: int
    """Maximum number of plain functions that run at the same time, each in a thread."""
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """Entered when the worker starts, left when it stops."""
    observers: Observers | None = None
    where: str = ""
    """The server's location, for the log."""
