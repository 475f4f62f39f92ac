"""Millstream, the app: what users declare tasks and queues on, and the one place that wires everything together."""

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
from millstream.config import Url, discover_namespace, discover_url, parse_url
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
from millstream.worker.assignment import Assignment
from millstream.worker.inside import run_until_stopped
from millstream.worker.scaling.requests import HOLD_SECONDS, scale
from millstream.worker.services.keeper import KeeperThread
from millstream.worker.summary import Summary
from millstream.worker.worker import Worker

WORKER_CONCURRENCY, WORKER_THREADS = 32, 8
"""How many coroutines, and how many functions in threads, a worker runs at once."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Observing = TypeVar("Observing", bound=Observer)

Lifespan = Callable[["Millstream"], AbstractAsyncContextManager[Any]]
"""Entered when a worker starts, left when it stops; handlers find what it yields in ``current_job().state``."""


class Millstream(Declarations):
    """An app: its tasks, its queues, and where they live.

    ``url`` None means ``$MILLSTREAM_URL``, then ``[tool.millstream] url``, then the embedded server; ``namespace`` None
    ``$MILLSTREAM_NAMESPACE``, then ``[tool.millstream] namespace``, then "millstream". Holds no socket, thread or loop until
    first use. Durations are seconds or timedeltas. UsageError names an option that makes no sense, and its value.
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

    # -- what it is made of ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> Url:
        """Where its queues live, found out at first use if it was not said."""
        if self._url is None:
            self._url = parse_url(discover_url(None))
        return self._url

    @property
    def where(self) -> str:
        """Where its queues live, for people: the URL without its password, or the folder of the embedded server."""
        return where(self.url, self.settings.namespace)

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """Its tasks by name, and by alias."""
        return MappingProxyType(self.catalog.tasks)

    @property
    def queues(self) -> Mapping[str, QueueSettings]:
        """Every queue that a declaration mentions."""
        return MappingProxyType(self.catalog.queues)

    def load(self) -> None:
        """Import the modules of ``include``, whose declarations complete the app, and check every annotation.

        A worker does so before it starts."""
        for module in self.include:
            importlib.import_module(module)
        self.catalog.resolve()

    # -- declaring ---------------------------------------------------------------------------------------------------------

    def include_router(self, router: Router) -> None:
        """Declare here all that a router declares, and what it will declare.

        From now on its tasks, queues and topics send to this app. A router may be included in several apps, as by a factory
        that is called for each test: they all serve it, and it sends to the one that included it last; ``app.tasks[name]`` is
        always this app's own. UsageError if a name is taken, or if it is included here already.
        """
        check_router(router)
        router.attach(self)

    async def remove_prefix(self, prefix: str, group: str) -> None:
        """Remove a group that was declared by this prefix, with all that waits or is dead in it, in every topic whose name
        begins so and in those to come. UsageError if none was declared so; then nothing is removed."""
        topic_name(prefix, "prefix")
        checked_name(group, "group")
        request = new_request()
        if not await self._clients.here().ask(lambda broker: broker.remove_prefix(prefix, group, request=request)):
            raise UsageError(f"there is no group {group!r} of topics by the prefix {prefix!r}")

    remove_prefix_sync = sync_version(remove_prefix)

    def group(self, topic: str, name: str) -> Group:
        """A group of a topic, whether this app declares them or not."""
        return Group(topic_name(topic), checked_name(name, "group"), self._clients)

    @property
    def topics(self) -> Mapping[str, Topic[Any]]:
        """Its topics by name."""
        return MappingProxyType(self.catalog.topics)

    def on_error(self, observer: Observing) -> Observing:
        """Tell a function of every problem of this app in this process, each as one ``Problem``: ``@app.on_error``.

        It is called in a thread of its own, so it may block without holding up a job; a coroutine function runs there on a loop
        of its own, one problem after another. What comes while 1,000 problems wait for it is counted in ``missed``. If it
        raises, that is logged once in a row, and it is told of the next. The end of a worker or of the app waits up to a
        second for it.
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
                f"queue {name!r} is declared already with other options: {_options(known.settings)}; now {_options(settings)}"
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
                f"topic {settings.name!r} is declared already, with another type, codec, key or other options: {known!r}"
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
        """Enqueue calls of any tasks, queues and options; their jobs, in order.

        Every call is tried. If some were refused, raises BulkError with all results, or with ``return_exceptions`` returns the
        exceptions in their places. Goes out in calls of bounded size, in order per queue, not in one transaction.
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
        """``enqueue_many`` for code without an event loop; inside one it raises UsageError."""
        return run_sync("enqueue_many", self.enqueue_many, calls, return_exceptions=return_exceptions)

    def job(self, id: str, *, queue: str | None = None) -> Job[Any]:
        """A job by its id alone, without any I/O; its result comes as plain values. ``task.job(id)`` knows the type.

        Each of its verbs looks for the job in every queue of the namespace, or only in ``queue``, which is one call. If no
        queue knows it, ``status()`` is ``unknown``, and ``info()``, ``result()`` and ``cancel()`` raise JobNotFound. If several
        do, they raise UsageError.
        """
        name = "" if queue is None else checked_name(queue, "queue")
        origin = Origin(self._clients, name, "", msgspec.msgpack.decode, True, looked_up=True)
        return Job(job_id(id), False, origin)

    # -- where it runs -----------------------------------------------------------------------------------------------------

    async def broker(self) -> Broker:
        """The broker of the running loop, open. It belongs to the app: whoever asks for it does not close it."""
        return await self._clients.here().broker()

    async def broker_to_serve(self, addresses: Sequence[Address]) -> Broker:
        """``broker()``, with all that this app declares by now opened, for a worker that serves these addresses. ShardsChanged
        if one of them has another number of shards than is declared."""
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
        """A worker in this event loop, without signal handlers; it drains within ``grace`` on exit.

        A thread keeps its leases: C code that holds the GIL for longer than ``lease`` starves it, ``millstream worker`` has no
        such limit. ``queues``: which queues to serve, by name; groups as ``topic/group``, a topic's broadcasts as ``topic/``;
        None: all. UsageError if there is nothing to serve.
        """
        self.load()
        async with self:  # whatever else is left meanwhile, the worker's connections stay
            worker = await self._make_worker(self.queues_to_serve(queues or ()), concurrency, threads)
            await worker.start()
            try:
                yield worker
            except GeneratorExit:  # collected: the loop ends us
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
        """Serve until SIGTERM, SIGINT, ``stop()``, or until ``until`` is done; drains within ``grace``, a second signal ends it
        now. All of these also end it while it starts. Returns how it ended; raises if the worker could not go on."""
        self.load()
        names = self.queues_to_serve(queues or ())

        async def make() -> Worker:
            await self.connect_patiently(names)
            return await self._make_worker(names, concurrency, threads)

        async with self:
            return await run_until_stopped(make, self._stops, self.settings.grace, until)

    def stop(self) -> None:
        """End ``run()`` as a signal would. Safe to call from any thread."""
        for stop in list(self._stops):
            stop()

    async def scale(self, processes: int, *, worker: str | None = None, hold: Seconds = HOLD_SECONDS) -> str:
        """Have a ``millstream worker --processes MIN..MAX`` keep so many processes, whatever its strategy wants for ``hold``
        seconds; what it says of it. ``worker``: its id, or how that begins; None: the only one there is.

        Only processes that do nothing end; those that are busy do so when they are not. UsageError: why it is refused.
        """
        wanted, held = integer(processes, "processes", minimum=0), seconds(hold, "hold")
        return await self._clients.here().ask(lambda broker: scale(broker, wanted, worker, held))

    scale_sync = sync_version(scale)

    def queues_to_serve(self, wanted: Iterable[str]) -> list[Address]:
        """What a worker serves: those wanted, else all that this app declares. UsageError if that is nothing."""
        return self.catalog.to_serve(wanted)

    async def connect_patiently(self, addresses: Sequence[Address], seconds: float = START_SECONDS) -> Broker:
        """``broker_to_serve()``, trying again for a while if the server is away; one that refuses us is not tried again."""
        reporter = self._clients.here().reporter

        def missed(error: BrokerUnavailable) -> None:
            reporter.fail("read", None, error, "%s; trying again", error)

        deadline = asyncio.get_running_loop().time() + seconds
        broker = await patiently(lambda: self.broker_to_serve(addresses), deadline, missed)
        reporter.heal("read", None)
        return broker

    def assignment(self, queues: Sequence[Address], *, concurrency: int, threads: int) -> Assignment:
        """What a worker of this app has to do at these addresses, each as ``queues_to_serve`` tells it."""
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
        """For ``topic.consume``."""
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
        """What a worker enters when it starts."""
        return nullcontext() if self.lifespan is None else self.lifespan(self)

    @contextmanager
    def override(self, url: str) -> Generator[Self]:
        """Inside the block everything goes to another place: ``memory://`` in tests. UsageError if the URL makes no sense."""
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
