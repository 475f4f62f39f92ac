"""Subscriptions: handlers of a topic's events for one group."""

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
    """Options of ``topic.subscribe(group, …)``. Options that are left out use the settings of the topic or app."""

    concurrency: int | None
    """Number of events that one worker process handles at the same time. ``None`` (default) uses the worker's limit."""
    retry: RetryPolicy | int
    """Retry policy. A number changes only ``max_retries`` of the app's policy."""
    timeout: Seconds | None
    """Seconds that one attempt may run. ``None`` means no limit."""
    ack: Ack
    """When an event counts as handled.

    - ``"on_success"`` (default): when the handler returns. If it raises, the event is retried. ``ack()``, ``nack()`` and
      ``retry()`` of the delivery override this.
    - ``"on_receive"``: before the handler is called. The event is never retried.
    - ``"manual"``: when the handler, or other code later, calls ``ack()``, ``nack()`` or ``retry()`` of the delivery. Until
      then the event occupies a slot of the worker. Exceptions of the handler are only reported. If the delivery is dropped, the
      event is redelivered after the lease, which uses up a retry.
    """
    max_crashes: int
    """Number of crashes that an event survives. A crash means that a worker died while handling it. 0 means at most once."""
    max_payload_bytes: int | None
    """Maximum size of an encoded event. A larger one becomes a dead letter (``oversize``). ``None`` means no limit."""
    keep_expired: bool
    """Make expired events dead letters. By default they are only counted."""
    start: datetime | str
    """Where a new group starts: ``"beginning"``, ``"new"``, a datetime with a time zone, or an entry id (after that entry). By
    default as the topic declares."""
    consumers: tuple[int, int] | None
    """``(min, max)`` number of worker processes that serve the group, over all machines. ``None`` (default) means any
    number."""
    on_failure: OnFailure
    """What happens when an event of an ordered topic is dead. ``"skip"`` continues with the next event of its key. ``"stop"``
    makes the following events of the key dead letters, until the key is cleared. By default as the topic declares."""
    max_pending_per_key: int
    """Maximum number of events of an ordered topic that wait behind a retry of the same key. Further events of the key are dead
    with the reason ``pending_full``. By default as the topic declares."""


class Subscriber(Protocol[E]):
    """The decorator that ``topic.subscribe(...)`` returns. Its function takes an event, or an event and its delivery."""

    @overload
    def __call__(self, fn: Callable[[E, Delivery], HandlerReturn], /) -> Callable[[E, Delivery], HandlerReturn]: ...
    @overload
    def __call__(self, fn: Callable[[E], HandlerReturn], /) -> Callable[[E], HandlerReturn]: ...


class BatchSubscriber(Protocol[E]):
    """The decorator that ``topic.subscribe(..., batch=Batch(…))`` returns. Its function takes a list of events, or two lists:
    events and their deliveries."""

    @overload
    def __call__(
        self, fn: Callable[[list[E], list[Delivery]], HandlerReturn], /
    ) -> Callable[[list[E], list[Delivery]], HandlerReturn]: ...
    @overload
    def __call__(self, fn: Callable[[list[E]], HandlerReturn], /) -> Callable[[list[E]], HandlerReturn]: ...


class Subscription:
    """The handler of one group, as a worker runs it."""

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
        """``shards`` and ``order``: those of an ordered topic. Options of the group override the rules in ``order``."""
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
                f"{self.name}: with ack='manual' the handler must take one event and its delivery, and no batch: it sets the "
                "outcome with delivery.ack(), nack() or retry()"
            )
        self.arguments = EventArguments(
            codec, (ManualDelivery if self.ack == "manual" else Delivery) if with_delivery else None
        )
        self.returns = ResultCodec(no_result, task=self.name)
        self.foreign = codec.foreign
        """Converts the fields of another program's stream entry to a payload; ``None`` unless ``codec="fields"``."""

    def _refuse_what_breaks_order(self) -> None:
        of = f"group {self.group!r} of topic {self.topic!r}"
        if self.ack == "on_receive":
            raise UsageError(
                f"ack='on_receive' for {of}: the topic is ordered, and an event acknowledged before its handler runs would let "
                "the next event of its key start at the same time; use ack='on_success'"
            )
        if self.batch is not None:
            raise UsageError(
                f"batch={self.batch!r} for {of}: the topic is ordered, so events of a key are handled one at a time, and a "
                "batch would block the keys of all its events until the last one is done; leave out batch="
            )

    @property
    def serving(self) -> Serving:
        """The shards, consumer limit and order, for the worker that serves the group."""
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
    """The handler of one group in every topic whose name begins with a prefix."""

    def __init__(self, prefix: str, group: str, make: Callable[[str], Subscription]) -> None:
        self.prefix = prefix
        self.group = group
        self.address = Address.of_prefix(prefix, group)
        """Stands for the addresses of the group in all these topics."""
        self._make = make
        example = make(prefix)  # checks the options at the declaration
        self.start = example.start
        self.serving = replace(example.serving, address=self.address)
        """The consumer limit and order of the group in each topic."""

    def to(self, topic: str) -> Subscription:
        """Return the subscription to one of these topics."""
        return self._make(topic)

    def serves(self, address: Address) -> bool:
        """Return whether this is the address of the group in one of these topics."""
        return address.is_group and address.group == self.group and address.log.startswith(self.prefix)

    def __repr__(self) -> str:
        return f"<subscription of group {self.group!r} to topics {self.prefix!r}…>"


class EventArguments:
    """Decodes messages into the arguments of a handler: the event, and its delivery if the handler takes one."""

    def __init__(self, codec: EventCodec, delivery: type[Delivery] | None) -> None:
        self._codec = codec
        self._delivery = delivery

    def decode(self, payload: Payload, /) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for one event. The job must be the current one."""
        event = self._codec.decode(payload)
        return ((event,) if self._delivery is None else (event, self._delivery(in_flight()))), {}

    def event(self, payload: Payload) -> Any:
        """Decode one event of a batch."""
        return self._codec.decode(payload)

    def together(self, jobs: list[InFlight], events: list[Any]) -> tuple[Any, ...]:
        """Return the arguments for a batch."""
        return (events,) if self._delivery is None else (events, [self._delivery(job) for job in jobs])


def takes_delivery(fn: Callable[..., Any], name: str) -> bool:
    """Return whether a handler takes the delivery as its second parameter. Raise ``UsageError`` if it is not a valid
    handler."""
    if not callable(fn):
        raise UsageError(f"{name}: the handler must be a function that takes an event, not {fn!r}")
    positional = [
        p
        for p in inspect.signature(fn).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if not 1 <= len(positional) <= 2:
        raise UsageError(
            f"{name}: {getattr(fn, '__qualname__', fn)!r} has {len(positional)} required parameters; "
            "a handler takes the event, or the event and its delivery"
        )
    return len(positional) == 2


def no_result() -> None:
    """The signature for the result codec: the return value of an event handler is not stored."""
