"""Every error a user can meet, in one tree.

    MillstreamError
    ├── UsageError (also ValueError)       a declaration, option or call that can never work
    ├── PayloadTooLarge (also ValueError)  the encoded arguments exceed max_payload_bytes
    ├── QueueFull                          max_length is reached; nothing was written
    ├── TopicFull                          a topic's max_length is reached; nothing was written
    ├── MalformedEvent (also ValueError)   what travelled is no event of the topic's type
    ├── IdConflict                         the given id belongs to a job of another task
    ├── BulkError                          some items of a bulk call were refused
    ├── EventsMissed                       told to observers: events were trimmed before a broadcast had read them
    ├── MalformedEntry                     told to observers: an entry that is no message of ours
    ├── UnknownTask                        told to observers: a job of a task that this worker does not know
    ├── WorkerCrashed                      told to observers: a worker died with jobs in its hands
    ├── BrokerError
    │   ├── BrokerUnavailable              the server could not be reached or would not write
    │   ├── BrokerRefused                  the server will never serve us: password, version, not a Redis
    │   ├── LeaseLost                      a consumer's lease is gone; it must start as a new incarnation
    │   ├── ShardsChanged                  a queue or topic has another number of shards than this app declares
    │   └── ShardsInUse                    the number of shards cannot change while something is on its way
    ├── ResultError
    │   ├── JobFailed                      the job is dead; carries its reason, error and traceback
    │   ├── JobCancelled
    │   ├── JobExpired
    │   ├── JobNotFound (also LookupError)  no queue knows a job of this id
    │   ├── ResultTimeout (also TimeoutError)  the wait ended first; says why the job has not ended
    │   └── ResultsDisabled                no result is kept for this job, or it is gone
    └── Signal                             what a handler raises to speak; never an accident
        ├── Retry                          run again later, spending an attempt
        ├── Reject                         dead at once
        └── Snooze                         run again later, spending no attempt

Errors about arguments are plain ``TypeError``, as for any Python call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.broker.why import Why

__all__ = [
    "BrokerError",
    "BrokerRefused",
    "BrokerUnavailable",
    "BulkError",
    "EventsMissed",
    "IdConflict",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "LeaseLost",
    "MalformedEntry",
    "MalformedEvent",
    "MillstreamError",
    "PayloadTooLarge",
    "QueueFull",
    "Reject",
    "ResultError",
    "ResultTimeout",
    "ResultsDisabled",
    "Retry",
    "ShardsChanged",
    "ShardsInUse",
    "Signal",
    "Snooze",
    "TopicFull",
    "UnknownTask",
    "UsageError",
    "WorkerCrashed",
]


class MillstreamError(Exception):
    """The root of everything Millstream raises on purpose."""


class UsageError(MillstreamError, ValueError):
    """A declaration, option or call that can never work; names the option and the value."""


class PayloadTooLarge(MillstreamError, ValueError):
    """The encoded arguments exceed ``max_payload_bytes``; nothing was written."""


class QueueFull(MillstreamError):
    """The queue holds ``max_length`` jobs; nothing was written."""


class TopicFull(MillstreamError):
    """The topic keeps ``max_length`` events that some group has not been given; nothing was written."""


class MalformedEvent(MillstreamError, ValueError):
    """What travelled as an event is none of the topic's type: foreign, broken, or of a type that has changed since."""


class IdConflict(MillstreamError):
    """The given id is in use by a job of another task; nothing was written."""


class BulkError(MillstreamError):
    """Some items of a bulk call were refused; the others were accepted.

    ``results`` has one entry per item, in order: the job, or the exception that refused it.
    ``failed`` maps the position of each refused item to its exception.
    """

    def __init__(self, results: Sequence[Any]) -> None:
        self.results = list(results)
        self.failed = {i: r for i, r in enumerate(self.results) if isinstance(r, BaseException)}
        first_at, first = next(iter(self.failed.items()))
        super().__init__(
            f"{len(self.failed)} of {len(self.results)} calls were refused; the first, number {first_at}: "
            f"{type(first).__name__}: {first}. The accepted jobs are in .results, the refusals in .failed."
        )


class MalformedEntry(MillstreamError):
    """An entry of a stream that is no message of ours; it is a dead letter with its bytes. Told to observers, never raised."""


class UnknownTask(MillstreamError):
    """A job of a task that this worker does not know; it is put off, then dead. Told to observers, never raised."""


class EventsMissed(MillstreamError):
    """Events of a topic were trimmed, or lost, before a broadcast had read them. Never raised: observers are told."""


class WorkerCrashed(MillstreamError):
    """A worker died, or was cut off for longer than its lease, with jobs in its hands. Told to observers, never raised."""


class BrokerError(MillstreamError):
    """Something between us and the server."""


class BrokerUnavailable(BrokerError):
    """The server could not be reached, or would not write.

    ``job_ids`` holds the ids whose fate is unknown: enqueueing the same id again is safe.
    """

    def __init__(self, message: str, job_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.job_ids = tuple(job_ids)

    @property
    def job_id(self) -> str | None:
        """The id of the job, when the call was about one."""
        return self.job_ids[0] if self.job_ids else None


class BrokerRefused(BrokerError):
    """The server will never serve us: wrong password, wrong version, or not a Redis."""


class LeaseLost(BrokerError):
    """The consumer's lease is gone: what it held belongs to others now."""


class ShardsChanged(BrokerError):
    """A queue or topic has another number of shards than this app declares: with it keys would change their shards, and lose
    their order. Nothing was written."""


class ShardsInUse(BrokerError):
    """The number of shards cannot change while something is on its way, since keys would lose their order."""


class ResultError(MillstreamError):
    """Why ``job.result()`` has no value to return."""

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(ResultError):
    """The job is dead. ``reason`` is one of the closed list; ``error_type``, ``error`` and ``traceback`` are text."""

    def __init__(self, message: str, job_id: str, reason: str, error_type: str, error: str, traceback: str) -> None:
        super().__init__(message, job_id)
        self.reason = reason
        self.error_type = error_type
        self.error = error
        self.traceback = traceback


class JobCancelled(ResultError):
    """The job was cancelled before it ran."""


class JobExpired(ResultError):
    """The job was not started before it expired."""


class JobNotFound(ResultError, LookupError):
    """No queue knows a job of this id: it ended and left no result, or there was no such job."""


class ResultTimeout(ResultError, TimeoutError):
    """The wait ended before the job did.

    ``status`` is the job's state, ``served`` says whether a worker serves its queue, and ``why`` says why it has not ended;
    ``None`` if the server could not be asked.
    """

    def __init__(self, message: str, job_id: str, status: str, served: bool, why: Why | None = None) -> None:
        super().__init__(message, job_id)
        self.status = status
        self.served = served
        self.why = why


class ResultsDisabled(ResultError):
    """No result is kept for this job (``result_ttl=0``), or it has expired, or the job never existed."""


class Signal(MillstreamError):
    """The base of what a handler raises to say what should happen next."""


class Retry(Signal):
    """Run this job again, spending an attempt; after ``delay`` seconds, or as its policy says when None."""

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(reason or "retry requested")
        self.delay = _seconds(delay, "Retry(delay)")


class Reject(Signal):
    """This job is dead at once: no attempt that is left will be made."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)


class Snooze(Signal):
    """Run this job again after ``delay`` seconds, spending no attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        seconds = _seconds(delay, "Snooze(delay)")
        assert seconds is not None
        super().__init__(f"snoozed for {seconds:g} s")
        self.delay = seconds


def _seconds(value: float | timedelta | None, name: str) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{name} must be a number of seconds, zero or more, not {value!r}")
    return seconds
