"""What travels: a job as it is stored, and its wire form. No I/O, no user types: arguments stay raw here."""

from __future__ import annotations

import msgspec

from millstream.model.policy import RetryRule


class CallOverrides(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one call changed of its task's declaration; None means: as the task says."""

    timeout: float | None = None
    """Seconds; 0 means no timeout."""
    retry: int | RetryRule | None = None
    """A count alone, or a whole policy."""
    result_ttl: float | None = None


class ErrorNote(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An exception as text: what is left of it once it has left its process."""

    type: str
    message: str
    traceback: str = ""


FAILURES_KEPT = 10
"""The most failed attempts that travel with a message and stand in its dead letter."""


class Attempt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One failed attempt of a job or event. A worker that died while it held the job counts as one."""

    at: float
    """When it failed, or when the crash was noticed: epoch seconds by the worker's clock."""
    error_type: str
    """The name of the exception's type; ``WorkerCrashed`` for a crash."""
    error: str
    """The exception's text, shortened."""
    worker: str = ""
    """The id of the worker that ran it; empty for a crash, because the next worker does not know the name of the dead one."""
    number: int = 0
    """The attempt's number, 1 for the first. A crash does not use up an attempt: the next one has the same number."""


class EventFields(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What travels with a job or an event beside its arguments or value. Of a job: only headers."""

    headers: dict[str, str] = {}
    key: str = ""
    kind: str = ""
    source: str = ""
    correlation_id: str = ""
    traceparent: str = ""
    """W3C trace context."""
    content_type: str = ""
    version: str = ""


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One job or event as it travels. Its wire form is a positional msgpack array; new fields are appended with defaults."""

    id: str
    task: str
    """Of an event: its topic."""
    args: msgspec.Raw
    """msgpack of the arguments, made and read by the task's ArgumentCodec, or of the event, by its topic's EventCodec."""
    enqueued_ms: int
    """The enqueuing machine's wall clock, shown to people; no decision rests on it."""
    attempt: int = 1
    given_id: bool = False
    """The caller chose the id, so it stays remembered for ``id_ttl`` after the job ended."""
    overrides: CallOverrides | None = None
    last_error: ErrorNote | None = None
    unknown_since_ms: int = 0
    """Server time at which a worker first met this message without knowing its task; 0: never."""
    event: EventFields | None = None
    """Headers, and what else an event says beside its value."""
    first_received_ms: int = 0
    """Of one that is tried again: when a worker first received it, by its wall clock."""
    failures: tuple[Attempt, ...] = ()
    """The last ``FAILURES_KEPT`` failed attempts, oldest first. A replay starts without any."""


encode_message = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Message).decode
"""Raises msgspec.MsgspecError or UnicodeDecodeError on anything that is not a Message."""
