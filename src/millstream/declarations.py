"""Declarations that apps and routers share: tasks, queues, topics and prefix subscriptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

from millstream.broker import OrderRules
from millstream.codec import Codec, CodecName, EventCodec
from millstream.errors import UsageError
from millstream.events.batch import Batch
from millstream.events.subscription import BatchSubscriber, SubscribeOptions, Subscriber, Subscription
from millstream.events.topic import Topic
from millstream.jobs.queue import Queue
from millstream.jobs.task import AsyncTask, SyncTask, Task, TaskDecorator, default_name
from millstream.model.ordering import SHARDS, Key, KeyOf, OnFailure, consumers_option, order_rules
from millstream.model.settings import AppSettings, QueueSettings, TopicSettings, integer, seconds, topic_name
from millstream.model.settings import name as checked_name
from millstream.model.types import Seconds
from millstream.options import TaskOptions, log_position

if TYPE_CHECKING:
    from typing_extensions import TypeForm  # bundled with type checkers

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Subscribe = Callable[[str, AppSettings], Subscription]
"""Makes the subscription to one topic, given its name and the app's settings."""


class Declarations(ABC):
    """The decorators and declarations that an app and a router share."""

    # -- tasks and queues --------------------------------------------------------------------------------------------------

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, *fn: Any, **options: Any) -> Any:
        """Declare a function as a task: ``@app.task``, or ``@app.task(queue="mail", timeout=30)``.

        An ``async def`` runs on the worker's event loop, a ``def`` in a thread. ``TaskOptions`` lists the options; every
        duration is in seconds or a timedelta:

        - ``name``: unique name of the task; by default the function's name
        - ``aliases``: former names; jobs enqueued under them still run
        - ``queue``: the queue of its jobs; ``"default"`` by default
        - ``timeout``: seconds that one attempt may run; ``None`` means no limit
        - ``retry``: a ``RetryPolicy``, or a number of retries
        - ``result_ttl``: seconds for which a result is stored; 0 or ``None`` stores none
        - ``expires``: seconds after enqueueing until the job is no longer started; ``None`` means never
        - ``max_crashes``: number of crashes that a job survives; 0 means at most once
        - ``max_payload_bytes``: maximum size of the encoded arguments; ``None`` means no limit
        - ``id_ttl``: seconds for which an id chosen by the caller stays reserved after the job has ended
        - ``order_by``: function that returns the ordering key of a call; jobs with one key run one at a time, in order
        - ``on_failure``, ``max_pending_per_key``: rules for ordered jobs

        Options that are left out use the app's settings.

        Raises:
            UsageError: The name is taken, an option is unknown or invalid, or the object is not a plain function.
        """

        def declare(fn: Any) -> Task[..., Any]:
            own_name = default_name(fn, "name" in options)
            return self._declare_task(fn, own_name, cast(TaskOptions, options))

        if not fn:
            return declare
        if len(fn) != 1 or options:
            raise UsageError("task() takes one function or keyword options: @app.task or @app.task(queue=…)")
        return declare(*fn)

    def queue(
        self,
        name: str,
        *,
        max_length: int | None = None,
        shards: int | None = None,
        consumers: tuple[int, int] | None = None,
    ) -> Queue:
        """Declare a queue. A task's ``queue="…"`` option also declares one, with the defaults below.

        Args:
            name: Name of the queue: 1 to 200 characters, without ``:``, ``{``, ``}``, ``>`` and ``/``.
            max_length: Maximum number of ready, running, scheduled and blocked jobs. Beyond it ``enqueue`` raises
                ``QueueFull``. ``None`` means no limit. A sharded queue divides it among its shards.
            shards: Number of shards, which the workers share. An ordered job goes to the shard of its key, other jobs to each
                shard in turn. ``None`` means the queue is not sharded. Only ``queue.reshard()`` can change the number later.
            consumers: ``(min, max)`` number of worker processes that serve the queue, over all machines. ``None`` means any
                number.

        Raises:
            UsageError: An option is invalid, or the queue is already declared with other options.
        """
        if max_length is not None:
            integer(max_length, "max_length", minimum=1)
        settings = QueueSettings(
            name=checked_name(name, "queue"),
            max_length=max_length,
            shards=0 if shards is None else integer(shards, "shards", minimum=1),
            consumers=consumers_option(consumers),
        )
        return self._declare_queue(settings)

    # -- topics ------------------------------------------------------------------------------------------------------------

    @overload
    def topic(
        self,
        name: str,
        type: type[T],
        *,
        codec: CodecName | Codec = "msgpack",
        max_length: int | None = 1_000_000,
        retention: Seconds | None = None,
        retention_count: int | None = None,
        start: datetime | str = "beginning",
        order_by: Callable[[T], Key] | None = None,
        shards: int | None = None,
        on_failure: OnFailure | None = None,
        max_pending_per_key: int | None = None,
    ) -> Topic[T]: ...
    @overload
    def topic(
        self,
        name: str,
        type: TypeForm[T],
        *,
        codec: CodecName | Codec = "msgpack",
        max_length: int | None = 1_000_000,
        retention: Seconds | None = None,
        retention_count: int | None = None,
        start: datetime | str = "beginning",
        order_by: Callable[[T], Key] | None = None,
        shards: int | None = None,
        on_failure: OnFailure | None = None,
        max_pending_per_key: int | None = None,
    ) -> Topic[T]: ...
    def topic(
        self,
        name: str,
        type: Any,
        *,
        codec: CodecName | Codec = "msgpack",
        max_length: int | None = 1_000_000,
        retention: Seconds | None = None,
        retention_count: int | None = None,
        start: datetime | str = "beginning",
        order_by: Callable[[Any], Key] | None = None,
        shards: int | None = None,
        on_failure: OnFailure | None = None,
        max_pending_per_key: int | None = None,
    ) -> Any:
        """Declare a topic with events of one type. Every group of the topic receives every event.

        With ``order_by``, each group handles the events of one key one at a time, in the order of publishing, through retries,
        crashes and scaling. Events of different keys are handled at the same time. Such a topic consists of several logs, its
        shards, and the workers share them.

        Args:
            name: Name of the topic: 1 to 200 characters, without ``:``, ``{``, ``}``, ``>``, ``/`` and ``*``.
            type: Type of the events. It may be a union. Tagged msgspec structs are stored as they are; for other classes the
                class name is stored with the value.
            codec: Encoding of the events: ``"msgpack"``, ``"json"``, ``"raw"``, ``"fields"``, or an object with ``encode`` and
                ``decode``.
            max_length: Maximum number of stored events, including delayed events and events that ``retention`` keeps. Beyond it
                ``publish`` raises ``TopicFull``; if only broadcasts read the topic, the oldest events are dropped instead.
                ``None`` means no limit. Shards divide it.
            retention: Keep an event until it is this many seconds old, even if every group has settled it, for new or rewound
                groups.
            retention_count: Keep the newest events, up to this number, even if every group has settled them. If ``retention``
                is also set, an event must satisfy both to be kept. Each setting persists until an app changes it. 0 disables
                it; ``None`` for both leaves them unchanged (disabled for a new topic). Shards divide the count.
            start: Where a new group starts by default: ``"beginning"`` (all stored events), ``"new"`` (only later events), a
                datetime, or an entry id (after that entry).
            order_by: Function that takes an event and returns its ordering key: text, bytes or a number.
            shards: Number of shards of an ordered topic, 8 by default. Only ``topic.reshard()`` can change it later.
            on_failure: Default for groups, as in ``subscribe``: ``"skip"`` (default) or ``"stop"``. Ordered topics only.
            max_pending_per_key: Default for groups, as in ``subscribe``: 1000. Ordered topics only.

        Raises:
            UsageError: An option is invalid, or the topic is already declared with another type or other options.
        """
        if max_length is not None:
            integer(max_length, "max_length", minimum=1)
        keep, keep_count = _retention(retention, retention_count)
        said = {"shards": shards, "on_failure": on_failure, "max_pending_per_key": max_pending_per_key}
        said = {option: value for option, value in said.items() if value is not None}
        key_of = None if order_by is None else KeyOf(order_by, f"topic {name!r}")
        if key_of is None and "shards" in said:
            raise UsageError(f"shards={shards!r} of topic {name!r}: only an ordered topic has shards; add order_by=")
        settings = TopicSettings(
            name=topic_name(name),
            max_length=max_length,
            keep=keep,
            keep_count=keep_count,
            start=log_position(start, "start"),
            shards=0 if key_of is None else integer(said.get("shards", SHARDS), "shards", minimum=1),
            order=order_rules(said, None if key_of is None else OrderRules(), f"topic {name!r}"),
        )
        return self._declare_topic(settings, type, codec, key_of)

    @overload
    def subscribe_prefix(
        self,
        prefix: str,
        group: str,
        *,
        type: type[T],
        codec: CodecName | Codec = "msgpack",
        batch: None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Subscriber[T]: ...
    @overload
    def subscribe_prefix(
        self,
        prefix: str,
        group: str,
        *,
        type: type[T],
        codec: CodecName | Codec = "msgpack",
        batch: Batch,
        **options: Unpack[SubscribeOptions],
    ) -> BatchSubscriber[T]: ...
    @overload
    def subscribe_prefix(
        self,
        prefix: str,
        group: str,
        *,
        type: TypeForm[T],
        codec: CodecName | Codec = "msgpack",
        batch: None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Subscriber[T]: ...
    @overload
    def subscribe_prefix(
        self,
        prefix: str,
        group: str,
        *,
        type: TypeForm[T],
        codec: CodecName | Codec = "msgpack",
        batch: Batch,
        **options: Unpack[SubscribeOptions],
    ) -> BatchSubscriber[T]: ...
    def subscribe_prefix(
        self,
        prefix: str,
        group: str,
        *,
        type: Any,
        codec: CodecName | Codec = "msgpack",
        batch: Batch | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Any:
        """Declare a handler for a group in every topic whose name begins with ``prefix``.

        It works as ``topic.subscribe`` for many topics. When an app that declares it connects, existing topics get the group.
        New topics get it before their first event is published, and running workers discover them. If this app has a
        ``topic.subscribe`` of the same group for one of the topics, that handler is used there. An ordered topic stays ordered.

        Args:
            prefix: Beginning of the names of the topics.
            group: Name of the group.
            type: Type of the events, as for ``topic()``.
            codec: Encoding of the events, as for ``topic()``.
            batch: Call the handler with lists of events.
            **options: As for ``topic.subscribe``, without ``on_failure``, ``max_pending_per_key`` and ``dead_letter``.

        Raises:
            UsageError: An option is invalid, or the group already has a handler for an overlapping prefix.
        """
        topic_name(prefix, "prefix")
        checked_name(group, "group")
        for option in ("on_failure", "max_pending_per_key", "dead_letter"):
            if option in options:
                raise UsageError(
                    f"subscribe_prefix() of group {group!r} with prefix {prefix!r} does not support {option}: the topics "
                    "may be unordered or have other types. Use topic.subscribe() for the topic that needs it"
                )

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            def subscribe(topic: str, app: AppSettings) -> Subscription:
                return Subscription(fn, topic, group, EventCodec(topic, type, codec), options, app, batch)

            self._declare_prefix(prefix, group, subscribe)
            return fn

        return declare

    # -- implemented by app and router -------------------------------------------------------------------------------------

    @abstractmethod
    def _declare_task(self, fn: Any, own_name: str, options: TaskOptions) -> Task[..., Any]: ...

    @abstractmethod
    def _declare_queue(self, settings: QueueSettings) -> Queue: ...

    @abstractmethod
    def _declare_topic(
        self, settings: TopicSettings, type: Any, codec: CodecName | Codec, key_of: KeyOf | None
    ) -> Topic[Any]: ...

    @abstractmethod
    def _declare_prefix(self, prefix: str, group: str, subscribe: Subscribe) -> None: ...


def _retention(age: Any, count: Any) -> tuple[float | None, int | None]:
    """Return the retention by age and by count. 0 means that this limit is off, ``None`` that both stay as they are.

    If only one is given, the other is 0.
    """
    if age is None and count is None:
        return None, None
    return (
        0.0 if age is None else seconds(age, "retention"),
        0 if count is None else integer(count, "retention_count", minimum=0),
    )
