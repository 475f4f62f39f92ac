"""A topic: what is published to it is given to each of its groups."""

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
        """What ``publish`` takes beside the event."""

        id: str | None
        delay: Seconds
        expires: Seconds | None
        headers: Mapping[str, str] | None
        key: str
        kind: str
        source: str
        correlation_id: str
        traceparent: str
        content_type: str
        version: str


T = TypeVar("T")


Consume = Callable[[Subscription], Awaitable[Consumer]]
"""Begins to handle events in this process."""


class Publication(Generic[T]):
    """An event with options of its own, made by ``topic.bind``, for ``publish_many``."""

    __slots__ = ("event", "sender")

    def __init__(self, event: T, sender: _Sender) -> None:
        self.event = event
        self.sender = sender

    def __repr__(self) -> str:
        return f"<event bound for topic {self.sender.name!r}>"


class Topic(Generic[T]):
    """A named log of events of one type. Every group gets every event; within a group one handler gets each.

    Declare handlers with ``@topic.subscribe(group)``, and with ``@topic.broadcast`` for every process.
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
        """Which key an event has; None: it is in no order."""
        self.subscriptions: dict[str, Subscription] = {}
        self.dead_handlers: dict[str, DeadHandler | Forwarder] = {}
        """What becomes of a group's dead letters, where code decides that."""
        self.broadcasts: list[Broadcast] = []
        self._codec = codec
        self._clients = clients
        self._app = app
        self._consume = consume
        self._plain = self._sender({})

    @property
    def name(self) -> str:
        """Its name."""
        return self.settings.name

    @property
    def address(self) -> Address:
        """Where its events are published to, as the engine names it."""
        return Address.of_topic(self.name)

    @property
    def stream(self) -> str:
        """What its log is called on the server: other programs may read it, and with ``codec="fields"`` write to it by XADD.
        UsageError if it has shards: ``streams``."""
        if self.settings.shards:
            raise UsageError(f"{self!r} has {self.settings.shards} shards, each with a log: topic.streams")
        return self.streams[0]

    @property
    def streams(self) -> Sequence[str]:
        """What the logs of its shards are called on the server, in their order; without shards it is one. docs/guide/ordering.md says
        which of them is that of a key."""
        from millstream.backends.redis.keys import topic_keys  # an app alone loads no backend

        return [topic_keys(self._app.namespace, shard.log)["log"] for shard in self.address.shards(self.settings.shards)]

    @property
    def order_by(self) -> Callable[[T], Key] | None:
        """The function that says which key an event has; None: it is in no order."""
        return None if self.key_of is None else cast(Callable[[T], Key], self.key_of.fn)

    @property
    def type(self) -> Any:
        """Of what type its events are."""
        return self._codec.type

    @property
    def codec(self) -> CodecName | Codec:
        """How they travel."""
        return self._codec.codec

    @property
    def wire(self) -> EventCodec:
        """What turns them into bytes, and back."""
        return self._codec

    # -- publishing --------------------------------------------------------------------------------------------------------

    async def publish(self, event: T, **options: Unpack[PublishOptions]) -> str:
        """Accepted once this returns: every group will be given it. Returns its id.

        ``id``: published once under this id, however often it is sent within ``id_ttl``. ``delay``: not before so many seconds.
        ``expires``: not handled after so many. The rest travels with it, and its delivery has it. Raises TypeError if it is not
        of the topic's type or ``order_by`` has no key for it, PayloadTooLarge, TopicFull, ShardsChanged if an ordered topic has
        another number of shards than is declared here, and BrokerUnavailable with its id.
        """
        sender = self._sender(options) if options else self._plain
        event_id, _, _ = await self._clients.here().send(sender.template, (event,), {})
        return event_id

    def bind(self, event: T, **options: Unpack[PublishOptions]) -> Publication[T]:
        """An event with options, to be published by ``publish_many``."""
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
        """Publish events, or publications made by ``bind``; their ids, in order. ``options``: for those without their own.

        Every event is tried. If some were refused, raises BulkError with all results, or with ``return_exceptions`` returns the
        exceptions in their places. Goes out in calls of bounded size, in order, not in one transaction.
        """
        if options.get("id") is not None:
            raise UsageError("publish_many(id=…) would give all events one id: give each its own with topic.bind(event, id=…)")
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
        """Declare what handles this topic's events for a group: a function of an event, or of an event and its delivery.

        With ``batch`` it is given lists of events, and of their deliveries if it takes two; a delivery that is told how it ends
        ends so, the others as the handler does.

        The group exists from the moment an app that declares it connects, and gets what the topic still keeps then, unless
        ``start`` says otherwise. UsageError if the group has a handler already.

        ``dead_letter``: another topic of this type, to which what dies in the group goes, once each: the event with all that
        travelled with it, and headers ``dead-reason``, ``dead-error``, ``dead-topic``, ``dead-group``, ``dead-id`` and
        ``dead-attempts``. It waits in the group's list while that topic is full or away; what is malformed, oversize or does
        not decode stays there.
        """
        forwarder = None if dead_letter is None else self._forwarder(group, dead_letter)

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            if group in self.subscriptions:
                raise UsageError(
                    f"group {group!r} of topic {self.name!r} has a handler already: give this one a group of its own"
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
        """Handle a group's events in this process from now on, as ``subscribe`` says, until the consumer is closed.

        The group exists when this returns. A group may have any number of consumers, here and elsewhere, and shares its events
        among them. A thread keeps the lease, as for ``app.worker()``; the app's lifespan is not entered, so there is no state.
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
        """Declare what handles the dead letters of a group: a function of a DeadEvent, async or not.

        One worker at a time gives it each letter, also those that died before it was declared. When it returns, the letter is
        removed. When it raises or times out, the letter stays in the list and is given to it again, as ``retry`` says. After
        the last attempt, or a ``Reject``, the letter stays and is marked unhandled (``DeadJob.unhandled``), until it is
        replayed, purged or too old. The same holds after it took down more than ``max_crashes`` workers. UsageError if
        something else becomes of this group's dead letters already, and at the start of a worker if nothing subscribes under
        that group.
        """

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            self._add_dead_handler(DeadHandler(fn, self.name, group, self._codec, options, self._clients, self._app))
            return fn

        return declare

    def _forwarder(self, group: str, target: Topic[Any]) -> Forwarder:
        if not isinstance(target, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"dead_letter must be a topic, made by app.topic(…), not {target!r}")
        if target is self:
            raise UsageError(f"dead_letter={target!r} is the topic itself: its groups would be given what died in one of them")
        if target._clients is not self._clients:
            raise UsageError(f"dead_letter={target!r} is a topic of another app")
        if target.type != self.type:
            raise UsageError(
                f"dead_letter={target!r} has events of type {target.type!r}, and {self!r} has {self.type!r}: give it this type"
            )
        return Forwarder(self.name, group, self._codec, target, self._clients, self._app)

    def _add_dead_handler(self, handler: DeadHandler | Forwarder) -> None:
        known = self.dead_handlers.get(handler.group)
        if known is not None:
            way_out = "a group's dead letters are handled by one function, or go to one topic"
            raise UsageError(f"group {handler.group!r} of topic {self.name!r} has a {known!r} already: {way_out}")
        self.dead_handlers[handler.group] = handler

    @overload
    def broadcast(self, fn: Callable[[T, Delivery], HandlerReturn], /) -> Callable[[T, Delivery], HandlerReturn]: ...
    @overload
    def broadcast(self, fn: Callable[[T], HandlerReturn], /) -> Callable[[T], HandlerReturn]: ...
    @overload
    def broadcast(self, **options: Unpack[BroadcastOptions]) -> Subscriber[T]: ...
    def broadcast(self, *fn: Any, **options: Any) -> Any:
        """Declare what every worker process does with every event: ``@topic.broadcast``, or
        ``@topic.broadcast(concurrency=4)``. A function of an event, or of an event and its delivery.

        A process is given what is published from its start to its stop, in order, one at a time unless ``concurrency`` says
        otherwise; of an ordered topic each shard's for itself, so in order per key. There is no group: nothing waits for a
        process that is not there, what has not begun when one stops is dropped, what a handler raises is logged, and ``ack``,
        ``nack`` and ``retry`` do nothing.

        Nor does the topic keep an event for it. One that was trimmed before it was read is missed: that is logged, and told by
        ``delivery.missed`` of the next one. ``retention`` keeps events for longer than groups need them. Where broadcasts are
        the only readers, events go when ``retention`` is over, or the oldest at ``max_length``, instead of TopicFull.
        """

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            for shard in self.address.shards(self.settings.shards):
                self.broadcasts.append(Broadcast(fn, shard.log, self._codec, cast(BroadcastOptions, options), self._app))
            return fn

        if not fn:
            return declare
        if len(fn) != 1 or options:
            raise UsageError("broadcast() takes one function, or options by keyword: @topic.broadcast or @topic.broadcast(…)")
        return declare(*fn)

    def group(self, name: str) -> Group:
        """One of its groups, to be looked after."""
        return Group(self.name, checked_name(name, "group"), self._clients)

    async def reshard(self, shards: int) -> None:
        """Change how many shards it has; 0: none. Every app must then declare that number; those that declare another one are
        refused (ShardsChanged).

        ShardsInUse, changing nothing, if an event is ready, running, scheduled, delayed or blocked for a group, or dead in a
        shard that would be no more, or a key is stopped. While it looks nobody can publish. What ``retention`` keeps, and what
        is dead, stays in the shard that it was published to; what was kept goes with a shard that is no more.
        """
        await reshard(self._clients.here(), Address.of_topic(self.name), integer(shards, "shards", minimum=0))

    reshard_sync = sync_version(reshard)

    def __repr__(self) -> str:
        return f"<topic {self.name!r}>"


class _Sender:
    """What ``Bulk`` asks of a task, for a topic with one set of options."""

    __slots__ = ("name", "origin", "template")

    def __init__(
        self, name: str, codec: EventCodec, clients: Clients, most: int | None, key_of: KeyOf | None, options: PublishOptions
    ) -> None:
        self.name = name
        refuse_unknown(options, ("id", "delay", "expires", "headers", *_FIELDS), "publish")
        delay = seconds(options.get("delay", 0.0), "delay")
        expires = 0.0 if (until := options.get("expires")) is None else seconds(until, "expires", above=True)
        if expires and expires <= delay:
            raise UsageError(f"expires={until!r} is not after the event is due, in {delay:g} s: it could never be handled")
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
        """Of an event only the id is of interest, whichever shard it went to."""
        return self.origin


def _call(event: Any, common: _Sender) -> Call[Any]:
    """As ``Bulk`` takes it."""
    sender: Any = common
    if event.__class__ is Publication:
        bound: Publication[Any] = event
        if bound.sender.origin.queue == common.origin.queue:  # else it is no event of this topic, and refused as such
            event, sender = bound.event, bound.sender
    return Call(sender, (event,), {})


_FIELDS = ("key", "kind", "source", "correlation_id", "traceparent", "content_type", "version")


def _fields(options: PublishOptions, most: int | None) -> EventFields | None:
    """What travels with an event, at most so many bytes of it; None if that is nothing."""
    said = {name: options[name] for name in _FIELDS if name in options}  # type: ignore[literal-required]
    return fields_option(options.get("headers"), said, most, "an event")


def _no_result(_: object) -> None:
    raise UsageError("events leave no results")
