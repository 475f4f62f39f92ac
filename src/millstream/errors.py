"""Every exception that Millstream raises or reports, in one tree.

    MillstreamError
    ├── UsageError (also ValueError)       a declaration, option or call is wrong and can never work
    ├── PayloadTooLarge (also ValueError)  the encoded arguments or event exceed max_payload_bytes
    ├── QueueFull                          the queue has reached its max_length
    ├── TopicFull                          the topic has reached its max_length
    ├── MalformedEvent (also ValueError)   a stored event does not match the type of its topic
    ├── IdConflict                         the id belongs to a job of another task
    ├── BulkError                          some items of a bulk call were refused
    ├── EventsMissed                       observers only: events were trimmed before a broadcast read them
    ├── MalformedEntry                     observers only: a stream entry is not a Millstream message
    ├── UnknownTask                        observers only: a worker claimed a job whose task it does not have
    ├── WorkerCrashed                      observers only: a worker died while it held jobs
    ├── BrokerError
    │   ├── BrokerUnavailable              the server is unreachable or refuses writes for now
    │   ├── BrokerRefused                  the server will not accept this client: password, version, not a Redis
    │   ├── LeaseLost                      the consumer's lease has lapsed; other workers have its messages
    │   ├── ShardsChanged                  the server has a different number of shards than the app declares
    │   └── ShardsInUse                    resharding needs an empty queue or topic
    ├── ResultError
    │   ├── JobFailed                      the job is dead; carries its reason, error and traceback
    │   ├── JobCancelled                   the job was cancelled before it started, or before a retry started
    │   ├── JobExpired                     the job expired before it started, or before a retry started
    │   ├── JobNotFound (also LookupError)  no queue has a job with this id
    │   ├── ResultTimeout (also TimeoutError)  the job did not end in time; says what it waits for
    │   └── ResultsDisabled                no result is stored for this job
    └── Signal                             raised by a handler to control what happens next
        ├── Retry                          run again later and use up a retry
        ├── Reject                         dead-letter immediately
        └── Snooze                         run again later without using up a retry

Arguments that do not match a task's signature or annotations raise a plain ``TypeError``, as in any Python call.
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
    """Base class of every exception that Millstream raises deliberately."""


class UsageError(MillstreamError, ValueError):
    """A declaration, option or call is wrong and can never work. The message names the option, its value and the fix.

    Correct the code or the configuration. Trying again does not help.
    """


class PayloadTooLarge(MillstreamError, ValueError):
    """The encoded arguments or event exceed ``max_payload_bytes`` (1 MiB by default). Nothing was written.

    Store the data elsewhere and send a reference, or raise ``max_payload_bytes`` of the app, task or group.
    """


class QueueFull(MillstreamError):
    """The queue already holds ``max_length`` jobs. Nothing was written.

    Ready, running, scheduled and blocked jobs count. Enqueue again later, add workers, or raise ``max_length``.
    """


class TopicFull(MillstreamError):
    """The topic already stores ``max_length`` events. Nothing was written.

    Find the group that lags (``millstream topics show NAME``). Then add workers, or skip or remove that group. If no group
    lags, shorten the retention or raise ``max_length``.
    """


class MalformedEvent(MillstreamError, ValueError):
    """A stored event does not match the type of its topic. ``DeadEvent.event`` raises it.

    Another program wrote the entry, the entry is damaged, or the type has changed since the event was published. The original
    bytes are in ``DeadEvent.payload``.
    """


class IdConflict(MillstreamError):
    """The id passed to ``options(id=…)`` belongs to a job of another task. Nothing was written.

    Use ids that are unique per queue, for example with the task's name as a prefix.
    """


class BulkError(MillstreamError):
    """At least one item of an ``enqueue_many`` or ``publish_many`` was refused. All other items were accepted.

    Retry or report the items in ``failed``. Pass ``return_exceptions=True`` to get the exceptions in the returned list instead.
    """

    def __init__(self, results: Sequence[Any]) -> None:
        self.results = list(results)
        """One entry per item, in order: a ``Job`` (for an event, its ``id`` is the event's id), or the exception."""
        self.failed = {i: r for i, r in enumerate(self.results) if isinstance(r, BaseException)}
        """The exception of each refused item, by its position in the call."""
        first_at, first = next(iter(self.failed.items()))
        super().__init__(
            f"{len(self.failed)} of {len(self.results)} items were refused, the first at index {first_at}: "
            f"{type(first).__name__}: {first}. Accepted items are in .results, exceptions in .failed."
        )


class MalformedEntry(MillstreamError):
    """A stream entry is not a Millstream message. Reported to observers, never raised.

    The entry becomes a dead letter with the reason ``malformed`` and the original bytes. Find the program that writes to the
    stream; a topic with ``codec="fields"`` accepts such entries.
    """


class UnknownTask(MillstreamError):
    """A worker claimed a job whose task it does not have. Reported to observers, never raised.

    The worker postpones the job, so that a worker that has the task can take it. After ``unknown_task_grace`` (10 minutes) the
    job is dead with the reason ``unknown_task``. Deploy the task, or keep its old name with ``aliases``.
    """


class EventsMissed(MillstreamError):
    """Events were trimmed or lost before a broadcast read them. Reported to observers, never raised.

    Set a longer ``retention`` for the topic, or handle the events in a group, which misses none.
    """


class WorkerCrashed(MillstreamError):
    """A worker that held jobs died, or lost contact with the server for longer than its lease. Reported to observers, never
    raised.

    Other workers run its jobs again. After more than ``max_crashes`` crashes, a job is dead with the reason ``crashed``. Look
    for the cause of the death: memory limits, C extensions, signals.
    """


class BrokerError(MillstreamError):
    """Base class of errors in the communication with the server."""


class BrokerUnavailable(BrokerError):
    """The server is unreachable or refuses writes for now, for example because its memory or disk is full.

    Calls are retried for five seconds before they raise this. The server may or may not have stored the jobs in ``job_ids``.
    Enqueue them again with the same ids: a job that was stored is not stored twice.
    """

    def __init__(self, message: str, job_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.job_ids = tuple(job_ids)
        """The ids of the jobs or events that the server may or may not have stored."""

    @property
    def job_id(self) -> str | None:
        """The first id in ``job_ids``, or ``None`` if the call did not send a job or an event."""
        return self.job_ids[0] if self.job_ids else None


class BrokerRefused(BrokerError):
    """The server will not accept this client: wrong password, unsupported version, missing database, or not a Redis server.

    Correct the URL or the server. Trying again does not help.
    """


class LeaseLost(BrokerError):
    """The consumer's lease has lapsed, so its messages are redelivered to other workers.

    ``Delivery.settled()`` raises it when the outcome of the delivery was not stored. The event is handled again elsewhere.
    """


class ShardsChanged(BrokerError):
    """The server has a different number of shards for a queue or topic than this app declares. Nothing was written.

    With the wrong number, messages of one key would go to another shard and lose their order. Declare the server's number in
    every app, or change it with ``reshard()``.
    """


class ShardsInUse(BrokerError):
    """``reshard()`` found messages that would lose their order, so it changed nothing.

    Let the workers finish, replay or purge dead letters in shards that would disappear, and clear stopped keys. Then try again.
    """


class ResultError(MillstreamError):
    """Base class of errors of ``job.result()``. Raised itself if the stored result does not match the return annotation."""

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id
        """The id of the job."""


class JobFailed(ResultError):
    """The job is dead. Its dead letter has the details: ``app.dead.show(job_id)``.

    Fix the cause, then replay the job with ``app.dead.replay(job_id)``.
    """

    def __init__(self, message: str, job_id: str, reason: str, error_type: str, error: str, traceback: str) -> None:
        super().__init__(message, job_id)
        self.reason = reason
        """Why the job is dead: one of the values of ``DeadReason``, for example ``"exhausted"``."""
        self.error_type = error_type
        """The name of the exception's class."""
        self.error = error
        """The exception's message."""
        self.traceback = traceback
        """The formatted traceback; empty if the job did not raise."""


class JobCancelled(ResultError):
    """The job was cancelled before it started, or before a retry started."""


class JobExpired(ResultError):
    """The job expired before it started, or before a retry started. Add workers, or raise ``expires``."""


class JobNotFound(ResultError, LookupError):
    """No queue has a job with this id. Either it ended and its result is no longer stored, or it never existed.

    Check the id, the namespace and the URL.
    """


class ResultTimeout(ResultError, TimeoutError):
    """The job did not end within the ``timeout`` of ``job.result()``.

    The job itself is not affected. Call ``result()`` again to wait longer, or remove the cause that ``why`` names.
    """

    def __init__(self, message: str, job_id: str, status: str, served: bool, why: Why | None = None) -> None:
        super().__init__(message, job_id)
        self.status = status
        """The job's state; ``"unknown"`` if the server could not be reached."""
        self.served = served
        """Whether a worker serves the job's queue."""
        self.why = why
        """Why the job has not ended, or ``None`` if the server could not be reached."""


class ResultsDisabled(ResultError):
    """No result is stored for this job: it was enqueued with ``result_ttl=0``, or the result has expired.

    Set a longer ``result_ttl`` on the app, the task or the call.
    """


class Signal(MillstreamError):
    """Base class of the exceptions that a handler raises to control what happens next."""


class Retry(Signal):
    """Raise it in a handler to run the job again later. This uses up a retry.

    Args:
        reason: Text for the log and the dead letter.
        delay: Seconds, or a timedelta, until the next attempt. ``None`` uses the delay of the retry policy.
    """

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(reason or "retry requested")
        self.delay = _seconds(delay, "Retry(delay)")
        """Seconds until the next attempt, or ``None`` for the delay of the retry policy."""


class Reject(Signal):
    """Raise it in a handler to make the job a dead letter immediately, with the reason ``rejected``. It is not retried.

    Args:
        reason: Text for the log and the dead letter.
    """

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)


class Snooze(Signal):
    """Raise it in a handler to run the job again later without using up a retry.

    Args:
        delay: Seconds, or a timedelta, until the job is due again.
    """

    def __init__(self, delay: float | timedelta) -> None:
        seconds = _seconds(delay, "Snooze(delay)")
        assert seconds is not None
        super().__init__(f"snoozed for {seconds:g} s")
        self.delay = seconds
        """Seconds until the job is due again."""


def _seconds(value: float | timedelta | None, name: str) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{name} must be a number of seconds, zero or more, not {value!r}")
    return seconds
