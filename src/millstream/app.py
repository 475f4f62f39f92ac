"""The ``Millstream`` app: users declare tasks, queues and topics on it, and it wires all parts together."""

from __future__ import annotations

import asyncio
import importlib
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from types import MappingProxyType, TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

import msgspec

from millstream.aio.backoff import START_SECONDS, patiently
from millstream.backends import make_backend, where
from millstream.broker import Broker
from millstream.catalog import Catalog
from millstream.client import ClientInspector, Clients, new_request, open_topic, run_sync, sync_version
from millstream.codec import Codec, CodecName, EventCodec
from millstream.config import discover_namespace, discover_url
from millstream.declarations import Declarations, Subscribe
from millstream.errors import BrokerUnavailable, BulkError, UsageError
from millstream.events.consumer import Consumer
from millstream.events.group import Group
from millstream.events.subscription import PrefixSubscription, Subscription
from millstream.events.topic import Topic
from millstream.jobs.bulk import Bulk
from millstream.jobs.call import Call
from millstream.jobs.dead import DeadLetters
from millstream.jobs.job import Job, Origin
from millstream.jobs.queue import Queue
from millstream.jobs.task import Task, make_task
from millstream.model.address import Address
from millstream.model.ordering import KeyOf
from millstream.model.policy import RetryPolicy
from millstream.model.settings import AppSettings, QueueSettings, TopicSettings, integer, seconds, topic_name
from millstream.model.settings import name as checked_name
from millstream.model.types import Seconds
from millstream.options import (
    TaskOptions,
    job_id,
    payload_option,
    result_ttl_option,
    retry_option,
    task_settings,
    timeout_option,
)
from millstream.reporting.observers import Observer, Observers
from millstream.router import Router, check_router
from millstream.url import Url, parse_url
from millstream.worker.assignment import Assignment
from millstream.worker.inside import run_until_stopped
from millstream.worker.scaling.requests import HOLD_SECONDS, scale
from millstream.worker.services.keeper import KeeperThread
from millstream.worker.summary import Summary
from millstream.worker.worker import Worker

