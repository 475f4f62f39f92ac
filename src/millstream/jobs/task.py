"""A task: a function that can be called here, or enqueued to run in a worker."""

from __future__ import annotations

import copy
import functools
import inspect
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload
from weakref import WeakSet

from millstream.client import Clients, Template, sync_version
from millstream.codec import ArgumentCodec, ResultCodec
from millstream.errors import UsageError
from millstream.jobs.call import Call
from millstream.jobs.job import Job, Origin
from millstream.model.address import Address
from millstream.model.ordering import KeyFunction, KeyOf
from millstream.model.policy import RetryPolicy
from millstream.model.settings import TaskSettings
from millstream.options import CallOptions, call_settings, job_id

ELSEWHERE = {
    "apply_async": "use .enqueue(…), or .options(delay=…).enqueue(…)",
    "defer": "use .enqueue(…)",
    "delay": "use .enqueue(…), or .options(delay=…).enqueue(…) to run it later",
    "kiq": "use .enqueue(…)",
    "s": "use .bind(…)",
    "schedule": "use .options(delay=…).enqueue(…) or .options(at=…).enqueue(…)",
    "send": "use .enqueue(…)",
    "send_with_options": "use .options(…).enqueue(…)",
    "si": "use .bind(…)",
}
"""How other libraries call what a task does, and how it is called here."""

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A declared function. Calling it calls the function; ``enqueue`` sends the call to a worker."""

    def __init__(
        self,
        fn: Callable[P, Any],
        settings: TaskSettings,
        clients: Clients,
        queues: Collection[str],
        key_of: KeyOf | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        functools.update_wrapper(cast(Any, self), fn)
        self.fn = fn
        self.name = settings.name
        self.settings = settings
        self.is_async = inspect.iscoroutinefunction(fn)
        self.arguments = ArgumentCodec(fn, task=settings.name)
        self.returns = ResultCodec(fn, task=settings.name)
        self._clients = clients
        self._queues = queues
        self._key_of = key_of
        self._clock = clock
        self._options: CallOptions = {}
        self._copies: WeakSet[Self] | None = None
        """Of a router's task: those with options, which an app is to have with it."""
        self._apply()

    @property
    def retry(self) -> RetryPolicy:
        """The policy its jobs are retried by: ``task.options(retry=task.retry.replace(delay=1.0))``."""
        return self.settings.retry

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Accepted once this returns: the job will run, whatever worker dies.

        Raises TypeError if the arguments do not fit the function or ``order_by`` has no key for them, PayloadTooLarge,
        QueueFull, IdConflict, ShardsChanged if the queue has another number of shards than is declared here, and
        BrokerUnavailable, with the job's id, if the server stays away for five seconds.
        """
        created_id, created, address = await self._clients.here().send(self.template, args, kwargs)
        return Job(created_id, created, self.origin if address == self.origin.queue else self.origin_at(address))

    enqueue_sync = sync_version(enqueue)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """This task with arguments, to enqueue later; they are checked then."""
        return Call(self, args, kwargs)

    def options(self, **options: Unpack[CallOptions]) -> Self:
        """The same task, with options for the calls made through it; UsageError at once if they make no sense.

        ``delay`` (seconds) or ``at`` (an aware datetime): not before then. ``id``: enqueued once under this id. ``queue``: one
        the app declares. ``expires``: seconds after which it is not started, or a moment. ``headers``: a mapping
        of text to text that travels with the job. ``retry``, ``timeout``, ``result_ttl`` and ``id_ttl`` as in the declaration.
        """
        changed = copy.copy(self)
        changed._options = cast(CallOptions, {**self._options, **options})
        changed._apply()
        if self._copies is not None:
            self._copies.add(changed)
        return changed

    def job(self, id: str) -> Job[R]:
        """A job of this task that was enqueued before, here or elsewhere, in the queue that this task sends to. No I/O.

        If that queue does not know it, ``info()``, ``result()`` and ``cancel()`` raise JobNotFound.
        """
        return Job(job_id(id), False, replace(self.origin, looked_up=True))

    def origin_at(self, address: Address) -> Origin:
        """What the jobs that went to one shard of its queue have in common."""
        found = self._origins.get(address)
        if found is None:
            found = self._origins[address] = replace(self.origin, address=address)
        return found

    def wait_for_app(self) -> None:
        """It is a router's, and will become the task of an app."""
        self._copies = WeakSet()

    def become(self, task: Task[P, R]) -> None:
        """Be the same as a task of an app, in all its copies; their options stay."""
        for each in (self, *(self._copies or ())):
            each.name, each.settings, each.arguments, each.returns = task.name, task.settings, task.arguments, task.returns
            each._clients, each._queues, each._key_of = task._clients, task._queues, task._key_of
            each._apply()

    def _apply(self) -> None:
        call = call_settings(self._options, self.settings, self._queues, self._clock())
        self.template = Template(
            task=self.name,
            queue=Address(call.queue),
            arguments=self.arguments,
            max_payload_bytes=self.settings.max_payload_bytes,
            id=call.id,
            delay=call.delay,
            at=call.at,
            expires=call.expires,
            expires_at=call.expires_at,
            overrides=call.overrides,
            event=call.fields,
            id_ttl=call.id_ttl,
            key=None if self._key_of is None else self._key_of.of_call,
        )
        self._origins: dict[Address, Origin] = {}
        self.origin = Origin(self._clients, call.queue, self.name, self.returns.decode, call.result_ttl > 0)

    if not TYPE_CHECKING:  # or type checkers would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            hint = f"; {ELSEWHERE[name]}" if name in ELSEWHERE else ""
            raise AttributeError(f"a task has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<task {self.name!r} in queue {self.template.queue!r}>"


class AsyncTask(Task[P, R]):
    """A task over an ``async def``: runs on the worker's event loop."""

    async def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        result: R = await self.fn(*args, **kwargs)
        return result


class SyncTask(Task[P, R]):
    """A task over a ``def``: runs in one of the worker's threads."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        result: R = self.fn(*args, **kwargs)
        return result


class TaskDecorator(Protocol):
    """What ``app.task(...)`` returns."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...


def make_task(
    fn: Any, settings: TaskSettings, order_by: KeyFunction | None, clients: Clients, queues: Collection[str]
) -> Task[..., Any]:
    """A task over a function, async or not."""
    kind = cast(type[Task[..., Any]], AsyncTask if inspect.iscoroutinefunction(fn) else SyncTask)
    key_of = None if order_by is None else KeyOf(order_by, f"task {settings.name!r}", like=fn)
    return kind(fn, settings, clients, queues, key_of)


def default_name(fn: Any, named: bool) -> str:
    """The function's own name; UsageError for what can never be a task, or has no name and was not given one."""
    if isinstance(fn, Task):
        raise UsageError(f"{fn!r} is a task already: decorate the function once")
    if not inspect.isroutine(fn):
        kind = "a class" if inspect.isclass(fn) else f"a {type(fn).__name__}"
        raise UsageError(f"a task is a function, `def` or `async def`; {fn!r} is {kind}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UsageError(f"{fn.__qualname__}() is a generator: a task returns one value")
    own_name: str = fn.__name__
    if own_name == "<lambda>" and not named:
        raise UsageError("a lambda has no name of its own: give it one with name=")
    return own_name
