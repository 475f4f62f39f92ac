"""The outcome of a failed delivery: another attempt or a dead letter. Pure functions: values in, an Outcome out."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from millstream.errors import Reject, Retry, Snooze
from millstream.model.dead_letter import DeadLetter
from millstream.model.ending import encode_dead
from millstream.model.invalid import InvalidArguments, InvalidResult
from millstream.model.message import FAILURES_KEPT, Attempt, ErrorNote, Message, encode_message
from millstream.model.outcome import Kind, Outcome
from millstream.model.policy import RetryPolicy
from millstream.model.types import DeadReason

_OURS = str(Path(__file__).parent)

TEXT_LIMIT = 4_096
"""Maximum characters of an exception's text in the log and in a dead letter."""

TRACEBACK_LIMIT = 16_384
"""Maximum characters of the traceback in a dead letter. The end is kept, because it shows the error."""

NOTE_TEXT_LIMIT = 1_024
"""Maximum characters of an exception's text that is stored with a message for its next attempt."""

NOTE_TRACEBACK_LIMIT = 2_048
"""Maximum characters of the traceback that is stored with a message for its next attempt."""

FAILURE_TEXT_LIMIT = 300
"""Maximum characters of the text of each failed attempt in a message and its dead letter."""

TYPE_LIMIT = 200
"""Maximum characters of the name of an exception's type."""


def note(error: BaseException, text_limit: int = TEXT_LIMIT, traceback_limit: int = TRACEBACK_LIMIT) -> ErrorNote:
    """Return an exception as text, with a traceback that starts in the user's code."""
    trace = "".join(traceback.format_exception(type(error), error, users_part(error.__traceback__)))
    text = _text(error)
    if len(text) > text_limit:  # otherwise the text would displace the frames
        trace = trace.replace(text, shortened(text, text_limit))
    return ErrorNote(type_name(error), _encodable(shortened(text, text_limit)), _encodable(trace[-traceback_limit:]))


def describe(error: BaseException) -> str:
    """Return the text of an exception, shortened. An exception whose ``__str__`` raises gets a substitute text."""
    return _encodable(shortened(_text(error), TEXT_LIMIT))


def type_name(error: BaseException) -> str:
    """Return the name of an exception's type, shortened."""
    return _encodable(shortened(type(error).__name__, TYPE_LIMIT))


def shortened(text: str, limit: int) -> str:
    """Return the text, cut to ``limit`` characters, with a note of how many are missing."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"(its __str__ raised {type(failure).__name__})"


def _encodable(text: str) -> str:
    """Return text that can be encoded as UTF-8. File names that are not UTF-8 contain lone surrogates, which cannot."""
    return text.encode("utf-8", "backslashreplace").decode()


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without Millstream's own frames, unless it has no others."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_OURS):
        part = part.tb_next
    return part or trace


def policy_for(message: Message, declared: RetryPolicy) -> RetryPolicy:
    """Return the retry policy of this message: its own, or its task's, possibly with its own ``max_retries``."""
    override = None if message.overrides is None else message.overrides.retry
    if override is None:
        return declared
    if isinstance(override, int):
        return declared.replace(max_retries=override)
    return RetryPolicy.from_rule(override)


def with_failure(message: Message, error_type: str, text: str, at: float, worker: str) -> Message:
    """Return the message with one more failed attempt. Beyond FAILURES_KEPT, the oldest attempt is dropped."""
    failure = Attempt(at, error_type, shortened(text, FAILURE_TEXT_LIMIT), worker, message.attempt)
    return msgspec.structs.replace(message, failures=(*message.failures, failure)[-FAILURES_KEPT:])


def retry(ref: bytes, message: Message, delay: float, expires_ms: int, **changes: Any) -> Outcome:
    """Return an outcome that runs the message again after ``delay`` seconds, with some of its fields changed."""
    body = encode_message(msgspec.structs.replace(message, **changes))
    return Outcome(Kind.RETRY, ref, message.id, body=body, delay=delay, expires_ms=expires_ms)


def dead(ref: bytes, message: Message, reason: DeadReason, error: ErrorNote, crashes: int, result_ttl: float) -> Outcome:
    """Return an outcome with a dead letter. A replay starts again at the first attempt."""
    letter = DeadLetter(reason, error, message.attempt, crashes, message.enqueued_ms)
    ending = encode_dead(letter) if result_ttl > 0 else None
    return Outcome(
        Kind.DEAD,
        ref,
        message.id,
        result=ending,
        result_ttl=result_ttl,
        given_id=message.given_id,
        body=encode_message(
            msgspec.structs.replace(message, attempt=1, last_error=None, unknown_since_ms=0, first_received_ms=0, failures=())
        ),
        task=message.task,
        letter=msgspec.structs.replace(letter, failures=message.failures),
    )


def interrupted(ref: bytes, message: Message, crashes: int, result_ttl: float, *, at: float, worker: str) -> Outcome:
    """Return the outcome of a job that may start only once, had started, and was interrupted by a shutdown."""
    why = ErrorNote("Shutdown", "the worker shut down while this at-most-once job was running")
    failed = with_failure(message, why.type, why.message, at, worker)
    return dead(ref, failed, "crashed", why, crashes + 1, result_ttl)


def malformed(ref: bytes, name: str, body: bytes, why: str, crashes: int) -> Outcome:
    """Return an outcome with a dead letter for bytes that are not a message. The bytes are kept unchanged."""
    letter = DeadLetter("malformed", ErrorNote("MalformedEntry", why), 0, crashes, 0)
    return Outcome(Kind.DEAD, ref, f"malformed-{name}", body=body, letter=letter)


def judge(
    ref: bytes,
    message: Message,
    error: BaseException,
    *,
    policy: RetryPolicy,
    timed_out: bool,
    crashes: int,
    expires_ms: int,
    result_ttl: float,
    received_ms: int,
    failed_at: float,
    worker: str,
    random: Callable[[], float],
) -> Outcome:
    """Return the outcome of an attempt that ended with ``error``.

    ``received_ms`` is the attempt's start and ``failed_at`` its end, by this machine's wall clock.
    """
    first = message.first_received_ms or received_ms
    if isinstance(error, Snooze):
        return retry(ref, message, error.delay, expires_ms, first_received_ms=first, unknown_since_ms=0)
    message = with_failure(message, type_name(error), describe(error), failed_at, worker)
    reason: DeadReason
    if isinstance(error, Reject):
        reason = "rejected"
    elif isinstance(error, InvalidArguments):
        reason = "invalid_arguments"
    elif isinstance(error, InvalidResult):
        reason = "invalid_result"
    elif timed_out and not policy.retry_timeouts:
        reason = "timeout"
    # SystemExit, KeyboardInterrupt and an unexpected CancelledError count as failed attempts.
    elif timed_out or not isinstance(error, Exception) or isinstance(error, asyncio.CancelledError) or policy.retries(error):
        if message.attempt <= policy.max_retries:
            delay = (
                error.delay if isinstance(error, Retry) and error.delay is not None else policy.wait(message.attempt, random)
            )
            return retry(
                ref,
                message,
                delay,
                expires_ms,
                attempt=message.attempt + 1,
                last_error=note(error, NOTE_TEXT_LIMIT, NOTE_TRACEBACK_LIMIT),
                first_received_ms=first,
                unknown_since_ms=0,  # it ran, so a worker knows its task
            )
        reason = "timeout" if timed_out else "exhausted"
    else:
        reason = "rejected"
    return dead(ref, message, reason, note(error), crashes, result_ttl)
