"""What a failed delivery becomes: another attempt, or a dead letter. Pure: values in, an Outcome out."""

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
"""Characters of an exception's text in the log and in a dead letter."""

TRACEBACK_LIMIT = 16_384
"""Characters of traceback kept in a dead letter: its end, where the error is."""

NOTE_TEXT_LIMIT = 1_024
"""Characters of an exception's text that travel with a message to its next attempt."""

NOTE_TRACEBACK_LIMIT = 2_048
"""Characters of traceback that travel with a message to its next attempt."""

FAILURE_TEXT_LIMIT = 300
"""Characters of the text of each failed attempt that a message and its dead letter list."""

TYPE_LIMIT = 200
"""Characters of the name of an exception's type."""


def note(error: BaseException, text_limit: int = TEXT_LIMIT, traceback_limit: int = TRACEBACK_LIMIT) -> ErrorNote:
    """An exception as text, its traceback beginning in the user's code."""
    trace = "".join(traceback.format_exception(type(error), error, users_part(error.__traceback__)))
    text = _text(error)
    if len(text) > text_limit:  # else its text would take the place of the frames
        trace = trace.replace(text, shortened(text, text_limit))
    return ErrorNote(type_name(error), _encodable(shortened(text, text_limit)), _encodable(trace[-traceback_limit:]))


def describe(error: BaseException) -> str:
    """The text of an exception, shortened; an exception whose own ``__str__`` fails still has one."""
    return _encodable(shortened(_text(error), TEXT_LIMIT))


def type_name(error: BaseException) -> str:
    """The name of an exception's type, shortened."""
    return _encodable(shortened(type(error).__name__, TYPE_LIMIT))


def shortened(text: str, limit: int) -> str:
    """The beginning of a text that is longer than ``limit`` characters, with a note of what is missing."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"(its __str__ raised {type(failure).__name__})"


def _encodable(text: str) -> str:
    """Text that can travel: file names that are not UTF-8 come as lone surrogates, which cannot."""
    return text.encode("utf-8", "backslashreplace").decode()


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that are ours, unless it has no others."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_OURS):
        part = part.tb_next
    return part or trace


def policy_for(message: Message, declared: RetryPolicy) -> RetryPolicy:
    """The policy of this call: its own, or its task's, perhaps with another count."""
    override = None if message.overrides is None else message.overrides.retry
    if override is None:
        return declared
    if isinstance(override, int):
        return declared.replace(max_retries=override)
    return RetryPolicy.from_rule(override)


def with_failure(message: Message, error_type: str, text: str, at: float, worker: str) -> Message:
    """The message with one more failed attempt; the oldest is dropped if there are too many."""
    failure = Attempt(at, error_type, shortened(text, FAILURE_TEXT_LIMIT), worker, message.attempt)
    return msgspec.structs.replace(message, failures=(*message.failures, failure)[-FAILURES_KEPT:])


def retry(ref: bytes, message: Message, delay: float, expires_ms: int, **changes: Any) -> Outcome:
    """The message again after ``delay`` seconds, some of its fields changed."""
    body = encode_message(msgspec.structs.replace(message, **changes))
    return Outcome(Kind.RETRY, ref, message.id, body=body, delay=delay, expires_ms=expires_ms)


def dead(ref: bytes, message: Message, reason: DeadReason, error: ErrorNote, crashes: int, result_ttl: float) -> Outcome:
    """A dead letter, ready to be replayed from its first attempt."""
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
    """A shutdown ended a job that may start only once, and it had started."""
    why = ErrorNote("Shutdown", "the worker shut down while this at-most-once job was running")
    failed = with_failure(message, why.type, why.message, at, worker)
    return dead(ref, failed, "crashed", why, crashes + 1, result_ttl)


def malformed(ref: bytes, name: str, body: bytes, why: str, crashes: int) -> Outcome:
    """A dead letter for bytes that are no message; they are kept as they were."""
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
    """What an attempt that ended with ``error`` becomes.

    ``received_ms`` is when it began and ``failed_at`` when it ended, by this machine's wall clock.
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
    # SystemExit, KeyboardInterrupt and a stray CancelledError are failed attempts like any other.
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
