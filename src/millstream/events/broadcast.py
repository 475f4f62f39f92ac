"""A broadcast: a function that is given a topic's events in every worker process, without a group."""

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
    """What ``topic.broadcast(…)`` takes; what is left out is as the app says."""

    concurrency: int
    """How many events a worker process handles at once. 1 if left out: then they are handled in order."""
    timeout: Seconds | None
    """None: no timeout."""
    max_payload_bytes: int | None
    """None: no cap."""


class Broadcast:
    """What a worker runs with every event of a topic. ``name`` is for logs: ``topic//function``."""

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
            max_crashes=1,  # nobody counts them
            retry=RetryPolicy(0),
            max_payload_bytes=payload_option(options.get("max_payload_bytes", app.max_payload_bytes)),
        )
        self.arguments = EventArguments(codec, Delivery if takes_delivery(fn, self.name) else None)
        self.foreign = codec.foreign
        self.returns = ResultCodec(no_result, task=self.name)

    def __repr__(self) -> str:
        return f"<broadcast of topic {self.topic!r} to {self.name.removeprefix(self.address)[1:]}>"
