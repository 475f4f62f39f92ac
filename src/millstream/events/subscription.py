"""A subscription: a function that handles a topic's events for one group."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, get_args, overload

from millstream.broker.values import BEGINNING, LogPosition, OrderRules
from millstream.codec import EventCodec, ResultCodec
from millstream.codec.encoder import Payload
from millstream.errors import UsageError
from millstream.events.batch import Batch
from millstream.events.delivery import Delivery, ManualDelivery
from millstream.jobs.current import in_flight
from millstream.model.address import Address
from millstream.model.handler import Letters, is_coroutine
from millstream.model.ordering import OnFailure, consumers_option, order_rules
from millstream.model.policy import RetryPolicy
from millstream.model.serving import Serving
from millstream.model.settings import AppSettings, TaskSettings, integer
from millstream.model.settings import name as checked_name
from millstream.model.types import Seconds
from millstream.options import log_position, payload_option, refuse_unknown, retry_option, timeout_option

if TYPE_CHECKING:
    from millstream.worker.hot.in_flight import InFlight

E = TypeVar("E")

Ack = Literal["on_success", "on_receive", "manual"]
HandlerReturn = Awaitable[None] | None


class SubscribeOptions(TypedDict, total=False):
    """What ``topic.subscribe(group, …)`` takes; what is left out is as the app says."""

    concurrency: int | None
    """How many events one worker process handles at once; None: as many as the worker does."""
    retry: RetryPolicy | int
    timeout: Seconds | None
    """None: no timeout."""
    ack: Ack
    """on_success: an event is done when its handler returns, and tried again if it raises, unless its delivery was told how it
    ends. on_receive: acknowledged before the handler is called, never tried again. manual: its delivery says how it ends, in
    the handler or later, and keeps the handler's slot until then; what the handler raises is reported; an event whose delivery
    was dropped comes back after the lease, and has spent an attempt."""
    max_crashes: int
    max_payload_bytes: int | None
    """None: no cap."""
    keep_expired: bool
    """Events that expired become dead letters; otherwise they are only counted."""
    start: datetime | str
    """Where a new group begins: "beginning", "new", at a moment, or after an entry by its id; else as the topic says."""
    consumers: tuple[int, int] | None
    """How many worker processes serve the group, at least and at most, over all machines; None: any number."""
    on_failure: OnFailure
    """Of an ordered topic, when an event is dead: "skip" goes on with the next of its key, "stop" makes dead what follows until
    the key is cleared; else as the topic says."""
    max_pending_per_key: int
    """Of an ordered topic, while a key waits for a retry: how many may wait behind it before those that come are dead
    (pending_full); else as the topic says."""


class Subscriber(Protocol[E]):
    """What ``topic.subscribe(...)`` returns: takes a function of an event, or of an event and its delivery."""

    @overload
    def __call__(self, fn: Callable[[E, Delivery], HandlerReturn], /) -> Callable[[E, Delivery], HandlerReturn]: ...
    @overload
    def __call__(self, fn: Callable[[E], HandlerReturn], /) -> Callable[[E], HandlerReturn]: ...


class BatchSubscriber(Protocol[E]):
    """What ``topic.subscribe(..., batch=Batch(…))`` returns: takes a function of events, or of events and their deliveries."""

    @overload
    def __call__(
        self, fn: Callable[[list[E], list[Delivery]], HandlerReturn], /
    ) -> Callable[[list[E], list[Delivery]], HandlerReturn]: ...
    @overload
    def __call__(self, fn: Callable[[list[E]], HandlerReturn], /) -> Callable[[list[E]], HandlerReturn]: ...


class Subscription:
    """What a worker runs for one group."""

    letters: Letters = ""

    def __init__(
        self,
        fn: Callable[..., Any],
        topic: str,
        group: str,
        codec: EventCodec,
        options: SubscribeOptions,
        app: AppSettings,
        batch: Batch | None = None,
        *,
        start: LogPosition = BEGINNING,
        shards: int = 0,
        order: OrderRules | None = None,
    ) -> None:
        """``shards`` and ``order``: of a topic that has an order, what holds there if nothing else is said."""
        refuse_unknown(options, ("batch", "dead_letter", *SubscribeOptions.__annotations__), "subscribe")
        self.topic = topic
        self.group = checked_name(group, "group")
        self.name = self.address = Address.of_group(topic, group)
        self.fn = fn
        self.ack = _ack_option(options)
        concurrency = options.get("concurrency")
        self.concurrency = None if concurrency is None else integer(concurrency, "concurrency", minimum=1)
        self.start = log_position(options["start"], "start") if "start" in options else start
        self.keep_expired = _keep_expired_option(options)
        self.batch = _checked_batch(batch)
        self.shards = shards
        self.order = order_rules(options, order, f"group {group!r} of topic {topic!r}")
        self.consumers = consumers_option(options.get("consumers"))
        if self.order is not None:
            self._refuse_what_breaks_order()
        self.settings = TaskSettings(
            name=self.name,
            aliases=(),
            queue=self.address,
            timeout=timeout_option(options.get("timeout", app.timeout or None)),
            result_ttl=0.0,
            expires=0.0,
            max_crashes=integer(options.get("max_crashes", app.max_crashes), "max_crashes", minimum=0),
            retry=retry_option(options.get("retry", app.retry), app.retry),
            max_payload_bytes=payload_option(options.get("max_payload_bytes", app.max_payload_bytes)),
        )
        with_delivery = takes_delivery(fn, self.name)
        self.is_async = is_coroutine(fn)
        if self.ack == "manual" and (batch is not None or not with_delivery):
            raise UsageError(
                f"{self.name}: with ack='manual' a handler takes one event and its delivery, which it tells how it ends"
            )
        self.arguments = EventArguments(
            codec, (ManualDelivery if self.ack == "manual" else Delivery) if with_delivery else None
        )
        self.returns = ResultCodec(no_result, task=self.name)
        self.foreign = codec.foreign
        """Makes a payload of the fields of another program's entry, if that is asked for."""

    def _refuse_what_breaks_order(self) -> None:
        of = f"group {self.group!r} of topic {self.topic!r}"
        if self.ack == "on_receive":
            raise UsageError(
                f"ack='on_receive' for {of}: it has an order, and an event that is acknowledged before its handler would let "
                "the next of its key begin beside it"
            )
        if self.batch is not None:
            raise UsageError(
                f"batch={self.batch!r} for {of}: it has an order, in which the events of a key are handled one at a time, and "
                "a batch would hold up the keys of all its events until the last one is done"
            )

    @property
    def serving(self) -> Serving:
        """How a worker serves it."""
        return Serving(self.address, self.shards, None if self.consumers is None else self.consumers[1], self.order)

    def __repr__(self) -> str:
        return f"<subscription of group {self.group!r} to topic {self.topic!r}>"


