"""Handlers of dead letters: ``@topic.on_dead`` and the ``DeadEvent`` that it receives."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Generic, Protocol, TypedDict, TypeVar

import msgspec

from millstream.client import Clients, sync_version
from millstream.codec import EventCodec, ResultCodec
from millstream.codec.encoder import Payload
from millstream.errors import MalformedEvent, UsageError
from millstream.jobs.dead import DeadJob, DeadLetters
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter, decode_letter
from millstream.model.handler import Letters, is_coroutine
from millstream.model.invalid import InvalidArguments
from millstream.model.message import EventFields, Message, decode_message
from millstream.model.policy import RetryPolicy
from millstream.model.settings import AppSettings, TaskSettings, integer
from millstream.model.settings import name as checked_name
from millstream.model.types import Seconds
from millstream.options import refuse_unknown, retry_option, timeout_option

E = TypeVar("E")
T = TypeVar("T")

HandlerReturn = Awaitable[None] | None


class DeadOptions(TypedDict, total=False):
    """Options of ``topic.on_dead(group, …)``. Options that are left out use the app's settings."""

    concurrency: int | None
    """Number of dead letters that one worker process handles at the same time. ``None`` (default) uses the worker's limit."""
    retry: RetryPolicy | int
    """Retry policy if the handler raises or times out. A number changes only ``max_retries`` of the app's policy."""
    timeout: Seconds | None
    """Seconds that the handler may run for one dead letter. ``None`` means no limit."""


@dataclass(frozen=True, kw_only=True)
class DeadEvent(DeadJob, Generic[T]):
    """A dead letter of a group, passed to ``@topic.on_dead`` handlers: the event, its fields, and why it is dead."""

    topic: str
    """The name of the topic."""
    group: str
    """The name of the group in which the event died."""
    payload: bytes
    """The encoded event, as the topic's codec wrote it. If the entry was not a Millstream event: the original bytes."""
    headers: Mapping[str, str]
    """The headers that the event was published with."""
    key: str
    """The ``key`` that the event was published with. Not the ordering key; that is ``order_key``."""
    kind: str
    """The ``kind`` that the event was published with."""
    source: str
    """The ``source`` that the event was published with."""
    correlation_id: str
    """The ``correlation_id`` that the event was published with."""
    traceparent: str
    """W3C trace context."""
    content_type: str
    """The ``content_type`` that the event was published with."""
    version: str
    """The ``version`` that the event was published with."""
    _read: Callable[[], T] = field(repr=False, compare=False)
    _letters: DeadLetters = field(repr=False, compare=False)

    @property
    def published_at(self) -> datetime | None:
        """When the event was published, by the publisher's clock. ``None`` if the entry was not a Millstream event."""
        return self.enqueued_at

    @cached_property
    def event(self) -> T:
        """The event, decoded to the topic's type.

        Raises:
            MalformedEvent: The stored bytes do not match the topic's type.
        """
        return self._read()

    async def replay(self) -> bool:
        """Replay the event in its group, under the same id and with all attempts.

        Return ``True`` if it was replayed, ``False`` if it is no longer a dead letter.
        """
        return self.id in await self._letters.replay(self.id)

    replay_sync = sync_version(replay)


class DeadSubscriber(Protocol[E]):
    """The decorator that ``topic.on_dead(...)`` returns. It takes a function with one parameter, a ``DeadEvent``."""

    def __call__(self, fn: Callable[[DeadEvent[E]], HandlerReturn], /) -> Callable[[DeadEvent[E]], HandlerReturn]: ...


class DeadHandler:
    """The handler of a group's dead letters, as a worker runs it."""

    letters: Letters = "handled"
    ack = "on_success"
    batch = None
    keep_expired = False
    foreign = None

    def __init__(
        self,
        fn: Callable[..., Any],
        topic: str,
        group: str,
        codec: EventCodec,
        options: DeadOptions,
        clients: Clients,
        app: AppSettings,
    ) -> None:
        refuse_unknown(options, DeadOptions.__annotations__, "on_dead")
        self.topic = topic
        self.group = checked_name(group, "group")
        self.name = self.address = Address.of_group(topic, group).dead
        _check_function(fn, topic, group)
        self.fn = fn
        self.is_async = is_coroutine(fn)
        concurrency = options.get("concurrency")
        self.concurrency = None if concurrency is None else integer(concurrency, "concurrency", minimum=1)
        timeout = timeout_option(options.get("timeout", app.timeout or None))
        retry = retry_option(options.get("retry", app.retry), app.retry)
        self.settings = letter_settings(self.name, timeout=timeout, max_crashes=max(1, app.max_crashes), retry=retry)
        self.arguments = _DeadEvents(topic, group, codec, clients)
        self.returns = ResultCodec(_nothing, task=self.name)

    def __repr__(self) -> str:
        return f"<handler of the dead letters of group {self.group!r} of topic {self.topic!r}>"


def letter_settings(
    name: str,
    *,
    timeout: float,
    max_crashes: int,
    retry: RetryPolicy = RetryPolicy(0),
) -> TaskSettings:
    """Return settings for handling dead letters: no stored results, no limit on their size."""
    return TaskSettings(
        name=name,
        aliases=(),
        queue=name,
        timeout=timeout,
        result_ttl=0.0,
        expires=0.0,
        max_crashes=max_crashes,
        retry=retry,
        max_payload_bytes=None,
    )


def read_message(letter: DeadLetter) -> Message | None:
    """Return the message of a dead letter, or ``None`` if the entry was not a Millstream message."""
    if letter.reason == "malformed":
        return None
    try:
        return decode_message(letter.body)
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return None


class _DeadEvents:
    """Decodes dead letters into the argument of an ``on_dead`` handler."""

    def __init__(self, topic: str, group: str, codec: EventCodec, clients: Clients) -> None:
        self._topic = topic
        self._group = group
        self._codec = codec
        self._clients = clients

    def decode(self, payload: Payload, /) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            letter = decode_letter(payload)
            job, message = DeadJob.open(letter), read_message(letter)
        except Exception as error:
            raise InvalidArguments(f"the entry is not a Millstream dead letter: {error}") from error
        carried = (message.event if message is not None else None) or EventFields()
        event: DeadEvent[Any] = DeadEvent(
            **{each.name: getattr(job, each.name) for each in fields(DeadJob)},
            topic=self._topic,
            group=self._group,
            payload=letter.body if message is None else self._codec.own_bytes(message.args),
            **msgspec.structs.asdict(carried),
            _read=partial(self._read, job, message),
            _letters=DeadLetters(self._clients, queue=letter.queue),
        )
        return (event,), {}

    def _read(self, job: DeadJob, message: Message | None) -> Any:
        if message is None:
            raise MalformedEvent(f"dead letter {job.id!r} of {job.queue!r} holds no event ({job.reason}): {job.error}")
        try:
            return self._codec.decode(message.args)
        except InvalidArguments as error:
            raise MalformedEvent(f"dead letter {job.id!r} of {job.queue!r}: {error}") from error


def _check_function(fn: Any, topic: str, group: str) -> None:
    what = f"on_dead({group!r}) of topic {topic!r}"
    if not callable(fn):
        raise UsageError(f"{what}: the handler must be a function that takes a dead event, not {fn!r}")
    positional = [
        p
        for p in inspect.signature(fn).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if len(positional) != 1:
        name = getattr(fn, "__qualname__", fn)
        raise UsageError(f"{what}: {name!r} has {len(positional)} required parameters; a handler has one, the dead event")


def _nothing() -> None:
    """The signature for the result codec: the return value of a dead-letter handler is not stored."""
