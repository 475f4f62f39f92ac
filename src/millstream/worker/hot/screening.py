"""Screening: decides the outcome of claimed messages that cannot run, or must not run in this worker or at this time."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from millstream.broker import Entry, EntryLocation
from millstream.errors import MalformedEntry, MillstreamError, PayloadTooLarge, UnknownTask, WorkerCrashed
from millstream.model.ending import encode_expired
from millstream.model.message import ErrorNote, Message
from millstream.model.outcome import Kind, Outcome
from millstream.model.settings import AppSettings
from millstream.reporting import logs
from millstream.reporting.problem import During
from millstream.reporting.reporter import Reporter
from millstream.worker import verdict
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.prepared import Prepared

log = logs.logger("millstream.worker")

NO_MOMENT_MS = 2**47
"""An entry id from this number on is not a timestamp in milliseconds."""

PUT_OFF_FIRST, PUT_OFF_MOST = 0.2, 2.0
"""First and longest delay in seconds before a message of an unknown task is ready again, for other workers.

The delay grows with the time for which the task has been unknown. A short ``unknown_task_grace`` shortens it.
"""


class Screener:
    """Rejects messages before they run: undecodable, expired, unknown, oversize, or with more crashes than allowed."""

    def __init__(self, settings: AppSettings, reporter: Reporter, locate: Callable[[bytes], EntryLocation]) -> None:
        self._settings = settings
        self._reporter = reporter
        self._locate = locate
        self.taken_over = 0
        """Number of claimed messages that a dead worker had held, since the last reset."""

    def foreign(self, lane: Lane, entry: Entry) -> Message | None:
        """Convert another program's entry into a message, if the handler accepts such entries. None if that is not possible."""
        if entry.body is not None or lane.foreign is None:
            return None
        try:
            payload = lane.foreign(entry.raw)
        except Exception as error:  # any error that bytes can cause
            log.debug("the fields of entry %r could not be converted into an event: %s", entry.ref, error)
            return None
        location = self._locate(entry.ref)
        ms = location.written_ms
        return Message(location.entry, lane.queue.log, msgspec.Raw(payload), ms if ms < NO_MOMENT_MS else 0)

    def malformed(self, lane: Lane, entry: Entry, error: Exception) -> Outcome:
        body = entry.raw if entry.body is None else entry.body
        why = "its fields are not a Millstream message" if entry.body is None else f"its body does not decode: {error}"
        ends = "skipped" if lane.broadcast else "dead"
        location = self._locate(entry.ref)
        log.error("entry %s of queue %r is %s, malformed: %s", location, lane.queue, ends, why)
        outcome = verdict.malformed(entry.ref, str(location), body, why, entry.crashes)
        if self._reporter.observed:
            malformed = MalformedEntry(why)
            malformed.__cause__ = error
            self._reporter.tell("decode", lane.queue, malformed, job_id=outcome.id)
        return outcome

    def unfit(self, lane: Lane, entry: Entry, message: Message, task: Prepared | None, now_ms: int) -> Outcome | None:
        """Return the outcome of a message that must not run here and now, or None if it may run."""
        ttl = self._settings.result_ttl if task is None else task.settings.result_ttl
        if message.overrides is not None and message.overrides.result_ttl is not None:
            ttl = message.overrides.result_ttl
        if entry.expires_ms and entry.expires_ms <= now_ms and lane.keeps_expired:
            why = ErrorNote("Expired", f"it expired {(now_ms - entry.expires_ms) / 1000:.1f} s before it could be handled")
            log.error("event %s (group %r) is dead, expired: %s", message.id, lane.queue, why.message)
            tried = msgspec.structs.replace(message, attempt=message.attempt - 1)
            return verdict.dead(entry.ref, tried, "expired", why, entry.crashes, ttl)
        if entry.expires_ms and entry.expires_ms <= now_ms:
            log.info("%s has expired", lane.describe(message))
            ending = encode_expired(message.task, ttl, message.enqueued_ms) if ttl > 0 else None
            return Outcome(Kind.EXPIRED, entry.ref, message.id, ending, ttl, message.given_id)
        if task is None:
            return self._unknown(lane, entry, message, now_ms, ttl)
        size, limit = len(bytes(message.args)), task.settings.max_payload_bytes
        if limit is not None and size > limit:
            why = ErrorNote("PayloadTooLarge", f"its arguments take {size:,} bytes, more than max_payload_bytes={limit:,}")
            ends = "skipped" if lane.broadcast else "dead"
            log.error("%s is %s, oversize: %s", lane.describe(message), ends, why.message)
            self._tell_of(lane, message, PayloadTooLarge(why.message))
            return verdict.dead(entry.ref, message, "oversize", why, entry.crashes, ttl)
        if entry.crashes > task.settings.max_crashes:
            why = ErrorNote(
                "WorkerCrashed",
                f"{entry.crashes} worker process{'' if entry.crashes == 1 else 'es'} died while running it; "
                f"max_crashes={task.settings.max_crashes}",
            )
            log.error("%s %s: %s", lane.describe(message), lane.describe_end(message, "crashed"), why.message)
            self._tell_of(lane, message, WorkerCrashed(why.message))
            return verdict.dead(entry.ref, message, "crashed", why, entry.crashes, ttl)
        if entry.crashes:
            self.taken_over += 1
            if self._reporter.observed:
                nth = f"crash {entry.crashes} of at most {task.settings.max_crashes}"
                died = f"the worker that held it died or lost the connection to the server, {nth}; it is claimed again"
                self._tell_of(lane, message, WorkerCrashed(died))
        return None

    def _tell_of(self, lane: Lane, message: Message, error: MillstreamError) -> None:
        crash = isinstance(error, WorkerCrashed)
        during: During = "reclaim" if crash else "decode"
        self._reporter.tell(during, lane.queue, error, job_id=message.id, attempt=message.attempt, crash=crash)

    def _unknown(self, lane: Lane, entry: Entry, message: Message, now_ms: int, ttl: float) -> Outcome:
        lane.unknown += 1
        grace = self._settings.unknown_task_grace
        since = message.unknown_since_ms or now_ms
        if now_ms - since >= grace * 1000:
            why = ErrorNote("UnknownTask", f"no worker of queue {lane.queue!r} knew task {message.task!r} within {grace:g} s")
            log.error("job %s is dead, unknown_task: %s", message.id, why.message)
            self._tell_of(lane, message, UnknownTask(why.message))
            return verdict.dead(entry.ref, message, "unknown_task", why, entry.crashes, ttl)
        if not message.unknown_since_ms:
            log.warning(
                "job %s belongs to task %r, which this worker does not know; it is postponed for up to %g s. "
                "Is the task's module imported (include=…)? Does another app serve queue %r?",
                message.id,
                message.task,
                grace,
                lane.queue,
            )
            unknown = f"this worker does not know task {message.task!r}; the job is postponed for up to {grace:g} s"
            self._tell_of(lane, message, UnknownTask(unknown))
        delay = min(PUT_OFF_MOST, max(PUT_OFF_FIRST, (now_ms - since) / 4000), max(0.05, grace / 10))
        return verdict.retry(entry.ref, message, delay, entry.expires_ms, unknown_since_ms=since)


def after_crashes(message: Message, crashes: int) -> Message:
    """Return the message with its crashes since the last completed attempt recorded as one failed attempt."""
    died = (
        "the worker that held it died or lost the connection to the server"
        if crashes == 1
        else f"{crashes} workers that held it died or lost the connection to the server"
    )
    return verdict.with_failure(message, "WorkerCrashed", died, time.time(), "")
