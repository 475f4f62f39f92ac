"""What a failed delivery becomes: another attempt, or a dead letter. Pure: values in, an Outcome out."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from millstream.broker.contract import entry_name
from millstream.codec import InvalidArguments, InvalidResult
from millstream.errors import Reject, Retry, Snooze
from millstream.message import ErrorNote, Message, encode_message
from millstream.outcome import Ending, Kind, Letter, Outcome, encode_ending
from millstream.policy import RetryPolicy
from millstream.types import DeadReason

_OURS = str(Path(__file__).parent)

TRACEBACK_LIMIT = 16_384
"""Characters of traceback kept in a dead letter: its end, where the error is."""

NOTE_TRACEBACK_LIMIT = 2_048
"""Characters of traceback that travel with a message to its next attempt."""


def note(error: BaseException, limit: int = TRACEBACK_LIMIT) -> ErrorNote:
    """An exception as text, its traceback beginning in the user's code."""
    text = "".join(traceback.format_exception(type(error), error, users_part(error.__traceback__)))
    return ErrorNote(type(error).__name__, describe(error), _encodable(text[-limit:]))


def describe(error: BaseException) -> str:
    """Its message; an exception whose own ``__str__`` fails still gets one."""
    try:
        return _encodable(str(error))
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


def retry(ref: bytes, message: Message, delay: float, expires_ms: int, **changes: Any) -> Outcome:
    """The message again after ``delay`` seconds, some of its fields changed."""
    body = encode_message(msgspec.structs.replace(message, **changes))
    return Outcome(Kind.RETRY, ref, message.id, body=body, delay=delay, expires_ms=expires_ms)


def dead(ref: bytes, message: Message, reason: DeadReason, error: ErrorNote, crashes: int, result_ttl: float) -> Outcome:
    """A dead letter, ready to be replayed from its first attempt."""
    letter = Letter(reason, error, message.attempt, crashes, message.enqueued_ms)
    return Outcome(
        Kind.DEAD,
        ref,
        message.id,
        result=encode_ending(Ending("dead", letter=letter)) if result_ttl > 0 else None,
        result_ttl=result_ttl,
        given_id=message.given_id,
        body=encode_message(
            msgspec.structs.replace(message, attempt=1, last_error=None, unknown_since_ms=0, first_received_ms=0)
        ),
        task=message.task,
        letter=letter,
    )


def interrupted(ref: bytes, message: Message, crashes: int, result_ttl: float) -> Outcome:
    """A shutdown ended a job that may start only once, and it had started."""
    why = ErrorNote("Shutdown", "the worker shut down while this at-most-once job was running")
    return dead(ref, message, "crashed", why, crashes + 1, result_ttl)


def malformed(ref: bytes, body: bytes, why: str, crashes: int) -> Outcome:
    """A dead letter for bytes that are no message; they are kept as they were."""
    letter = Letter("malformed", ErrorNote("MalformedEntry", why), 0, crashes, 0)
    return Outcome(Kind.DEAD, ref, f"malformed-{entry_name(ref)}", body=body, letter=letter)


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
    random: Callable[[], float],
) -> Outcome:
    """What an attempt that ended with ``error`` becomes. ``received_ms``: when it began, by this machine's wall clock."""
    first = message.first_received_ms or received_ms
    if isinstance(error, Snooze):
        return retry(ref, message, error.delay, expires_ms, first_received_ms=first)
    reason: DeadReason
    if isinstance(error, Reject):
        reason = "rejected"
    elif isinstance(error, InvalidArguments):
        reason = "invalid_arguments"
    elif isinstance(error, InvalidResult):
        reason = "invalid_result"
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
                last_error=note(error, NOTE_TRACEBACK_LIMIT),
                first_received_ms=first,
            )
        reason = "timeout" if timed_out else "exhausted"
    else:
        reason = "rejected"
    return dead(ref, message, reason, note(error), crashes, result_ttl)
