"""What a declaration and a call may say, and the checks it passes at once."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from millstream.broker.values import BEGINNING, END, LogPosition, OrderRules, parse_entry
from millstream.errors import PayloadTooLarge, UsageError
from millstream.model.message import CallOverrides, EventFields
from millstream.model.ordering import KeyFunction, OnFailure, order_rules
from millstream.model.policy import RetryPolicy, RetryRule, as_policy
from millstream.model.settings import AppSettings, TaskSettings, integer, seconds
from millstream.model.settings import name as checked_name
from millstream.model.types import Seconds

DEFAULT_QUEUE = "default"

TRACEPARENT_MOST = 255
"""Characters; those of today have 55."""


class TaskOptions(TypedDict, total=False):
    """What ``@app.task(...)`` takes; what is left out is as the app says."""

    name: str
    """The function's own name if left out."""
    aliases: Sequence[str]
    """Names it had before: jobs sent under them still run."""
    queue: str
    timeout: Seconds | None
    """None: no timeout."""
    result_ttl: Seconds | None
    """0 or None: no result is kept."""
    expires: Seconds | None
    """From enqueue; None: never."""
    max_crashes: int
    """0: at most once."""
    retry: RetryPolicy | int
    """A count alone changes the count of the app's policy."""
    max_payload_bytes: int | None
    """None: no cap."""
    id_ttl: Seconds | None
    """For how long an id that a caller gave is remembered after its job has ended; 0: it is free as soon as the job is done,
    cancelled or expired, while one that is dead keeps it until it is purged or replayed. None: as the app says."""
    order_by: KeyFunction | None
    """Takes the task's parameters by name and returns a key: jobs of one key run one at a time, in the order in which they were
    enqueued."""
    on_failure: OnFailure
    """When an ordered job is dead: "skip" goes on with the next of its key, "stop" makes dead what follows until the key is
    cleared. Holds for the queue."""
    max_pending_per_key: int
    """While a key waits for a retry: how many may wait behind it before those that come are dead (pending_full). Holds for the
    queue."""


class CallOptions(TypedDict, total=False):
    """What ``task.options(...)`` takes; what is left out is as the task says."""

    delay: Seconds
    at: datetime
    id: str
    queue: str
    retry: RetryPolicy | int
    timeout: Seconds | None
    expires: Seconds | datetime | None
    result_ttl: Seconds | None
    id_ttl: Seconds | None
    headers: Mapping[str, str]
    """Travel with the job, through retries and replays; ``current_job().headers`` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """A call's options, checked. Seconds and epoch seconds; 0: not set."""

    queue: str
    result_ttl: float
    id: str = ""
    delay: float = 0.0
    at: float = 0.0
    expires: float = 0.0
    expires_at: float = 0.0
    overrides: CallOverrides | None = None
    fields: EventFields | None = None
    id_ttl: float | None = None


def task_settings(options: TaskOptions, default_name: str, app: AppSettings) -> TaskSettings:
    """A task's settings, with the app's defaults filled in. UsageError names the option and the value."""
    refuse_unknown(options, TaskOptions.__annotations__, "task")
    return TaskSettings(
        name=checked_name(options.get("name", default_name), "name"),
        aliases=_aliases(options.get("aliases", ())),
        queue=checked_name(options.get("queue", DEFAULT_QUEUE), "queue"),
        timeout=timeout_option(options.get("timeout", app.timeout or None)),
        result_ttl=result_ttl_option(options.get("result_ttl", app.result_ttl)),
        expires=_expires_option(options.get("expires")),
        max_crashes=integer(options.get("max_crashes", app.max_crashes), "max_crashes", minimum=0),
        retry=retry_option(options.get("retry", app.retry), app.retry),
        max_payload_bytes=payload_option(options.get("max_payload_bytes", app.max_payload_bytes)),
        order=order_rules(
            options, None if options.get("order_by") is None else OrderRules(), f"task {options.get('name', default_name)!r}"
        ),
        id_ttl=_id_ttl_option(options.get("id_ttl")),
    )


def call_settings(options: CallOptions, task: TaskSettings, queues: Collection[str], now: float) -> CallSettings:
    """A call's settings. UsageError names the option and the value; ``now`` in epoch seconds."""
    refuse_unknown(options, CallOptions.__annotations__, "options")
    queue = task.queue
    if "queue" in options:
        queue = checked_name(options["queue"], "queue")
        if queue not in queues:
            near = _near(queue, queues)
            raise UsageError(f"queue={queue!r} is no queue that this app declares: {near}app.queue({queue!r}) declares it")
    if "delay" in options and "at" in options:
        raise UsageError(f"delay={options['delay']!r} and at={options['at']!r} both say when: give one")
    delay = seconds(options["delay"], "delay") if "delay" in options else 0.0
    at = _moment(options["at"], "at") if "at" in options else 0.0
    expires, expires_at = task.expires, 0.0
    if "expires" in options:
        value = options["expires"]
        if isinstance(value, datetime):
            expires, expires_at = 0.0, _moment(value, "expires")
        else:
            expires = _expires_option(value)
    due = at or now + delay
    ends = expires_at or (now + expires if expires else 0.0)
    if ends and ends <= due:
        said = options.get("expires", task.expires)
        raise UsageError(f"expires={said!r} is not after the job is due, in {due - now:g} s: it could never run")
    overrides: CallOverrides | None = None
    if "timeout" in options or "retry" in options or "result_ttl" in options:
        overrides = CallOverrides(
            timeout=timeout_option(options["timeout"]) if "timeout" in options else None,
            retry=_retry_override(options["retry"], task.retry) if "retry" in options else None,
            result_ttl=result_ttl_option(options["result_ttl"]) if "result_ttl" in options else None,
        )
    return CallSettings(
        queue=queue,
        result_ttl=result_ttl_option(options["result_ttl"]) if "result_ttl" in options else task.result_ttl,
        id=job_id(options["id"]) if "id" in options else "",
        delay=delay,
        at=at,
        expires=expires,
        expires_at=expires_at,
        overrides=overrides,
        fields=fields_option(options.get("headers"), {}, task.max_payload_bytes, f"a job of task {task.name!r}"),
        id_ttl=_id_ttl_option(options["id_ttl"]) if "id_ttl" in options else task.id_ttl,
    )


