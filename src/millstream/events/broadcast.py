"""Broadcasts: handlers that receive every event of a topic in every worker process, without a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from millstream.codec import EventCodec, ResultCodec
from millstream.events.batch import Batch
from millstream.events.delivery import Delivery
from millstream.events.subscription import EventArguments, no_result, takes_delivery
from millstream.model.address import Address
from millstream.model.handler import Letters, is_coroutine
from millstream.model.policy import RetryPolicy
from millstream.model.settings import AppSettings, TaskSettings, integer
from millstream.model.types import Seconds
from millstream.options import payload_option, refuse_unknown, timeout_option


class BroadcastOptions(TypedDict, total=False):
    """Options of ``topic.broadcast(…)``. Options that are left out use the app's settings."""

    concurrency: int
    """Number of events that a worker process handles at the same time. The default, 1, handles them in order."""
    timeout: Seconds | None
    """Seconds that the handler may run for one event. ``None`` means no limit."""
    max_payload_bytes: int | None
    """Maximum size of an encoded event. ``None`` means no limit."""


class Broadcast:
    """A broadcast handler of a topic. Its ``name`` in logs is ``topic//function``."""

    batch: Batch | None = None
    ack = "on_success"
    keep_expired = False
    letters: Letters = ""

    def __init__(
        self, fn: Callable[..., Any], topic: str, codec: EventCodec, options: BroadcastOptions, app: AppSettings
    ) -> None:
        refuse_unknown(options, BroadcastOptions.__annotations__, "broadcast")
        self.topic = topic
        self.address = Address.of_topic(topic)
        self.name = f"{self.address}/{getattr(fn, '__name__', type(fn).__name__)}"
        self.fn = fn
        self.is_async = is_coroutine(fn)
        self.concurrency = integer(options.get("concurrency", 1), "concurrency", minimum=1)
        self.settings = TaskSettings(
            name=self.name,
            aliases=(),
            queue=self.address,
            timeout=timeout_option(options.get("timeout", app.timeout or None)),
            result_ttl=0.0,
            expires=0.0,
            max_crashes=1,  # unused: broadcasts have no deliveries to count crashes for
            retry=RetryPolicy(0),
            max_payload_bytes=payload_option(options.get("max_payload_bytes", app.max_payload_bytes)),
        )
        self.arguments = EventArguments(codec, Delivery if takes_delivery(fn, self.name) else None)
        self.foreign = codec.foreign
        self.returns = ResultCodec(no_result, task=self.name)

    def __repr__(self) -> str:
        return f"<broadcast of topic {self.topic!r} to {self.name.removeprefix(self.address)[1:]}>"
