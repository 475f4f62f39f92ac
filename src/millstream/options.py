"""Options of tasks and calls, and their checks. Invalid options raise ``UsageError`` at the declaration or call."""

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
"""Maximum length in characters. A current W3C ``traceparent`` has 55."""


class TaskOptions(TypedDict, total=False):
    """Options of ``@app.task(...)``. Options that are left out use the app's settings. Durations are seconds or timedeltas."""

    name: str
    """Unique name of the task. By default the function's name."""
    aliases: Sequence[str]
    """Former names of the task. Jobs enqueued under them still run."""
    queue: str
    """Queue of the task's jobs. ``"default"`` by default."""
    timeout: Seconds | None
    """Seconds that one attempt may run. ``None`` means no limit."""
    result_ttl: Seconds | None
    """Seconds for which a result is stored. 0 or ``None`` stores none."""
    expires: Seconds | None
    """Seconds after enqueueing until the job is no longer started. ``None`` (default) means never."""
    max_crashes: int
    """Number of crashes that a job survives. A crash means that a worker died while running the job. 0 means at most once."""
    retry: RetryPolicy | int
    """Retry policy. A number changes only ``max_retries`` of the app's policy."""
    max_payload_bytes: int | None
    """Maximum size of the encoded arguments. ``None`` means no limit."""
    id_ttl: Seconds | None
    """Seconds for which an id chosen by the caller stays reserved after its job has ended. 0 frees the id as soon as the job is
    done, cancelled or expired; a dead job keeps its id as long as its dead letter exists. ``None`` uses the app's setting."""
    order_by: KeyFunction | None
    """Function that takes the task's parameters by name and returns an ordering key. Jobs with the same key run one at a time,
    in the order in which they were enqueued."""
    on_failure: OnFailure
    """What happens when an ordered job is dead. ``"skip"`` (default) continues with the next job of its key. ``"stop"`` makes
    the following jobs of the key dead letters, until the key is cleared. Applies to the whole queue."""
    max_pending_per_key: int
    """Maximum number of jobs that wait behind a retry of the same key; 1000 by default. Further jobs of the key are dead with
    the reason ``pending_full``. Applies to the whole queue."""


class CallOptions(TypedDict, total=False):
    """Options of ``task.options(...)``. Options that are left out use the task's settings. Durations are seconds or
    timedeltas."""

    delay: Seconds
    """Run the job at the earliest after this many seconds."""
    at: datetime
    """Run the job at the earliest at this time. The datetime needs a time zone."""
    id: str
    """Id of the job, 1 to 200 characters. A second enqueue with the same id returns the first job."""
    queue: str
    """Queue of the job. The app must declare it."""
    retry: RetryPolicy | int
    """Retry policy. A number changes only ``max_retries`` of the task's policy."""
    timeout: Seconds | None
    """Seconds that one attempt may run. ``None`` means no limit."""
    expires: Seconds | datetime | None
    """Seconds after enqueueing, or the time, after which the job is no longer started. ``None`` means never."""
    result_ttl: Seconds | None
    """Seconds for which the result is stored. 0 or ``None`` stores none."""
    id_ttl: Seconds | None
    """Seconds for which ``id`` stays reserved after the job has ended, as for ``TaskOptions.id_ttl``."""
    headers: Mapping[str, str]
    """Text that travels with the job through retries and replays. Handlers read it from ``current_job().headers``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """The checked options of a call, in seconds and epoch seconds. 0 means not set."""

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
    """Check a task's options and return its settings, with the app's defaults. ``UsageError`` names the option and its
    value."""
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
    """Check a call's options and return its settings. ``UsageError`` names the option and its value. ``now``: epoch seconds."""
    refuse_unknown(options, CallOptions.__annotations__, "options")
    queue = task.queue
    if "queue" in options:
        queue = checked_name(options["queue"], "queue")
        if queue not in queues:
            near = _near(queue, queues)
            raise UsageError(f"queue={queue!r} is not declared in this app: {near}declare it with app.queue({queue!r})")
    if "delay" in options and "at" in options:
        raise UsageError(f"delay={options['delay']!r} and at={options['at']!r} exclude each other: use one of them")
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
        raise UsageError(
            f"expires={said!r}: the job is due in {due - now:g} s and would have expired by then, so it would never run"
        )
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
    """Check headers and named fields and return them as stored with a job or an event; ``None`` if all are empty.

    Raises:
        UsageError: A name or value is not text.
        PayloadTooLarge: Together they exceed ``most`` bytes.
    """
    if headers is not None and not isinstance(headers, Mapping):
        raise UsageError(f"headers must be a mapping of text to text, not {headers!r}")
    own = _pairs(headers or {})
    for key, value in own.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"names and values of headers must be text, not {{{key!r}: {value!r}}}: convert them with str(…)")
    for name, value in said.items():
        if not isinstance(value, str):
            raise UsageError(f"{name} must be text, not {value!r}")
    if not own and not any(said.values()):
        return None
    if len(said.get("traceparent", "")) > TRACEPARENT_MOST:
        raise UsageError(f"traceparent may have at most {TRACEPARENT_MOST} characters, not {len(said['traceparent']):,}")
    fields = EventFields(own, **said)
    try:
        size = len(msgspec.msgpack.encode(fields))
    except UnicodeEncodeError as error:
        raise UsageError(f"headers and fields must be valid UTF-8 text: {error}") from error
    if most is not None and size > most:
        raise PayloadTooLarge(f"headers and fields of {what} have {size:,} bytes, more than max_payload_bytes={most:,}")
    return fields


def _pairs(mapping: Any) -> dict[Any, Any]:
    return dict(mapping)


def job_id(value: Any) -> str:
    """Check and return an id chosen by the caller."""
    if not isinstance(value, str) or not 1 <= len(value) <= 200:
        raise UsageError(f"id must be text of 1 to 200 characters, not {value!r}")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise UsageError(f"id may not contain control characters: {value!r}")
    return value


def timeout_option(value: Any) -> float:
    """Return a timeout in seconds. ``None`` means no limit and becomes 0; 0 itself is refused."""
    return 0.0 if value is None else seconds(value, "timeout", above=True)


def result_ttl_option(value: Any) -> float:
    """Return the time in seconds for which a result is stored. ``None`` becomes 0: no result is stored."""
    return 0.0 if value is None else seconds(value, "result_ttl")


def payload_option(value: Any) -> int | None:
    """Return the maximum payload size in bytes. ``None`` means no limit."""
    return None if value is None else integer(value, "max_payload_bytes", minimum=1)


def retry_option(value: Any, base: RetryPolicy) -> RetryPolicy:
    """Return the policy, or ``base`` with another number of retries."""
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
    """Raise ``UsageError`` if one of the options is not an option of ``where()``."""
    for option, value in options.items():
        if option not in known:
            raise UsageError(
                f"{where}() has no option {option}={value!r}: {_near(option, known)}the options are {', '.join(known)}"
            )


def _near(word: str, known: Iterable[str]) -> str:
    import difflib  # only needed for an error message

    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def log_position(to: datetime | str, what: str) -> LogPosition:
    """Check and return a position in a topic's log: ``"beginning"``, ``"new"`` (its end), a datetime, or an entry id.

    A datetime becomes epoch seconds. It needs a time zone.
    """
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