def _ack_option(options: SubscribeOptions) -> Ack:
    ack = options.get("ack", "on_success")
    if ack not in get_args(Ack):
        raise UsageError(f"ack must be one of {', '.join(map(repr, get_args(Ack)))}, not {ack!r}")
    return ack


def _keep_expired_option(options: SubscribeOptions) -> bool:
    keep_expired = options.get("keep_expired", False)
    if not isinstance(keep_expired, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"keep_expired must be True or False, not {keep_expired!r}")
    return keep_expired


def _checked_batch(batch: Batch | None) -> Batch | None:
    if batch is not None and not isinstance(batch, Batch):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"batch must be a Batch(size, wait), not {batch!r}")
    return batch


class PrefixSubscription:
    """What a worker runs for one group of every topic whose name begins so."""

    def __init__(self, prefix: str, group: str, make: Callable[[str], Subscription]) -> None:
        self.prefix = prefix
        self.group = group
        self.address = Address.of_prefix(prefix, group)
        """Stands for those of all its groups."""
        self._make = make
        example = make(prefix)  # what is wrong with it shows here
        self.start = example.start
        self.serving = replace(example.serving, address=self.address)
        """How a worker serves each of its groups."""

    def to(self, topic: str) -> Subscription:
        """The subscription to one of these topics."""
        return self._make(topic)

    def serves(self, address: Address) -> bool:
        """Whether this is a group of it."""
        return address.is_group and address.group == self.group and address.log.startswith(self.prefix)

    def __repr__(self) -> str:
        return f"<subscription of group {self.group!r} to topics {self.prefix!r}…>"


class EventArguments:
    """Calls a handler with an event, and its delivery if it takes one."""

    def __init__(self, codec: EventCodec, delivery: type[Delivery] | None) -> None:
        self._codec = codec
        self._delivery = delivery

    def decode(self, payload: Payload, /) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Called where the job is the current one."""
        event = self._codec.decode(payload)
        return ((event,) if self._delivery is None else (event, self._delivery(in_flight()))), {}

    def event(self, payload: Payload) -> Any:
        """One event of a batch."""
        return self._codec.decode(payload)

    def together(self, jobs: list[InFlight], events: list[Any]) -> tuple[Any, ...]:
        """What a handler of batches is called with."""
        return (events,) if self._delivery is None else (events, [self._delivery(job) for job in jobs])


def takes_delivery(fn: Callable[..., Any], name: str) -> bool:
    """Whether a handler takes the delivery beside the event. UsageError: it is none."""
    if not callable(fn):
        raise UsageError(f"{name}: a handler is a function of an event, not {fn!r}")
    positional = [
        p
        for p in inspect.signature(fn).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if not 1 <= len(positional) <= 2:
        raise UsageError(
            f"{name}: {getattr(fn, '__qualname__', fn)!r} takes {len(positional)} arguments; "
            "a handler takes the event, or the event and its delivery"
        )
    return len(positional) == 2


def no_result() -> None:
    """Handlers of events return nothing that is kept."""
