"""Tasks: functions that can be called directly, or enqueued to run in a worker."""

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
"""Names of methods in other libraries, with the Millstream equivalent for the error message."""

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function declared with ``@app.task``. Calling it runs the function directly; ``enqueue`` sends the call to a worker."""

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
        """A router's task only: its copies made by ``options()``. They move to the app together with the task."""
        self._apply()

    @property
    def retry(self) -> RetryPolicy:
        """The retry policy of the task. Change it for a call: ``task.options(retry=task.retry.replace(delay=1.0))``."""
        return self.settings.retry

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Send a call of this task to a worker and return its job. When this returns, the server has stored the job.

        The arguments are those of the function.

        Raises:
            TypeError: The arguments do not match the function's signature or annotations, or ``order_by`` failed for them.
            PayloadTooLarge: The encoded arguments exceed ``max_payload_bytes``.
            QueueFull: The queue has reached its ``max_length``.
            IdConflict: The id belongs to a job of another task.
            ShardsChanged: The server has a different number of shards for the queue than the app declares.
            BrokerUnavailable: The server was unreachable for five seconds. The job may or may not be stored; the exception has
                its id.
        """
        created_id, created, address = await self._clients.here().send(self.template, args, kwargs)
        return Job(created_id, created, self.origin if address == self.origin.queue else self.origin_at(address))

    enqueue_sync = sync_version(enqueue)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call of this task, to enqueue later, for example with ``app.enqueue_many``.

        The arguments are checked when the call is enqueued.
        """
        return Call(self, args, kwargs)

    def options(self, **options: Unpack[CallOptions]) -> Self:
        """Return a copy of this task whose calls have other options: ``task.options(delay=60).enqueue(…)``.

        Durations are seconds or timedeltas:

        - ``delay``: run the job at the earliest after this many seconds
        - ``at``: run the job at the earliest at this datetime, which needs a time zone
        - ``id``: id of the job, 1 to 200 characters; a second enqueue with the same id returns the first job
        - ``queue``: another queue that the app declares
        - ``expires``: seconds after enqueueing, or a datetime, after which the job is no longer started
        - ``headers``: mapping of text to text that travels with the job
        - ``retry``, ``timeout``, ``result_ttl``, ``id_ttl``: as in ``@app.task``

        Raises:
            UsageError: An option is unknown or invalid.
            PayloadTooLarge: The headers exceed ``max_payload_bytes``.
        """
        changed = copy.copy(self)
        changed._options = cast(CallOptions, {**self._options, **options})
        changed._apply()
        if self._copies is not None:
            self._copies.add(changed)
        return changed

    def job(self, id: str) -> Job[R]:
        """Return a job of this task by its id, without I/O. The job must be in the queue of this task.

        If the queue does not have the job, ``info()``, ``result()`` and ``cancel()`` of the job raise ``JobNotFound``.
        """
        return Job(job_id(id), False, replace(self.origin, looked_up=True))

    def origin_at(self, address: Address) -> Origin:
        """Return the shared data of the jobs in one shard of the queue."""
        found = self._origins.get(address)
        if found is None:
            found = self._origins[address] = replace(self.origin, address=address)
        return found

    def wait_for_app(self) -> None:
        """Mark this as a router's task, which takes over a task of an app later."""
        self._copies = WeakSet()

    def become(self, task: Task[P, R]) -> None:
        """Take over the settings and clients of an app's task, in this task and its copies. The copies keep their options."""
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

    if not TYPE_CHECKING:  # otherwise type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            hint = f"; {ELSEWHERE[name]}" if name in ELSEWHERE else ""
            raise AttributeError(f"a task has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<task {self.name!r} in queue {self.template.queue!r}>"


class AsyncTask(Task[P, R]):
    """A task made from an ``async def``. It runs on the worker's event loop."""

    async def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, in this process."""
        result: R = await self.fn(*args, **kwargs)
        return result


class SyncTask(Task[P, R]):
    """A task made from a ``def``. It runs in a thread of the worker."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, in this process."""
        result: R = self.fn(*args, **kwargs)
        return result


class TaskDecorator(Protocol):
    """The decorator that ``app.task(...)`` returns."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...


def make_task(
    fn: Any, settings: TaskSettings, order_by: KeyFunction | None, clients: Clients, queues: Collection[str]
) -> Task[..., Any]:
    """Return a task for a function, async or not."""
    kind = cast(type[Task[..., Any]], AsyncTask if inspect.iscoroutinefunction(fn) else SyncTask)
    key_of = None if order_by is None else KeyOf(order_by, f"task {settings.name!r}", like=fn)
    return kind(fn, settings, clients, queues, key_of)


def default_name(fn: Any, named: bool) -> str:
    """Return the function's name. Raise ``UsageError`` if it cannot be a task, or is a lambda and ``named`` is false."""
    if isinstance(fn, Task):
        raise UsageError(f"{fn!r} is already a task: decorate the function once")
    if not inspect.isroutine(fn):
        kind = "a class" if inspect.isclass(fn) else f"a {type(fn).__name__}"
        raise UsageError(f"a task must be a function, `def` or `async def`; {fn!r} is {kind}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UsageError(f"{fn.__qualname__}() is a generator, but a task returns one value: return a list instead of yielding")
    own_name: str = fn.__name__
    if own_name == "<lambda>" and not named:
        raise UsageError("a lambda has no name: give the task one with name=")
    return own_name
