"""Dead events in the hands of code: what ``@topic.on_dead`` declares, and what its handler is given."""

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
    """What ``topic.on_dead(group, …)`` takes; what is left out is as the app says."""

    concurrency: int | None
    """How many dead letters one worker process handles at once; None: as many as the worker does."""
    retry: RetryPolicy | int
    """What follows when the handler raises or times out. The app's policy by default, as for ``subscribe``."""
    timeout: Seconds | None
    """None: no timeout."""


@dataclass(frozen=True, kw_only=True)
class DeadEvent(DeadJob, Generic[T]):
    """A dead event of a group, as its handler is given it: why it died, what travelled with it, and the event itself."""

    topic: str
    group: str
    payload: bytes
    """The event's own bytes, as the topic's codec made them; of what was no event, whatever was found."""
    headers: Mapping[str, str]
    key: str
    kind: str
    source: str
    correlation_id: str
    traceparent: str
    """W3C trace context."""
    content_type: str
    version: str
    _read: Callable[[], T] = field(repr=False, compare=False)
    _letters: DeadLetters = field(repr=False, compare=False)

    @property
    def published_at(self) -> datetime | None:
        """By the clock of whoever published it; None for what was no event."""
        return self.enqueued_at

    @cached_property
    def event(self) -> T:
        """The event. Raises MalformedEvent if what travelled is not one of the topic's type."""
        return self._read()

    async def replay(self) -> bool:
        """Give it back to its group, under its id, as if it had never been tried. False: it is not in the list any more."""
        return self.id in await self._letters.replay(self.id)

    replay_sync = sync_version(replay)


class DeadSubscriber(Protocol[E]):
    """What ``topic.on_dead(...)`` returns: takes a function of a dead event."""

    def __call__(self, fn: Callable[[DeadEvent[E]], HandlerReturn], /) -> Callable[[DeadEvent[E]], HandlerReturn]: ...


class DeadHandler:
    """What a worker runs for the dead letters of one group."""

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
    """Of whatever is done with dead letters: no results, no bound on their size."""
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
    """The event that died, as it travels; None if it never was one."""
    if letter.reason == "malformed":
        return None
    try:
        return decode_message(letter.body)
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return None


class _DeadEvents:
    """Calls a handler with a dead event."""

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
            raise InvalidArguments(f"it is no dead letter of ours: {error}") from error
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
            raise MalformedEvent(f"dead letter {job.id!r} of {job.queue!r} is no event, but {job.reason}: {job.error}")
        try:
            return self._codec.decode(message.args)
        except InvalidArguments as error:
            raise MalformedEvent(f"dead letter {job.id!r} of {job.queue!r}: {error}") from error


def _check_function(fn: Any, topic: str, group: str) -> None:
    what = f"on_dead({group!r}) of topic {topic!r}"
    if not callable(fn):
        raise UsageError(f"{what}: a handler is a function of a dead event, not {fn!r}")
    positional = [
        p
        for p in inspect.signature(fn).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if len(positional) != 1:
        name = getattr(fn, "__qualname__", fn)
        raise UsageError(f"{what}: {name!r} takes {len(positional)} arguments; a handler takes the dead event and nothing else")


def _nothing() -> None:
    """Handlers of dead events return nothing that is kept."""