def fields_option(headers: Any, said: Mapping[str, Any], most: int | None, what: str) -> EventFields | None:
    """Headers, and named fields, as they travel with a job or an event; None if there is nothing.

    UsageError if they are not text, PayloadTooLarge if they take more than ``most`` bytes.
    """
    if headers is not None and not isinstance(headers, Mapping):
        raise UsageError(f"headers must be a mapping of text to text, not {headers!r}")
    own = _pairs(headers or {})
    for key, value in own.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"names and values of headers must be text, not {key!r}: {value!r}: use str(…)")
    for name, value in said.items():
        if not isinstance(value, str):
            raise UsageError(f"{name} must be text, not {value!r}")
    if not own and not any(said.values()):
        return None
    if len(said.get("traceparent", "")) > TRACEPARENT_MOST:
        raise UsageError(f"traceparent has at most {TRACEPARENT_MOST} characters, not {len(said['traceparent']):,}")
    fields = EventFields(own, **said)
    try:
        size = len(msgspec.msgpack.encode(fields))
    except UnicodeEncodeError as error:
        raise UsageError(f"headers and fields travel as UTF-8, and this cannot: {error}") from error
    if most is not None and size > most:
        raise PayloadTooLarge(f"headers and fields of {what} take {size:,} bytes, and max_payload_bytes is {most:,}")
    return fields


def _pairs(mapping: Any) -> dict[Any, Any]:
    return dict(mapping)


def job_id(value: Any) -> str:
    """An id a caller may give."""
    if not isinstance(value, str) or not 1 <= len(value) <= 200:
        raise UsageError(f"id must be text of 1 to 200 characters, not {value!r}")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise UsageError(f"id may not contain control characters: {value!r}")
    return value


def timeout_option(value: Any) -> float:
    """Seconds above zero; None: no timeout, which is 0 within."""
    return 0.0 if value is None else seconds(value, "timeout", above=True)


def result_ttl_option(value: Any) -> float:
    """Seconds; 0 or None keeps no result."""
    return 0.0 if value is None else seconds(value, "result_ttl")


def payload_option(value: Any) -> int | None:
    """Bytes; None: no cap."""
    return None if value is None else integer(value, "max_payload_bytes", minimum=1)


def retry_option(value: Any, base: RetryPolicy) -> RetryPolicy:
    """A policy, or the count of another one."""
    if isinstance(value, int):
        integer(value, "retry", minimum=0)
    return as_policy(value, base)


def _retry_override(value: Any, base: RetryPolicy) -> int | RetryRule:
    policy = retry_option(value, base)
    return policy.max_retries if isinstance(value, int) else policy.to_rule()


def _id_ttl_option(value: Any) -> float | None:
    return None if value is None else seconds(value, "id_ttl")


def _expires_option(value: Any) -> float:
    return 0.0 if value is None else seconds(value, "expires", above=True)


def _moment(value: Any, option: str) -> float:
    if not isinstance(value, datetime):
        raise UsageError(f"{option} must be a datetime, not {value!r}")
    if value.utcoffset() is None:
        raise UsageError(f"{option}={value!r} has no time zone: use datetime.now(UTC) + … or .astimezone()")
    return value.timestamp()


def _aliases(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"aliases must be a sequence of names, not {value!r}")
    return tuple(checked_name(alias, "aliases") for alias in value)


def refuse_unknown(options: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """UsageError if ``where()`` was given an option that it does not have."""
    for option, value in options.items():
        if option not in known:
            raise UsageError(f"{where}() has no option {option}={value!r}: {_near(option, known)}it takes {', '.join(known)}")


def _near(word: str, known: Iterable[str]) -> str:
    import difflib  # which only a mistake needs

    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def log_position(to: datetime | str, what: str) -> LogPosition:
    """A position in a topic's log: "beginning", "new" for its end, a moment, or after an entry by its id."""
    if isinstance(to, datetime):
        if to.utcoffset() is None:
            raise UsageError(f"{what}: {to!r} has no time zone: use datetime.now(UTC) - … or .astimezone()")
        return to.timestamp()
    try:
        if to not in (BEGINNING, END):
            parse_entry(to)
    except (ValueError, TypeError):
        raise UsageError(f"{what} must be {BEGINNING!r}, {END!r}, a datetime or an entry's id, not {to!r}") from None
    return to
