"""What can be declared on an app, and on a router that an app includes."""

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
    from typing_extensions import TypeForm  # which type checkers bring

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Subscribe = Callable[[str, AppSettings], Subscription]
"""What handles a topic's events for a group, by the topic's name and the app's settings."""


class Declarations(ABC):
    """The decorators and declarations that an app and a router have in common."""

    # -- tasks and queues --------------------------------------------------------------------------------------------------

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, *fn: Any, **options: Any) -> Any:
        """Declare a task: ``@app.task``, or ``@app.task(queue="mail", timeout=30)``.

        Its name is the function's, unique in the app. UsageError names an option that makes no sense.
        """

        def declare(fn: Any) -> Task[..., Any]:
            own_name = default_name(fn, "name" in options)
            return self._declare_task(fn, own_name, cast(TaskOptions, options))

        if not fn:
            return declare
        if len(fn) != 1 or options:
            raise UsageError("task() takes one function, or options by keyword: @app.task or @app.task(queue=…)")
        return declare(*fn)

    def queue(
        self,
        name: str,
        *,
        max_length: int | None = None,
        shards: int | None = None,
        consumers: tuple[int, int] | None = None,
    ) -> Queue:
        """Declare a queue, with a bound on its ready, running, scheduled and blocked jobs past which ``enqueue`` raises
        QueueFull.

        ``shards``: it is so many queues, shared among the workers that serve it; jobs of ordered tasks go to the shard of their
        key, others to each in turn, and the bound is divided among them. ``consumers``: how many worker processes serve it, at
        least and at most, over all machines; None: any number. A task's ``queue="…"`` declares a queue too, without any of
        these. Declared twice with different options: UsageError.
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
        """Declare a topic of events of one type, each of which every group of it is given.

        The type may be a union: Structs with tags travel as they are, of other classes the name travels with the value.

        ``max_length``: how many events it keeps for groups that have not been given them, or for want of a group, before
        ``publish`` raises TopicFull, or the oldest go if only broadcasts read it; None: no bound. ``retention``: for how
        long it keeps events that all groups were given, for groups that are made later or rewound; ``retention_count``: how
        many of the latest; both: no longer and no more than that; 0: none; neither: as another app has said, else none.
        ``start``: where its groups begin if they do not say: "beginning" with all it keeps, "new" with what comes next, at a
        moment, or after an entry by its id. Declared twice with another type: UsageError.

        ``order_by``: a function of an event that returns its key (text, bytes or a number). In each group the events of one key
        are handled one at a time, in the order in which they were published, through retries, crashes and scaling; those of
        different keys at the same time. The topic is then ``shards`` logs (8), each with its share of ``max_length`` and
        ``retention``, which the workers share; the number may change only by ``reshard``. ``on_failure`` ("skip") and
        ``max_pending_per_key`` (1000): for groups that do not say, as for ``subscribe``.
        """
        if max_length is not None:
            integer(max_length, "max_length", minimum=1)
        keep, keep_count = _retention(retention, retention_count)
        said = {"shards": shards, "on_failure": on_failure, "max_pending_per_key": max_pending_per_key}
        said = {option: value for option, value in said.items() if value is not None}
        key_of = None if order_by is None else KeyOf(order_by, f"topic {name!r}")
        if key_of is None and "shards" in said:
            raise UsageError(f"shards={shards!r} of topic {name!r}: only a topic with an order has shards; say order_by= too")
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
        """Declare what handles, for a group, the events of every topic whose name begins with ``prefix``; as
        ``topic.subscribe`` does for one.

        From the moment an app that declares it connects, each of these topics has the group, and those that are opened later
        have it before anything is published to them; workers find them while they run. A topic that has a handler of its own
        for the group in this app is left to it. Of an ordered topic the group is in each shard, where it keeps the order.
        """
        topic_name(prefix, "prefix")
        checked_name(group, "group")
        for option in ("on_failure", "max_pending_per_key"):
            if option in options:
                raise UsageError(
                    f"{option} of group {group!r} of topics {prefix!r}…: a group by prefix is in topics with and without "
                    "order; topic.subscribe takes it, for those with"
                )

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            def subscribe(topic: str, app: AppSettings) -> Subscription:
                return Subscription(fn, topic, group, EventCodec(topic, type, codec), options, app, batch)

            self._declare_prefix(prefix, group, subscribe)
            return fn

        return declare

    # -- what becomes of them ----------------------------------------------------------------------------------------------

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
    """By age and by count; if only one is said, 0 for the other one, which does not bound it; None: it is left as it is."""
    if age is None and count is None:
        return None, None
    return (
        0.0 if age is None else seconds(age, "retention"),
        0 if count is None else integer(count, "retention_count", minimum=0),
    )
