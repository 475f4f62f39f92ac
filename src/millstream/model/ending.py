"""Endings: the stored record of how a job ended, and its encoding. No I/O."""

from __future__ import annotations

import msgspec

from millstream.model.dead_letter import DeadLetter


class Ending(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a job ended. ``job.result()`` reads it."""

    status: str
    """done, dead, cancelled or expired."""
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    """done: the return value as msgpack."""
    letter: DeadLetter | None = None
    """dead: the reason."""
    task: str = ""
    """The name of the task; empty if it is unknown, as for a cancelled job."""
    ttl: float = 0.0
    """Seconds for which this record is stored, or 0 if that is unknown. The expiry time minus ``ttl`` is the time at which the
    job ended, so that a worker need not read the clock for every job."""
    enqueued_ms: int = 0
    """When the job was enqueued, by the clock of that machine; 0 if it is unknown."""


class Cancelled(Ending, frozen=True, gc=False):
    """The ending of a cancelled job. Decoding it as an ``Ending`` ignores the request."""

    request: str = ""
    """The request that cancelled the job. If it is sent again after a lost reply, it gets the same answer."""


encode_ending = msgspec.msgpack.Encoder().encode
decode_ending = msgspec.msgpack.Decoder(Ending).decode


def done_tail(task: str, ttl: float) -> bytes:
    """Return the part of a done job's ending between value and enqueue time. It is constant for a task."""
    return encode_ending(None) + encode_ending(task) + encode_ending(ttl)


def encode_done(value: bytes, tail: bytes, enqueued_ms: int) -> bytes:
    """Return ``Ending("done", value, None, task, ttl, enqueued_ms)`` encoded.

    Hot. It joins encoded parts, so that a stored result is encoded once instead of twice. Measured: 70 ns more per job than
    without a stored result.
    """
    return b"\x96\xa4done" + value + tail + encode_ending(enqueued_ms)


def encode_dead(letter: DeadLetter) -> bytes:
    """Return the encoded ending of a dead job."""
    return encode_ending(Ending("dead", letter=letter))


def encode_expired(task: str = "", ttl: float = 0.0, enqueued_ms: int = 0) -> bytes:
    """Return the encoded ending of an expired job."""
    return encode_ending(Ending("expired", task=task, ttl=ttl, enqueued_ms=enqueued_ms))


def encode_cancelled(ttl: float, request: str = "") -> bytes:
    """Return the encoded ending of a cancelled job, with the name of the request if it has one."""
    return encode_ending(Cancelled("cancelled", ttl=ttl, request=request) if request else Ending("cancelled", ttl=ttl))
