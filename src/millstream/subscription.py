"""A subscription: a function that handles a topic's events for one group."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypedDict, TypeVar, overload

from millstream.address import group_address
from millstream.batch import Batch
from millstream.broker.contract import BEGINNING, Place
from millstream.codec import EventCodec, ResultCodec
from millstream.codec.wire import Payload
from millstream.current import CurrentJob, current_job
from millstream.delivery import Delivery
from millstream.errors import UsageError
from millstream.options import payload_option, retry_option, timeout_option
from millstream.policy import RetryPolicy
from millstream.settings import AppSettings, TaskSettings, whole
from millstream.settings import name as checked_name
from millstream.types import Seconds

E = TypeVar("E")

Ack = Literal["on_success", "on_receive"]
Outcome = Awaitable[None] | None


class SubscribeOptions(TypedDict, total=False):
    """What ``topic.subscribe(group, …)`` takes; what is left out is as the app says."""

    concurrency: int | None
    """How many events one worker process handles at once; None: as many as the worker does."""
    retry: RetryPolicy | int
    timeout: Seconds | None
    """None: no timeout."""
    ack: Ack
    """on_receive: acknowledged before the handler is called, never tried again."""
    max_crashes: int
    max_payload_bytes: int | None
    """None: no cap."""
    start: Place
    """Where a new group begins: "beginning", "end", after an entry, or at a moment in epoch seconds."""


class Subscriber(Protocol[E]):
    """What ``topic.subscribe(...)`` returns: takes a function of an event, or of an event and its delivery."""

    @overload
    def __call__(self, fn: Callable[[E, Delivery], Outcome], /) -> Callable[[E, Delivery], Outcome]: ...
    @overload
    def __call__(self, fn: Callable[[E], Outcome], /) -> Callable[[E], Outcome]: ...


class BatchSubscriber(Protocol[E]):
    """What ``topic.subscribe(..., batch=Batch(…))`` returns: takes a function of events, or of events and their deliveries."""

    @overload
    def __call__(self, fn: Callable[[list[E], list[Delivery]], Outcome], /) -> Callable[[list[E], list[Delivery]], Outcome]: ...
    @overload
    def __call__(self, fn: Callable[[list[E]], Outcome], /) -> Callable[[list[E]], Outcome]: ...


class Subscription:
    """What a worker runs for one group."""

    def __init__(
        self,
        fn: Callable[..., Any],
        topic: str,
        group: str,
        codec: EventCodec,
        options: SubscribeOptions,
        app: AppSettings,
        batch: Batch | None = None,
    ) -> None:
        unknown = options.keys() - SubscribeOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(["batch", *SubscribeOptions.__annotations__])
            raise UsageError(f"subscribe() has no option {unknown.pop()!r}; it has {known}")
        self.topic = topic
        self.group = checked_name(group, "group")
        self.name = self.address = group_address(topic, group)
        self.fn = fn
        self.is_async = inspect.iscoroutinefunction(fn)
        self.ack = options.get("ack", "on_success")
        if self.ack not in ("on_success", "on_receive"):
            raise UsageError(f"ack must be 'on_success' or 'on_receive', not {self.ack!r}")
        concurrency = options.get("concurrency")
        self.concurrency = None if concurrency is None else whole(concurrency, "concurrency", minimum=1)
        self.start = options.get("start", BEGINNING)
        if batch is not None and not isinstance(batch, Batch):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"batch must be a Batch(size, wait), not {batch!r}")
        self.batch = batch
        self.settings = TaskSettings(
            name=self.name,
            aliases=(),
            queue=self.address,
            timeout=timeout_option(options.get("timeout", app.timeout or None)),
            result_ttl=0.0,
            expires=0.0,
            max_crashes=whole(options.get("max_crashes", app.max_crashes), "max_crashes", minimum=0),
            retry=retry_option(options.get("retry", app.retry), app.retry),
            max_payload_bytes=payload_option(options.get("max_payload_bytes", app.max_payload_bytes)),
        )
        self.arguments = EventArguments(codec, takes_delivery(fn, self.name))
        self.returns = ResultCodec(no_result, task=self.name)

    def __repr__(self) -> str:
        return f"<subscription of group {self.group!r} to topic {self.topic!r}>"


class EventArguments:
    """Calls a handler with an event, and its delivery if it takes one."""

    def __init__(self, codec: EventCodec, delivery: bool) -> None:
        self._codec = codec
        self._delivery = delivery

    def decode(self, payload: Payload, /) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Called where the job is the current one."""
        event = self._codec.decode(payload)
        return ((event, Delivery(current_job())) if self._delivery else (event,)), {}

    def event(self, payload: Payload) -> Any:
        """One event of a batch."""
        return self._codec.decode(payload)

    def together(self, jobs: list[CurrentJob], events: list[Any]) -> tuple[Any, ...]:
        """What a handler of batches is called with."""
        return (events, [Delivery(job) for job in jobs]) if self._delivery else (events,)


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
