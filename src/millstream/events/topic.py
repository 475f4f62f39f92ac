"""Topics: publish events, and declare the groups that handle them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, cast, overload

from millstream.client import Clients, Template, reshard, sync_version
from millstream.codec import Codec, CodecName, EventCodec
from millstream.errors import BulkError, UsageError
from millstream.events.batch import Batch
from millstream.events.broadcast import Broadcast, BroadcastOptions
from millstream.events.consumer import Consumer
from millstream.events.dead_event import DeadHandler, DeadOptions, DeadSubscriber
from millstream.events.delivery import Delivery
from millstream.events.forward import Forwarder
from millstream.events.group import Group
from millstream.events.subscription import BatchSubscriber, HandlerReturn, SubscribeOptions, Subscriber, Subscription
from millstream.jobs.bulk import Bulk
from millstream.jobs.call import Call
from millstream.jobs.job import Job, Origin
from millstream.model.address import Address
from millstream.model.message import EventFields
from millstream.model.ordering import Key, KeyOf
from millstream.model.settings import AppSettings, TopicSettings, integer, seconds
from millstream.model.settings import name as checked_name
from millstream.model.types import Seconds
from millstream.options import fields_option, job_id, refuse_unknown

if TYPE_CHECKING:
    from typing import TypedDict

    class PublishOptions(TypedDict, total=False):
        """Options of ``publish``, ``publish_many`` and ``bind``. Durations are seconds or timedeltas."""

        id: str | None
        """Id of the event, 1 to 200 characters. It is published once, however often it is sent within ``id_ttl``."""
        delay: Seconds
        """Deliver the event at the earliest after this many seconds."""
        expires: Seconds | None
        """Seconds after publishing until the event is no longer handled. ``None`` (default) means never."""
        headers: Mapping[str, str] | None
        """Text that travels with the event."""
        key: str
        """Text for handlers. It does not affect the order; that is ``order_by`` of the topic."""
        kind: str
        """Text for handlers, for example the name of the event's type."""
        source: str
        """Text for handlers, for example the name of the publishing service."""
        correlation_id: str
        """Text for handlers, to relate events to each other."""
        traceparent: str
        """W3C trace context, at most 255 characters."""
        content_type: str
        """Text for handlers, for example ``"application/json"``."""
        version: str
        """Text for handlers, for example the version of the event's schema."""


T = TypeVar("T")


Consume = Callable[[Subscription], Awaitable[Consumer]]
"""Starts a consumer in this process."""


class Publication(Generic[T]):
    """An event with its own options, made by ``topic.bind(…)`` for ``publish_many``."""

    __slots__ = ("event", "sender")

    def __init__(self, event: T, sender: _Sender) -> None:
        self.event = event
        self.sender = sender

    def __repr__(self) -> str:
        return f"<event bound for topic {self.sender.name!r}>"


