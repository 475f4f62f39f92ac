"""A topic: what is published to it is given to each of its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, cast, overload

from millstream.address import group_address, topic_address
from millstream.batch import Batch
from millstream.broadcast import Broadcast, BroadcastOptions
from millstream.broker.contract import BEGINNING, END, Place
from millstream.bulk import Bulk
from millstream.call import Call
from millstream.client import Clients, Template, twin
from millstream.codec import EventCodec
from millstream.dead import DeadLetters
from millstream.delivery import Delivery
from millstream.errors import BulkError, UsageError
from millstream.job import Job, Origin
from millstream.message import EventFields
from millstream.options import job_id
from millstream.settings import AppSettings, TopicSettings, seconds
from millstream.settings import name as checked_name
from millstream.subscription import BatchSubscriber, Outcome, SubscribeOptions, Subscriber, Subscription
from millstream.types import Seconds

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


class Publication(Generic[T]):
    """An event with options of its own, made by ``topic.bind``, for ``publish_many``."""

    __slots__ = ("event", "sender")

    def __init__(self, event: T, sender: _Sender) -> None:
        self.event = event
        self.sender = sender


class Topic(Generic[T]):
    """A named log of events of one type. Every group gets every event; within a group one handler gets each.

    Declare handlers with ``@topic.subscribe(group)``, and with ``@topic.broadcast`` for every process.
    """

    def __init__(self, settings: TopicSettings, codec: EventCodec, clients: Clients, app: AppSettings) -> None:
        self.settings = settings
        self.subscriptions: dict[str, Subscription] = {}
        self.broadcasts: list[Broadcast] = []
        self._codec = codec
        self._clients = clients
        self._app = app
        self._plain = self._sender({})

    @property
    def name(self) -> str:
        """Its name."""
        return self.settings.name

    @property
    def type(self) -> Any:
        """Of what type its events are."""
        return self._codec.type

    # -- publishing --------------------------------------------------------------------------------------------------------

    async def publish(self, event: T, **options: Unpack[PublishOptions]) -> str:
        """Accepted once this returns: every group will be given it. Returns its id.

        ``id``: published once under this id, however often it is sent within ``id_ttl``. ``delay``: not before so many seconds.
        ``expires``: not handled after so many. The rest travels with it, and its delivery has it. Raises TypeError if it is not
        of the topic's type, PayloadTooLarge, TopicFull, and BrokerUnavailable with its id.
        """
        sender = self._sender(options) if options else self._plain
        event_id, _ = await self._clients.here().send(sender.template, (event,), {})
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
        bulk = Bulk(self._clients)
        await bulk.send(_call(event, common) for event in events)
        if bulk.refused and not return_exceptions:
            raise BulkError(bulk.results)
        return [result.id if isinstance(result, Job) else result for result in bulk.results]

    publish_sync = twin(publish)
    publish_many_sync = twin(publish_many)

    def _sender(self, options: PublishOptions) -> _Sender:
        return _Sender(self, options)

    # -- handling ----------------------------------------------------------------------------------------------------------

    @overload
    def subscribe(self, group: str, *, batch: None = None, **options: Unpack[SubscribeOptions]) -> Subscriber[T]: ...
    @overload
    def subscribe(self, group: str, *, batch: Batch, **options: Unpack[SubscribeOptions]) -> BatchSubscriber[T]: ...
    def subscribe(self, group: str, *, batch: Batch | None = None, **options: Unpack[SubscribeOptions]) -> Any:
        """Declare what handles this topic's events for a group: a function of an event, or of an event and its delivery.

        With ``batch`` it is given lists of events, and of their deliveries if it takes two; a delivery that is told how it ends
        ends so, the others as the handler does.

        The group exists from the moment an app that declares it connects, and gets what the topic still keeps then, unless
        ``start`` says otherwise. UsageError if the group has a handler already.
        """

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            if group in self.subscriptions:
                raise UsageError(
                    f"group {group!r} of topic {self.name!r} has a handler already: give this one a group of its own"
                )
            self.subscriptions[group] = Subscription(fn, self.name, group, self._codec, options, self._app, batch)
            return fn

        return declare

    @overload
    def broadcast(self, fn: Callable[[T, Delivery], Outcome], /) -> Callable[[T, Delivery], Outcome]: ...
    @overload
    def broadcast(self, fn: Callable[[T], Outcome], /) -> Callable[[T], Outcome]: ...
    @overload
    def broadcast(self, **options: Unpack[BroadcastOptions]) -> Subscriber[T]: ...
    def broadcast(self, *fn: Any, **options: Any) -> Any:
        """Declare what every worker process does with every event: ``@topic.broadcast``, or
        ``@topic.broadcast(concurrency=4)``. A function of an event, or of an event and its delivery.

        A process is given what is published from its start to its stop, in order, one at a time unless ``concurrency`` says
        otherwise. There is no group: nothing waits for a process that is not there, what has not begun when one stops is
        dropped, what a handler raises is logged, and ``ack``, ``nack`` and ``retry`` do nothing.

        Nor does the topic keep an event for it. One that was trimmed before it was read is missed: that is logged, and told by
        ``delivery.missed`` of the next one. ``retention`` keeps events for longer than groups need them. Where broadcasts are
        the only readers, events go when ``retention`` is over, or the oldest at ``max_length``, instead of TopicFull.
        """

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.broadcasts.append(Broadcast(fn, self.name, self._codec, cast(BroadcastOptions, options), self._app))
            return fn

        if not fn:
            return declare
        if len(fn) != 1 or options:
            raise UsageError("broadcast() takes one function, or options by keyword: @topic.broadcast or @topic.broadcast(…)")
        return declare(*fn)

    def group(self, name: str) -> Group:
        """One of its groups, to be looked after."""
        return Group(self.name, checked_name(name, "group"), self._clients)

    def __repr__(self) -> str:
        return f"<topic {self.name!r}>"


class Group:
    """A group of a topic: where it stands, and what can be done about it."""

    def __init__(self, topic: str, name: str, clients: Clients) -> None:
        self.topic = topic
        self.name = name
        self.address = group_address(topic, name)
        self._clients = clients
        self.dead = DeadLetters(clients, queue=self.address)
        """Its dead letters; replayed ones go to this group only."""

    async def rewind(self, to: datetime | str = BEGINNING) -> None:
        """Be given again what the topic still keeps, from a moment on, after an entry, or from the beginning."""
        await self._seek(to)

    async def skip(self, to: datetime | str = END) -> None:
        """Pass over what it has not been given, up to a moment, an entry, or all."""
        await self._seek(to)

    async def pause(self) -> None:
        """No event of this group is handled until ``resume``, on any worker, after a restart too."""
        await self._clients.here().ask(lambda broker: broker.pause(self.address))

    async def resume(self) -> None:
        """Undo ``pause``."""
        await self._clients.here().ask(lambda broker: broker.resume(self.address))

    async def remove(self) -> None:
        """Remove it, with all that waits or is dead in it: the topic keeps nothing for it any more."""
        await self._clients.here().ask(lambda broker: broker.remove_group(self.address))

    rewind_sync = twin(rewind)
    skip_sync = twin(skip)
    pause_sync = twin(pause)
    resume_sync = twin(resume)
    remove_sync = twin(remove)

    async def _seek(self, to: datetime | str) -> None:
        if not await self._clients.here().ask(lambda broker: broker.seek(self.address, _place(to))):
            raise UsageError(f"topic {self.topic!r} has no group {self.name!r}")

    def __repr__(self) -> str:
        return f"<group {self.name!r} of topic {self.topic!r}>"


class _Sender:
    """What ``Bulk`` asks of a task, for a topic with one set of options."""

    __slots__ = ("name", "origin", "template")

    def __init__(self, topic: Topic[Any], options: PublishOptions) -> None:
        self.name = topic.name
        known = {"id", "delay", "expires", "headers", *_FIELDS}
        for option in options.keys() - known:
            raise UsageError(f"publish() has no option {option!r}; it has {', '.join(sorted(known))}")
        self.template = Template(
            task=topic.name,
            queue=topic_address(topic.name),
            arguments=topic._codec,
            max_payload_bytes=topic._app.max_payload_bytes,
            id="" if (given := options.get("id")) is None else job_id(given),
            delay=seconds(options.get("delay", 0.0), "delay"),
            expires=0.0 if (expires := options.get("expires")) is None else seconds(expires, "expires", above=True),
            event=_fields(options),
        )
        self.origin = Origin(topic._clients, self.template.queue, topic.name, _no_result, False)


def _call(event: Any, common: _Sender) -> Call[Any]:
    """As ``Bulk`` takes it."""
    sender: Any = common
    if isinstance(event, Publication):
        event, sender = cast("tuple[Any, Any]", (event.event, event.sender))  # pyright: ignore[reportUnknownMemberType]
    return Call(sender, (event,), {})


_FIELDS = ("key", "kind", "source", "correlation_id", "traceparent", "content_type", "version")


def _fields(options: PublishOptions) -> EventFields | None:
    headers = options.get("headers") or {}
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"headers are text by text, not {key!r}: {value!r}")
    said = {name: options[name] for name in _FIELDS if name in options}  # type: ignore[literal-required]
    for name, value in said.items():
        if not isinstance(value, str):
            raise UsageError(f"{name} must be text, not {value!r}")
    return EventFields(dict(headers), **said) if headers or any(said.values()) else None


def _place(to: datetime | str) -> Place:
    if isinstance(to, datetime):
        if to.utcoffset() is None:
            raise UsageError(f"{to!r} has no time zone: use datetime.now(UTC) - … or .astimezone()")
        return to.timestamp()
    return to


def _no_result(_: object) -> None:
    raise UsageError("events leave no results")
