"""Messages: jobs and events as they are stored, and their encoding. No I/O and no user types: arguments stay encoded here."""

from __future__ import annotations

import msgspec

from millstream.model.policy import RetryRule


class CallOverrides(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The settings that one call overrides. ``None`` uses the task's setting."""

    timeout: float | None = None
    """Seconds; 0 means no timeout."""
    retry: int | RetryRule | None = None
    """A number of retries, or a whole policy."""
    result_ttl: float | None = None
    """Seconds; 0 stores no result."""


class ErrorNote(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An exception as text, for storing and for other processes."""

    type: str
    message: str
    traceback: str = ""


FAILURES_KEPT = 10
"""Number of failed attempts that are stored with a message and in its dead letter."""


class Attempt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One failed attempt of a job or event. The death of a worker that was running it counts as one."""

    at: float
    """When it failed, or when the crash was noticed: epoch seconds by the worker's clock."""
    error_type: str
    """The name of the exception's class; ``WorkerCrashed`` for a crash."""
    error: str
    """The exception's message, shortened."""
    worker: str = ""
    """The id of the worker that ran it. Empty for a crash, because the next worker does not know the id of the dead worker."""
    number: int = 0
    """The number of the attempt, starting at 1. A crash does not use up a retry: the next attempt has the same number."""


class EventFields(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Headers and other text that travels with an event. A job has only headers."""

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
    """A stored job or event. It is encoded as a positional msgpack array; new fields are added at the end, with defaults."""

    id: str
    task: str
    """The name of the task. For an event: the name of the topic."""
    args: msgspec.Raw
    """The arguments, encoded by the task's ``ArgumentCodec``. For an event: the event, encoded by the topic's
    ``EventCodec``."""
    enqueued_ms: int
    """Wall clock of the enqueuing machine. It is only displayed; no decision depends on it."""
    attempt: int = 1
    given_id: bool = False
    """Whether the caller chose the id, so that it stays reserved for ``id_ttl`` after the job has ended."""
    overrides: CallOverrides | None = None
    last_error: ErrorNote | None = None
    unknown_since_ms: int = 0
    """Server time at which a worker without this task first claimed the message; 0 if that never happened."""
    event: EventFields | None = None
    """Headers and fields; ``None`` if there are none."""
    first_received_ms: int = 0
    """For a retry: when a worker first received the message, by that worker's wall clock."""
    failures: tuple[Attempt, ...] = ()
    """The last ``FAILURES_KEPT`` failed attempts, oldest first. A replay starts without any."""


encode_message = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Message).decode
"""Raises ``msgspec.MsgspecError`` or ``UnicodeDecodeError`` for anything that is not a ``Message``."""
