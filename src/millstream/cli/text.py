"""Formatting of values: one line in a table, exact values for a pipe, readable ones for a terminal, and JSON."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any, TypeGuard

import msgspec

from millstream.reporting.printable import line

NOTHING = "-"

_DIGITS = re.compile(r"(\d+)")

_AGES = ((60, 1, "s"), (3600, 60, "min"), (2 * 86_400, 3600, "h"), (float("inf"), 86_400, "d"))


def moment(epoch_seconds: float | None) -> datetime | None:
    """Return epoch seconds as a datetime in UTC."""
    return None if epoch_seconds is None else datetime.fromtimestamp(epoch_seconds, UTC)


def iso(value: datetime) -> str:
    """Return a datetime in RFC 3339 format, in UTC, with milliseconds."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(value: datetime, now: float | None = None) -> str:
    """Return the distance from now in one unit: ``5 min ago`` or ``in 5 min``."""
    seconds = (time.time() if now is None else now) - value.timestamp()
    amount = abs(seconds)
    unit, name = next((unit, name) for limit, unit, name in _AGES if amount < limit)
    length = f"{amount / unit:.0f} {name}"
    return f"{length} ago" if seconds >= 0 else f"in {length}"


def cell(value: Any, *, friendly: bool) -> str:
    """Return a value as one line of text. ``friendly`` uses relative times and thousands separators."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return ago(value) if friendly else iso(value)
    if isinstance(value, int):
        return f"{value:,}" if friendly else str(value)
    if isinstance(value, float):
        return f"{value:g}"
    if _is_list(value):
        return ", ".join(cell(item, friendly=friendly) for item in value) or NOTHING
    if _is_dict(value):
        return ", ".join(f"{name} {cell(item, friendly=friendly)}" for name, item in value.items())
    return line(str(value))


def natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key for natural order: job-2 before job-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(text)]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 job, 2 jobs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def json_text(value: Any) -> str:
    """Return JSON with an indent of two spaces; datetimes as in ``iso``."""
    return msgspec.json.format(msgspec.json.encode(_jsonable(value), enc_hook=_as_text), indent=2).decode()


def _as_text(value: object) -> str:
    return str(value) if isinstance(value, str) else repr(value)


def _jsonable(value: Any) -> Any:
    """Convert datetimes to text, and keys that JSON does not support to their repr."""
    if isinstance(value, datetime):
        return iso(value)
    if _is_dict(value):
        return {key if isinstance(key, str) else repr(key): _jsonable(item) for key, item in value.items()}
    if _is_list(value):
        return [_jsonable(item) for item in value]
    return value


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def unpacked(payload: bytes | msgspec.Raw) -> Any:
    """Decode msgpack into plain values, without the user's types. If it is not msgpack, return its bytes in hexadecimal."""
    try:
        return msgspec.msgpack.decode(payload)
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return {"msgpack": bytes(payload).hex()}