class Topic(Generic[T]):
    """A topic of an app, made by ``app.topic(…)``: a log of events of one type.

    Every group receives every event of the topic. Within a group, one handler call processes it. Declare a group's handler with
    ``@topic.subscribe(group)``, and a handler that runs in every worker process with ``@topic.broadcast``.
    """

    def __init__(
        self,
        settings: TopicSettings,
        codec: EventCodec,
        clients: Clients,
        app: AppSettings,
        consume: Consume,
        key_of: KeyOf | None = None,
    ) -> None:
        self.settings = settings
        self.key_of = key_of
        """The checked ``order_by`` function; ``None`` if the topic is not ordered."""
        self.subscriptions: dict[str, Subscription] = {}
        self.dead_handlers: dict[str, DeadHandler | Forwarder] = {}
        """The dead-letter handler or forwarder of each group that has one."""
        self.broadcasts: list[Broadcast] = []
        self._codec = codec
        self._clients = clients
        self._app = app
        self._consume = consume
        self._plain = self._sender({})

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self.settings.name

    @property
    def address(self) -> Address:
        """The topic's address inside Millstream."""
        return Address.of_topic(self.name)

    @property
    def stream(self) -> str:
        """The key of the topic's stream on the server.

        Other programs may read the stream. With ``codec="fields"`` they may also write to it with ``XADD``.

        Raises:
            UsageError: The topic is sharded. Use ``streams``.
        """
        if self.settings.shards:
            raise UsageError(f"{self!r} has {self.settings.shards} shards, each with its own stream: use topic.streams")
        return self.streams[0]

    @property
    def streams(self) -> Sequence[str]:
        """The keys of the streams of all shards on the server, by shard index. One key if the topic is not sharded.

        The shard of a key is its 32-bit FNV-1a hash modulo the number of shards.
        """
        from millstream.backends.redis.keys import topic_keys  # imported here, so that an app does not load a backend

        return [topic_keys(self._app.namespace, shard.log)["log"] for shard in self.address.shards(self.settings.shards)]

    @property
    def order_by(self) -> Callable[[T], Key] | None:
        """The function that returns the ordering key of an event; ``None`` if the topic is not ordered."""
        return None if self.key_of is None else cast(Callable[[T], Key], self.key_of.fn)

    @property
    def type(self) -> Any:
        """The type of the events."""
        return self._codec.type

    @property
    def codec(self) -> CodecName | Codec:
        """The encoding of the events, as declared."""
        return self._codec.codec

    @property
    def wire(self) -> EventCodec:
        """The codec that encodes and decodes the events."""
        return self._codec

    # -- publishing --------------------------------------------------------------------------------------------------------

    async def publish(self, event: T, **options: Unpack[PublishOptions]) -> str:
        """Publish an event and return its id. When this returns, the server has stored the event.

        Options; durations are seconds or timedeltas:

        - ``id``: id of the event, 1 to 200 characters; it is published once, however often it is sent within ``id_ttl``
        - ``delay``: deliver the event at the earliest after this many seconds
        - ``expires``: seconds after publishing until the event is no longer handled
        - ``headers``, ``key``, ``kind``, ``source``, ``correlation_id``, ``traceparent``, ``content_type``, ``version``: text
          that travels with the event; handlers read it from the ``Delivery``

        Raises:
            TypeError: The event does not match the topic's type, or ``order_by`` failed for it.
            PayloadTooLarge: The encoded event, or its headers and fields, exceed ``max_payload_bytes``.
            TopicFull: The topic has reached its ``max_length``.
            ShardsChanged: The server has a different number of shards for the topic than the app declares.
            BrokerUnavailable: The server was unreachable for five seconds. The event may or may not be stored; the exception
                has its id.
            UsageError: An option is unknown or invalid.
        """
        sender = self._sender(options) if options else self._plain
        event_id, _, _ = await self._clients.here().send(sender.template, (event,), {})
        return event_id

    def bind(self, event: T, **options: Unpack[PublishOptions]) -> Publication[T]:
        """Return an event with its own options, for ``publish_many``. The options are those of ``publish``."""
        return Publication(event, self._sender(options) if options else self._plain)

    @overload
    async def publish_many(
        self,
        events: Iterable[T | Publication[T]],
        *,
        return_exceptions: Literal[False] = False,
        **options: Unpack[PublishOptions],
    ) -> list[str]: ...
    @overload
    async def publish_many(
        self, events: Iterable[T | Publication[T]], *, return_exceptions: Literal[True], **options: Unpack[PublishOptions]
    ) -> list[str | Exception]: ...
    async def publish_many(
        self, events: Iterable[T | Publication[T]], *, return_exceptions: bool = False, **options: Unpack[PublishOptions]
    ) -> Any:
        """Publish many events and return their ids, in the same order.

        The iterable is read lazily. Events are sent in batches, in order, and not in one transaction. A refused event does not
        stop the others.

        Args:
            events: Events, or events with their own options made by ``bind()``.
            return_exceptions: Return the exception of a refused event in its position, instead of raising ``BulkError``.
            **options: As for ``publish``, without ``id``. They apply to events that were not made by ``bind()``.

        Raises:
            BulkError: At least one event was refused. It holds the results of all events.
            UsageError: An option is unknown or invalid.
        """
        if options.get("id") is not None:
            raise UsageError("publish_many(id=…) would give all events the same id: use topic.bind(event, id=…) for each event")
        common = self._sender(options) if options else self._plain
        bulk = Bulk(self._clients, shards=self.settings.shards)
        await bulk.send(_call(event, common) for event in events)
        if bulk.refused and not return_exceptions:
            raise BulkError(bulk.results)
        return [result.id if isinstance(result, Job) else result for result in bulk.results]

    publish_sync = sync_version(publish)
    publish_many_sync = sync_version(publish_many)

    def _sender(self, options: PublishOptions) -> _Sender:
        return _Sender(self.name, self._codec, self._clients, self._app.max_payload_bytes, self.key_of, options)

    # -- handling ----------------------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, group: str, *, batch: None = None, dead_letter: Topic[T] | None = None, **options: Unpack[SubscribeOptions]
    ) -> Subscriber[T]: ...
    @overload
    def subscribe(
        self, group: str, *, batch: Batch, dead_letter: Topic[T] | None = None, **options: Unpack[SubscribeOptions]
    ) -> BatchSubscriber[T]: ...
    def subscribe(
        self,
        group: str,
        *,
        batch: Batch | None = None,
        dead_letter: Topic[T] | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Any:
        """Declare the handler of a group: ``@topic.subscribe("billing")``.

        The function takes an event, or an event and its ``Delivery``. The group is created when an app that declares it
        connects. By default it starts with the oldest event that the topic still stores.

        Args:
            group: Name of the group. Every group receives every event.
            batch: Call the handler with a list of events, or with lists of events and deliveries. The outcome of the handler
                applies to all events of the batch whose delivery was not acknowledged, rejected or retried individually.
            dead_letter: Another topic of the same type, which receives each dead letter of the group once: the event, its
                fields, and the headers ``dead-reason``, ``dead-error``, ``dead-topic``, ``dead-group``, ``dead-id`` and
                ``dead-attempts``. While that topic is full or unreachable, dead letters wait in the group's list. Malformed,
                oversize and undecodable entries stay in the list.
            **options: See ``SubscribeOptions``: ``concurrency``, ``retry``, ``timeout``, ``ack``, ``max_crashes``,
                ``max_payload_bytes``, ``keep_expired``, ``start``, ``consumers``, ``on_failure``, ``max_pending_per_key``.

        Raises:
            UsageError: The group already has a handler, an option is unknown or invalid, or the function has other parameters.
        """
        forwarder = None if dead_letter is None else self._forwarder(group, dead_letter)

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            if group in self.subscriptions:
                raise UsageError(
                    f"group {group!r} of topic {self.name!r} already has a handler: use another group for this function"
                )
            subscription = self._subscription(fn, group, options, batch)
            if forwarder is not None:
                self._add_dead_handler(forwarder)
            self.subscriptions[group] = subscription
            return fn

        return declare

    @overload
    async def consume(
        self,
        group: str,
        handler: Callable[[T, Delivery], HandlerReturn],
        *,
        batch: None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Consumer: ...
    @overload
    async def consume(
        self, group: str, handler: Callable[[T], HandlerReturn], *, batch: None = None, **options: Unpack[SubscribeOptions]
    ) -> Consumer: ...
    @overload
    async def consume(
        self,
        group: str,
        handler: Callable[[list[T], list[Delivery]], HandlerReturn],
        *,
        batch: Batch,
        **options: Unpack[SubscribeOptions],
    ) -> Consumer: ...
    @overload
    async def consume(
        self, group: str, handler: Callable[[list[T]], HandlerReturn], *, batch: Batch, **options: Unpack[SubscribeOptions]
    ) -> Consumer: ...
    async def consume(
        self,
        group: str,
        handler: Callable[..., HandlerReturn],
        *,
        batch: Batch | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Consumer:
        """Handle a group's events in this process until the returned consumer is closed.

        The group exists when this returns. A group may have any number of consumers, in any processes, which share its events.
        A thread renews the lease, as for ``app.worker()``. The app's ``lifespan`` is not entered, so ``state`` is ``None``.

        Args:
            group: Name of the group.
            handler: Function that takes an event, or an event and its delivery.
            batch: Call the handler with lists, as for ``subscribe``.
            **options: As for ``subscribe``.

        Raises:
            UsageError: An option is unknown or invalid, or the handler has other parameters.
            BrokerUnavailable: The server is unreachable.
        """
        return await self._consume(self._subscription(handler, group, options, batch))

    def _subscription(self, fn: Callable[..., Any], group: str, options: SubscribeOptions, batch: Batch | None) -> Subscription:
        settings = self.settings
        return Subscription(
            fn,
            self.name,
            group,
            self._codec,
            options,
            self._app,
            batch,
            start=settings.start,
            shards=settings.shards,
            order=settings.order,
        )

    def on_dead(self, group: str, **options: Unpack[DeadOptions]) -> DeadSubscriber[T]:
        """Declare the handler of a group's dead letters: ``@topic.on_dead("billing")``.

        The function takes a ``DeadEvent`` and may be async. It receives every dead letter of the group, including those from
        before its declaration. When it returns, the letter is removed. When it raises or times out, the letter stays in the
        list and is retried by the policy ``retry``. After the last attempt, a ``Reject``, or more than ``max_crashes`` crashes,
        the letter stays and is marked as unhandled (``DeadJob.unhandled``), until it is replayed, purged or too old.

        Options: ``concurrency``, ``retry`` and ``timeout``; see ``DeadOptions``.

        Raises:
            UsageError: The group already has a dead-letter handler or ``dead_letter`` topic, or an option is unknown or
                invalid. A worker raises it at its start if the group has no subscription.
        """

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            self._add_dead_handler(DeadHandler(fn, self.name, group, self._codec, options, self._clients, self._app))
            return fn

        return declare

    def _forwarder(self, group: str, target: Topic[Any]) -> Forwarder:
        if not isinstance(target, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"dead_letter must be a topic made by app.topic(…), not {target!r}")
        if target is self:
            raise UsageError(
                f"dead_letter={target!r} is the topic itself, so all its groups would receive the dead letters of one: use "
                "another topic"
            )
        if target._clients is not self._clients:
            raise UsageError(f"dead_letter={target!r} belongs to another app: declare the topic in this app")
        if target.type != self.type:
            raise UsageError(
                f"dead_letter={target!r} has events of type {target.type!r}, but {self!r} has {self.type!r}: use the same type"
            )
        return Forwarder(self.name, group, self._codec, target, self._clients, self._app)

    def _add_dead_handler(self, handler: DeadHandler | Forwarder) -> None:
        known = self.dead_handlers.get(handler.group)
        if known is not None:
            way_out = "a group's dead letters go to one handler or to one topic"
            raise UsageError(f"group {handler.group!r} of topic {self.name!r} already has a {known!r}: {way_out}")
        self.dead_handlers[handler.group] = handler

    @overload
    def broadcast(self, fn: Callable[[T, Delivery], HandlerReturn], /) -> Callable[[T, Delivery], HandlerReturn]: ...
    @overload
    def broadcast(self, fn: Callable[[T], HandlerReturn], /) -> Callable[[T], HandlerReturn]: ...
    @overload
    def broadcast(self, **options: Unpack[BroadcastOptions]) -> Subscriber[T]: ...
    def broadcast(self, *fn: Any, **options: Any) -> Any:
        """Declare a handler that runs for every event in every worker process: ``@topic.broadcast``.

        The function takes an event, or an event and its ``Delivery``. Each process receives the events that are published while
        it runs, in order and one at a time. ``@topic.broadcast(concurrency=4)`` handles several at the same time. In an ordered
        topic the order holds per shard, and so per key. A broadcast has no group, so it does not have the guarantees of one:

        - A process that is not running misses the events. Events that have not started when it stops are dropped.
        - Exceptions of the handler are logged. ``ack()``, ``nack()`` and ``retry()`` do nothing.
        - The topic does not keep events for it. An event that is trimmed before a process reads it is missed. This is logged,
          and ``missed`` of the next delivery has the number. A ``retention`` of the topic keeps events longer.

        If a topic has only broadcasts, its oldest events are dropped at ``max_length`` and after ``retention``. ``publish``
        never raises ``TopicFull`` there.

        Options: ``concurrency``, ``timeout`` and ``max_payload_bytes``; see ``BroadcastOptions``.

        Raises:
            UsageError: An option is unknown or invalid, or the function has other parameters.
        """

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            for shard in self.address.shards(self.settings.shards):
                self.broadcasts.append(Broadcast(fn, shard.log, self._codec, cast(BroadcastOptions, options), self._app))
            return fn

        if not fn:
            return declare
        if len(fn) != 1 or options:
            raise UsageError("broadcast() takes one function or keyword options: @topic.broadcast or @topic.broadcast(…)")
        return declare(*fn)

    def group(self, name: str) -> Group:
        """Return a group of this topic, to inspect or change it. It need not be declared in this app."""
        return Group(self.name, checked_name(name, "group"), self._clients)

    async def reshard(self, shards: int) -> None:
        """Change the number of shards. Afterwards every app must declare this number, or it gets ``ShardsChanged``.

        All groups must have handled all events. Nobody can publish while this is checked. Dead letters and events kept by
        ``retention`` stay in their shards. Events kept in a shard that disappears are deleted.

        Args:
            shards: New number of shards. 0 means not sharded.

        Raises:
            ShardsInUse: An event is ready, running, scheduled, delayed or blocked for a group, a key is stopped, or a shard
                that would disappear has dead letters. Nothing is changed.
        """
        await reshard(self._clients.here(), Address.of_topic(self.name), integer(shards, "shards", minimum=0))

    reshard_sync = sync_version(reshard)

    def __repr__(self) -> str:
        return f"<topic {self.name!r}>"


class _Sender:
    """Sends events of a topic with one set of options. ``Bulk`` uses it in the place of a task."""

    __slots__ = ("name", "origin", "template")

    def __init__(
        self, name: str, codec: EventCodec, clients: Clients, most: int | None, key_of: KeyOf | None, options: PublishOptions
    ) -> None:
        self.name = name
        refuse_unknown(options, ("id", "delay", "expires", "headers", *_FIELDS), "publish")
        delay = seconds(options.get("delay", 0.0), "delay")
        expires = 0.0 if (until := options.get("expires")) is None else seconds(until, "expires", above=True)
        if expires and expires <= delay:
            raise UsageError(
                f"expires={until!r}: the event is due in {delay:g} s and would have expired by then, so it would never be "
                "handled"
            )
        self.template = Template(
            task=name,
            queue=Address.of_topic(name),
            arguments=codec,
            max_payload_bytes=most,
            id="" if (given := options.get("id")) is None else job_id(given),
            delay=delay,
            expires=expires,
            event=_fields(options, most),
            key=None if key_of is None else key_of.of_event,
        )
        self.origin = Origin(clients, self.template.queue, name, _no_result, False)

    def origin_at(self, address: str) -> Origin:
        """Return the same origin for every shard: only the id of a published event is used."""
        return self.origin


def _call(event: Any, common: _Sender) -> Call[Any]:
    """Return the event as a call, for ``Bulk``."""
    sender: Any = common
    if event.__class__ is Publication:
        bound: Publication[Any] = event
        if bound.sender.origin.queue == common.origin.queue:  # otherwise it is refused: it has the wrong type
            event, sender = bound.event, bound.sender
    return Call(sender, (event,), {})


_FIELDS = ("key", "kind", "source", "correlation_id", "traceparent", "content_type", "version")


def _fields(options: PublishOptions, most: int | None) -> EventFields | None:
    """Return the headers and fields of an event, at most ``most`` bytes; ``None`` if there are none."""
    said = {name: options[name] for name in _FIELDS if name in options}  # type: ignore[literal-required]
    return fields_option(options.get("headers"), said, most, "an event")


def _no_result(_: object) -> None:
    raise UsageError("events have no results")