WORKER_CONCURRENCY, WORKER_THREADS = 32, 8
"""Default number of coroutines, and of functions in threads, that a worker process runs at the same time."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Observing = TypeVar("Observing", bound=Observer)

Lifespan = Callable[["Millstream"], AbstractAsyncContextManager[Any]]
"""An async context manager for a worker's resources. The worker enters it at start and leaves it at stop; handlers read the
yielded value from ``current_job().state``."""


class Millstream(Declarations):
    """An application: its tasks, queues and topics, and the server that stores their messages.

    Creating an app opens no connection and starts no thread; both happen on first use. Durations are seconds or timedeltas.

    Args:
        url: Server URL. ``None`` uses ``$MILLSTREAM_URL``, then ``url`` under ``[tool.millstream]`` in ``pyproject.toml``, then
            the embedded server.
        namespace: Prefix of all keys. Apps with different namespaces can share a server without seeing each other's data.
            ``None`` uses ``$MILLSTREAM_NAMESPACE``, then ``namespace`` under ``[tool.millstream]``, then ``"millstream"``.
        include: Names of modules that declare tasks, queues or topics on this app. A worker imports them when it starts.
        lifespan: Function that takes the app and returns an async context manager. Each worker process enters it at start and
            leaves it at stop. Handlers read the yielded value from ``current_job().state``.
        lease: Seconds after which the jobs of a worker that has lost contact with the server are redelivered. Above 0.
        max_crashes: Number of crashes that a job survives. A crash means that a worker died while running the job. After one
            more the job is dead with the reason ``crashed``. 0 means at most once: the job never runs again after a crash.
        grace: Seconds that running jobs have to finish when a worker stops. Unfinished jobs are redelivered.
        timeout: Seconds that one attempt may run. ``None`` means no limit. A coroutine is cancelled. A function in a thread
            cannot be stopped; ``current_job().cancelled`` becomes true.
        retry: Retry policy of tasks and groups. A number changes only ``max_retries`` of the default policy.
        result_ttl: Seconds for which the result of a job is stored. 0 or ``None`` stores none.
        id_ttl: Seconds for which an id chosen by the caller stays reserved after its job has ended. Above 0.
        unknown_task_grace: Seconds that a job waits for a worker that has its task. Then it is dead (``unknown_task``).
        max_payload_bytes: Maximum size of the encoded arguments of a job, or of an event. ``None`` means no limit.
        replicas: Number of replicas that must acknowledge a job or event before ``enqueue`` and ``publish`` return. 0 waits for
            none: a failover may lose what the primary accepted last.
        replicas_timeout: Seconds that these acknowledgements may take. After that ``enqueue`` and ``publish`` raise
            ``BrokerUnavailable``.

    Raises:
        UsageError: An option or the URL is invalid. The message names the option and its value.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        include: Sequence[str] = (),
        lifespan: Lifespan | None = None,
        lease: Seconds = 30.0,
        max_crashes: int = 3,
        grace: Seconds = 25.0,
        timeout: Seconds | None = 1800.0,
        retry: RetryPolicy | int = RetryPolicy(),
        result_ttl: Seconds | None = 600,
        id_ttl: Seconds = 86_400,
        unknown_task_grace: Seconds = 600.0,
        max_payload_bytes: int | None = 1 << 20,
        replicas: int = 0,
        replicas_timeout: Seconds = 1.0,
    ) -> None:
        self.settings = AppSettings(
            namespace=checked_name(discover_namespace(namespace), "namespace"),
            lease=seconds(lease, "lease", above=True),
            max_crashes=integer(max_crashes, "max_crashes", minimum=0),
            grace=seconds(grace, "grace"),
            timeout=timeout_option(timeout),
            retry=retry_option(retry, RetryPolicy()),
            result_ttl=result_ttl_option(result_ttl),
            id_ttl=seconds(id_ttl, "id_ttl", above=True),
            unknown_task_grace=seconds(unknown_task_grace, "unknown_task_grace"),
            max_payload_bytes=payload_option(max_payload_bytes),
            replicas=integer(replicas, "replicas", minimum=0),
            replicas_timeout=seconds(replicas_timeout, "replicas_timeout", above=True),
        )
        self.include = _modules(include)
        self.lifespan = lifespan
        self._url = None if url is None else parse_url(discover_url(url))
        self.catalog = Catalog()
        self._declared: dict[str, Queue] = {}
        self.observers = Observers()
        self._clients = Clients(
            lambda: make_backend(self.url, self.settings),
            MappingProxyType(self.catalog.queues),
            MappingProxyType(self.catalog.topics),
            MappingProxyType(self.catalog.prefixes),
            self.observers,
        )
        self._stops: set[Callable[[], None]] = set()
        self.inspector = ClientInspector(self._clients)
        self.dead = DeadLetters(self._clients)

    # -- properties --------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> Url:
        """The server URL. Without a ``url`` argument, it is read from the environment or ``pyproject.toml`` on first use."""
        if self._url is None:
            self._url = parse_url(discover_url(None))
        return self._url

    @property
    def where(self) -> str:
        """The server in readable form, for logs: the URL without its password, or the folder of the embedded server."""
        return where(self.url, self.settings.namespace)

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks of this app, by name and by alias."""
        return MappingProxyType(self.catalog.tasks)

    @property
    def queues(self) -> Mapping[str, QueueSettings]:
        """The settings of every declared queue, by name. A task's ``queue`` option declares its queue."""
        return MappingProxyType(self.catalog.queues)

    def load(self) -> None:
        """Import the modules in ``include`` and check the annotations of every task. A worker calls it before it starts.

        Raises:
            UsageError: An annotation cannot be resolved, or ``on_dead`` names a group that has no subscription.
        """
        for module in self.include:
            importlib.import_module(module)
        self.catalog.resolve()

    # -- declaring ---------------------------------------------------------------------------------------------------------

    def include_router(self, router: Router) -> None:
        """Add everything that a router declares, now or later, to this app.

        The router's tasks, queues and topics then send to this app. Several apps may include the same router, for example when
        each test creates an app. All of them can run its tasks, but the router sends to the app that included it last.
        ``app.tasks[name]`` always belongs to this app.

        Raises:
            UsageError: A name is already declared, or this app already includes the router.
        """
        check_router(router)
        router.attach(self)

    async def remove_prefix(self, prefix: str, group: str) -> None:
        """Remove a group that ``subscribe_prefix`` declared, from every topic with this prefix. New topics no longer get it.

        The group's waiting events and dead letters are deleted.

        Raises:
            UsageError: No group was declared with this prefix. Nothing is removed.
        """
        topic_name(prefix, "prefix")
        checked_name(group, "group")
        request = new_request()
        if not await self._clients.here().ask(lambda broker: broker.remove_prefix(prefix, group, request=request)):
            raise UsageError(f"there is no group {group!r} with the prefix {prefix!r}; `millstream groups` lists all groups")

    remove_prefix_sync = sync_version(remove_prefix)

    def group(self, topic: str, name: str) -> Group:
        """Return a group of a topic, to inspect or change it. Neither needs to be declared in this app."""
        return Group(topic_name(topic), checked_name(name, "group"), self._clients)

    @property
    def topics(self) -> Mapping[str, Topic[Any]]:
        """The topics of this app, by name."""
        return MappingProxyType(self.catalog.topics)

    def on_error(self, observer: Observing) -> Observing:
        """Register a function that receives every ``Problem`` of this app in this process. Use it as ``@app.on_error``.

        The function runs in a separate thread, so it may block without delaying jobs. A coroutine function runs in that thread
        on its own event loop, one problem at a time. At most 1,000 problems wait for it; further ones are dropped and counted
        in ``missed`` of the next problem. If the function raises, the first of consecutive errors is logged, and the next
        problem is still delivered. A worker or app that stops waits up to one second for it.
        """
        self.observers.add(observer)
        return observer

    def _declare_task(self, fn: Any, own_name: str, options: TaskOptions) -> Task[..., Any]:
        settings = task_settings(options, own_name, self.settings)
        self.catalog.check_task(settings)
        task = make_task(fn, settings, options.get("order_by"), self._clients, self.catalog.queues.keys())
        self.catalog.add_task(task)
        return task

    def _declare_queue(self, settings: QueueSettings) -> Queue:
        name = settings.name
        known = self._declared.get(name)
        if known is None:
            self.catalog.queues[name] = settings
            known = self._declared[name] = Queue(settings, self._clients)
        elif known.settings != settings:
            raise UsageError(
                f"queue {name!r} is already declared with {_options(known.settings)}, now with {_options(settings)}: "
                "declare it once, or with the same options"
            )
        return known

    def _declare_topic(self, settings: TopicSettings, type: Any, codec: CodecName | Codec, key_of: KeyOf | None) -> Topic[Any]:
        order_by = None if key_of is None else key_of.fn
        known: Topic[Any] | None = self.catalog.topics.get(settings.name)
        if known is None:
            encoder = EventCodec(settings.name, type, codec)
            known = Topic(settings, encoder, self._clients, self.settings, self._consume, key_of)
            self.catalog.topics[settings.name] = known
        elif (known.settings, known.type, known.codec, known.order_by) != (settings, type, codec, order_by):
            raise UsageError(
                f"{known!r} is already declared with another type, codec, order_by or other options: declare it once, or with "
                "the same options"
            )
        return known

    def _declare_prefix(self, prefix: str, group: str, subscribe: Subscribe) -> None:
        self.catalog.add_prefix(PrefixSubscription(prefix, group, lambda topic: subscribe(topic, self.settings)))

    # -- sending and finding -----------------------------------------------------------------------------------------------

    @overload
    async def enqueue_many(self, calls: Iterable[Call[R]], *, return_exceptions: Literal[False] = False) -> list[Job[R]]: ...
    @overload
    async def enqueue_many(self, calls: Iterable[Call[R]], *, return_exceptions: Literal[True]) -> list[Job[R] | Exception]: ...
    async def enqueue_many(self, calls: Iterable[Call[Any]], *, return_exceptions: bool = False) -> Any:
        """Enqueue many calls and return their jobs, in the same order. The calls may mix tasks, queues and options.

        The iterable is read lazily. Calls are sent in batches, in order per queue, and not in one transaction. A refused call
        does not stop the others.

        Args:
            calls: Calls made by ``task.bind(…)``.
            return_exceptions: Return the exception of a refused call in its position, instead of raising ``BulkError``.

        Raises:
            BulkError: At least one call was refused. It holds the results of all calls.
        """
        bulk = Bulk(self._clients, shards=max((queue.shards for queue in self.catalog.queues.values()), default=0))
        await bulk.send(calls)
        if bulk.refused and not return_exceptions:
            raise BulkError(bulk.results)
        return bulk.results

    @overload
    def enqueue_many_sync(self, calls: Iterable[Call[R]], *, return_exceptions: Literal[False] = False) -> list[Job[R]]: ...
    @overload
    def enqueue_many_sync(self, calls: Iterable[Call[R]], *, return_exceptions: Literal[True]) -> list[Job[R] | Exception]: ...
    def enqueue_many_sync(self, calls: Iterable[Call[Any]], *, return_exceptions: Any = False) -> Any:
        """``enqueue_many`` for code without an event loop. Raises ``UsageError`` if called inside one."""
        return run_sync("enqueue_many", self.enqueue_many, calls, return_exceptions=return_exceptions)

    def job(self, id: str, *, queue: str | None = None) -> Job[Any]:
        """Return a job by its id, without I/O. Its result is decoded to plain values; ``task.job(id)`` restores the type.

        The methods of the job search every queue of the namespace. If no queue has the job, ``status()`` returns ``"unknown"``,
        and ``info()``, ``result()`` and ``cancel()`` raise ``JobNotFound``. If several queues have it, all of them raise
        ``UsageError``.

        Args:
            id: The job's id.
            queue: Search only this queue, which takes a single call to the server.
        """
        name = "" if queue is None else checked_name(queue, "queue")
        origin = Origin(self._clients, name, "", msgspec.msgpack.decode, True, looked_up=True)
        return Job(job_id(id), False, origin)

    # -- connections -------------------------------------------------------------------------------------------------------

    async def broker(self) -> Broker:
        """Return the open broker of the running event loop. The app owns it: do not close it."""
        return await self._clients.here().broker()

    async def broker_to_serve(self, addresses: Sequence[Address]) -> Broker:
        """Return ``broker()`` after opening everything that this app declares, for a worker that serves these addresses.

        Raises:
            ShardsChanged: An address has a different number of shards than this app declares.
        """
        return await self._clients.here().open_declared(addresses)

    async def __aenter__(self) -> Self:
        self._clients.here().entered += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client = self._clients.here()
        client.entered -= 1
        if client.entered <= 0:
            self._clients.drop(client)
            await client.close()
            await self.observers.told()

    # -- working -----------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def worker(
        self, queues: Sequence[str] | None = None, *, concurrency: int = WORKER_CONCURRENCY, threads: int = WORKER_THREADS
    ) -> AsyncGenerator[Worker]:
        """Run a worker in this event loop, without signal handlers: ``async with app.worker(): …``.

        On exit, running jobs have ``grace`` seconds to finish. A thread renews the leases. C code that holds the GIL for longer
        than ``lease`` blocks that thread, and the jobs run again elsewhere. ``millstream worker`` does not have this limit. If
        the worker itself fails, the block raises its error on exit.

        Args:
            queues: Names of the queues to serve; ``topic/group`` for a group, ``topic/`` for the broadcasts of a topic.
                ``None`` serves everything that the app declares.
            concurrency: Number of coroutines that run at the same time.
            threads: Number of plain functions that run at the same time.

        Raises:
            UsageError: There is nothing to serve, or the app does not declare one of ``queues``.
        """
        self.load()
        async with self:  # keeps the worker's connections open, even if other code leaves the app in the meantime
            worker = await self._make_worker(self.queues_to_serve(queues or ()), concurrency, threads)
            await worker.start()
            try:
                yield worker
            except GeneratorExit:  # the generator was garbage-collected, or the loop is shutting down
                worker.never_left()
                warnings.warn("a worker was entered (`async with app.worker()`) and never left", ResourceWarning, stacklevel=2)
                raise
            finally:
                await worker.stop(self.settings.grace)
        if worker.error is not None:
            raise worker.error

    async def run(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int = WORKER_CONCURRENCY,
        threads: int = WORKER_THREADS,
        until: Awaitable[Any] | None = None,
    ) -> Summary:
        """Run a worker in this event loop until SIGTERM, SIGINT or ``stop()``. Return a summary of its work.

        On stop, running jobs have ``grace`` seconds to finish; a second signal stops it immediately. A stop also works while
        the worker is still connecting. If the worker itself fails, its error is raised.

        Args:
            queues: Names of the queues to serve, as for ``worker()``. ``None`` serves everything that the app declares.
            concurrency: Number of coroutines that run at the same time.
            threads: Number of plain functions that run at the same time.
            until: Awaitable; the worker also stops when it is done.

        Raises:
            UsageError: There is nothing to serve, or the app does not declare one of ``queues``.
            BrokerUnavailable: The server was unreachable for 30 seconds at the start.
            BrokerRefused: The server will not accept this client.
        """
        self.load()
        names = self.queues_to_serve(queues or ())

        async def make() -> Worker:
            await self.connect_patiently(names)
            return await self._make_worker(names, concurrency, threads)

        async with self:
            return await run_until_stopped(make, self._stops, self.settings.grace, until)

    def stop(self) -> None:
        """Stop ``run()`` as SIGTERM would. Safe to call from any thread."""
        for stop in list(self._stops):
            stop()

    async def scale(self, processes: int, *, worker: str | None = None, hold: Seconds = HOLD_SECONDS) -> str:
        """Set the number of processes of a ``millstream worker --processes MIN..MAX``. Return the supervisor's answer as text.

        Only idle processes are stopped; a busy process stops when it becomes idle.

        Args:
            processes: Number of worker processes, within ``MIN..MAX``.
            worker: Id of the worker, or the beginning of its id. ``None`` means the only worker.
            hold: Seconds for which this number overrides the scaling strategy. 300 by default, at most a year.

        Raises:
            UsageError: The worker refused, did not answer, or is not the only match.
        """
        wanted, held = integer(processes, "processes", minimum=0), seconds(hold, "hold")
        return await self._clients.here().ask(lambda broker: scale(broker, wanted, worker, held))

    scale_sync = sync_version(scale)

    def queues_to_serve(self, wanted: Iterable[str]) -> list[Address]:
        """Return the addresses that a worker serves: the wanted ones, or everything that this app declares.

        Raises:
            UsageError: There is nothing to serve, or this app does not declare a wanted address.
        """
        return self.catalog.to_serve(wanted)

    async def connect_patiently(self, addresses: Sequence[Address], seconds: float = START_SECONDS) -> Broker:
        """Return ``broker_to_serve()``. Retry for ``seconds`` while the server is unreachable, but not if it refuses the
        client."""
        reporter = self._clients.here().reporter

        def missed(error: BrokerUnavailable) -> None:
            reporter.fail("read", None, error, "%s; trying again", error)

        deadline = asyncio.get_running_loop().time() + seconds
        broker = await patiently(lambda: self.broker_to_serve(addresses), deadline, missed)
        reporter.heal("read", None)
        return broker

    def assignment(self, queues: Sequence[Address], *, concurrency: int, threads: int) -> Assignment:
        """Return the work of a worker that serves these addresses, which come from ``queues_to_serve``."""
        return Assignment(
            settings=self.settings,
            queues=queues,
            serving=self.catalog.serving(queues),
            tasks=self.catalog.tasks,
            subscriptions=self.catalog.subscriptions_at(queues),
            prefixes=self.catalog.prefixes,
            broadcasts=self.catalog.broadcasts,
            concurrency=integer(concurrency, "concurrency", minimum=1),
            threads=integer(threads, "threads", minimum=1),
            lifespan=self.lifespan_context,
            observers=self.observers,
            where=self.where,
        )

    async def _make_worker(self, queues: Sequence[Address], concurrency: int, threads: int) -> Worker:
        broker, keeper = await self.broker_to_serve(queues), KeeperThread(self._clients.backend.connect)
        return Worker(broker, keeper, self.assignment(queues, concurrency=concurrency, threads=threads))

    async def _consume(self, subscription: Subscription) -> Consumer:
        """Implement ``topic.consume``."""
        settings, slots = self.catalog.topics[subscription.topic].settings, subscription.concurrency
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self)
            await self._clients.here().ask(
                lambda broker: open_topic(broker, settings, {subscription.group: subscription.start})
            )
            assignment = Assignment(
                settings=self.settings,
                queues=[subscription.address],
                serving=[subscription.serving],
                subscriptions={subscription.address: subscription},
                concurrency=slots or WORKER_CONCURRENCY,
                threads=slots or WORKER_THREADS,
                observers=self.observers,
                where=self.where,
            )
            broker = await self.broker_to_serve([subscription.address])
            worker = Worker(broker, KeeperThread(self._clients.backend.connect), assignment)
            await worker.start()
            return Consumer(subscription, worker, stack.pop_all(), self.settings.grace)

    def lifespan_context(self) -> AbstractAsyncContextManager[Any]:
        """Return the context manager that a worker enters when it starts."""
        return nullcontext() if self.lifespan is None else self.lifespan(self)

    @contextmanager
    def override(self, url: str) -> Generator[Self]:
        """Use another server inside a ``with`` block. In tests, ``memory://`` starts empty and needs no server.

        Raises:
            UsageError: The URL is invalid.
        """
        outer, self._url = self._url, parse_url(url)
        try:
            with self._clients.override(make_backend(self._url, self.settings)):
                yield self
        finally:
            self._url = outer


def _options(settings: QueueSettings) -> str:
    return f"max_length={settings.max_length}, shards={settings.shards or None}, consumers={settings.consumers}"


def _modules(include: Any) -> tuple[str, ...]:
    if isinstance(include, str) or not all(isinstance(module, str) and module for module in include):
        raise UsageError(f"include must be a sequence of module names, not {include!r}")
    return tuple(include)
