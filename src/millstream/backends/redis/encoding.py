"""Encode posts, outcomes and positions as arguments of the scripts, and decode replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.backends.redis.inspector import NOTE, TRIED, UNHANDLED, dead_letter
from millstream.broker import Cancellation, Entry, EntryLocation, Post, Receipt
from millstream.broker.letters import enclose
from millstream.broker.values import BEGINNING, END, LogPosition, millisecond_of, parse_entry
from millstream.errors import LeaseLost, ShardsChanged
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter, encode_letter
from millstream.model.ending import encode_expired
from millstream.model.message import ErrorNote
from millstream.model.outcome import Kind, Outcome

EXPIRED = encode_expired()
_CANCELLATIONS = {ord("0"): Cancellation.ENDED, ord("1"): Cancellation.CANCELLED, ord("2"): Cancellation.RUNNING}

LOST_LETTER = encode_letter(
    DeadLetter(
        "malformed",
        ErrorNote("LookupError", "the body of this message is missing from the stream: another program deleted or trimmed it"),
        attempts=0,
        crashes=0,
        enqueued_ms=0,
    )
)
_RECEIPTS = {ord("1"): Receipt.CREATED, ord("2"): Receipt.EXISTS, ord("3"): Receipt.FULL, ord("4"): Receipt.CONFLICT}
_RECEIPTS[ord("5")] = Receipt.CREATED  # An earlier copy of the same request created it.


IN_LOG = b"L"
"""The first byte of a ref whose entry is in a topic's log, not in a group's own stream."""

KEYED = b"/"
"""Separates the parts of the ref of a message with an ordering key: entry id, position and key."""


def cancellations(reply: bytes) -> list[Cancellation]:
    return [_CANCELLATIONS[digit] for digit in reply]


def chosen(ids: Sequence[str], reply: bytes) -> list[str]:
    """Return the ids for which a script returned 1."""
    return [job_id for job_id, digit in zip(ids, reply, strict=True) if digit == ord("1")]


def serial(p: Post) -> int | str:
    """Return the serial of a post. For a caller-given id, return the name of the request and the ``id_ttl``, if they are set.
    Such text starts with a line break, so a script cannot mistake it for a number."""
    if p.serial:
        return p.serial
    named = f"\nr{p.request}" if p.request else ""
    return (named if p.id_ttl is None else f"{named}\nt{ms(p.id_ttl)}") or 0


def keys_of(posts: Sequence[Post]) -> list[bytes]:
    """Return the keys of the posts that have one."""
    return [p.key for p in posts if p.key is not None]


def key_of(p: Post) -> bytes:
    return b"" if p.key is None else b"k" + p.key


def receipts(reply: bytes, address: Address, shards: int) -> list[Receipt]:
    if reply == b"-":
        raise ShardsChanged(
            f"{address.name!r} does not have {shards} shards, or its number of shards is being changed: nothing was written. "
            "Declare the number that `millstream topics show` or `millstream queues show` reports"
        )
    return [_RECEIPTS[digit] for digit in reply]


def mark_before(posts: Sequence[Post]) -> int:
    """Return the serial before the first post, or -1 if the posts are not plain or their serials are not consecutive.

    Plain posts have no delay and no expiry, and either all or none of them have a key.
    """
    mark = serial = posts[0].serial - 1
    unordered = posts[0].key is None
    for p in posts:
        serial += 1
        if p.serial != serial or p.delay or p.at or p.expires or p.expires_at or (p.key is None) is not unordered:
            return -1
    return mark


def times(p: Post) -> tuple[int | str, int | str]:
    """Return the due time and the expiry of a post for the scripts: 0, epoch ms, or ``+`` and ms from now."""
    due = ms(p.at) if p.at else f"+{ms(p.delay)}" if p.delay else 0
    expires = ms(p.expires_at) if p.expires_at else f"+{ms(p.expires)}" if p.expires else 0
    return due, expires


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def locate(ref: bytes) -> EntryLocation:
    """Split the reference of a claimed message: ``L`` for entries of a topic's log, the entry's id, and a slash with a key."""
    entry = ref.partition(KEYED)[0]
    return EntryLocation(entry.removeprefix(IN_LOG).decode("ascii"), entry.startswith(IN_LOG))


def entry(ref: bytes, fields: list[bytes], crashes: int) -> Entry:
    if len(fields) == 2 and fields[0] == b"d":
        return Entry(ref, fields[1], crashes)
    if len(fields) == 4 and fields[0] == b"d" and fields[2] == b"x" and fields[3].isdigit():
        return Entry(ref, fields[1], crashes, int(fields[3]))
    if len(fields) >= 6 and fields[0] == b"d" and fields[2] == b"k" and fields[4] == b"i":  # with an ordering key
        rest = dict(zip(fields[6::2], fields[7::2], strict=True))
        if rest.keys() <= {b"t", b"x", b"o"} and rest.get(b"x", b"0").isdigit():
            return Entry(ref, fields[1], crashes, int(rest.get(b"x", 0)))
    return Entry(ref, None, crashes, 0, msgspec.msgpack.encode(fields))


def letters(queue: Address, taken: Sequence[tuple[bytes, list[bytes]]], crashes: Sequence[int]) -> list[Entry]:
    """Return claimed dead letters as messages. Letters that no longer exist are skipped."""
    group = queue.owner
    return [
        Entry(ref, enclose(dead_letter(group, ref, fields), _tried(fields)), crashes[i])
        for i, (ref, fields) in enumerate(taken)
        if fields
    ]


def _tried(fields: list[bytes]) -> bytes:
    """Return the message for the next attempt to handle a dead letter. Empty if no attempt failed."""
    return fields[-1].removeprefix(TRIED) if fields[-2] == NOTE else b""


def letter_record(o: Outcome) -> tuple[bytes, int | str, bytes]:
    """Encode the outcome of a dead letter that stays in the list: its entry, ms until the next attempt, and its note."""
    if o.kind is Kind.RETRY:
        return o.ref, ms(o.delay), TRIED + o.body
    return o.ref, "", b"" if o.letter is None else UNHANDLED + encode_letter(o.letter)


def unless_refused(settled: int, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> int:
    if settled < 0:
        raise LeaseLost(f"consumer {consumer!r} has no lease on queue {queue!r}; refused outcomes: {len(outcomes)}")
    return settled


def record(o: Outcome) -> tuple[Any, ...]:
    if o.kind is Kind.RETRY:
        return ("retry", o.ref, o.id, b"", 0, 0, o.body, ms(o.delay), o.expires_ms)
    ttl_ms = ms(o.result_ttl)
    given = int(o.given_id)
    if o.kind is Kind.DEAD:
        letter = b"" if o.letter is None else encode_letter(o.letter)
        return ("dead", o.ref, o.id, o.result or b"", ttl_ms, given, o.body, o.task, letter)
    if o.kind is Kind.EXPIRED:
        return ("expired", o.ref, o.id, o.result or EXPIRED, ttl_ms, given, b"", 0, b"")
    return ("done", o.ref, o.id, o.result or b"", ttl_ms, given, b"", 0, b"")


def after(position: LogPosition) -> str:
    """Return the id of the entry after which a group continues to read."""
    if position == BEGINNING:
        return "0"
    if position == END:
        return "$"
    if isinstance(position, str):
        return "{}-{}".format(*parse_entry(position))
    return f"{max(0, millisecond_of(position) - 1)}-18446744073709551615"
