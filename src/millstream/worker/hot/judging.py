"""Judging: turns what a handler returned, raised or acknowledged into an outcome, logs it, and informs observers."""

from __future__ import annotations

import asyncio
import copy
import random
import shlex
import time
from typing import Any

from millstream.broker.letters import without_letter
from millstream.errors import MillstreamError, Reject, Retry, Signal, Snooze
from millstream.model.ending import done_tail, encode_done
from millstream.model.invalid import InvalidArguments, InvalidResult
from millstream.model.message import ErrorNote
from millstream.model.outcome import DONE, SETTLED, Outcome
from millstream.reporting import logs
from millstream.reporting.problem import During
from millstream.reporting.reporter import Reporter
from millstream.worker import verdict
from millstream.worker.hot.in_flight import FENCED, TIMEOUT, InFlight
from millstream.worker.hot.settler import Settler

log = logs.logger("millstream.worker")


class Judge:
    """Turns the end of a run into its outcome. None means that there is no outcome to settle."""

    def __init__(self, settler: Settler, reporter: Reporter) -> None:
        self._settler = settler
        self._reporter = reporter
        self._loop = asyncio.get_running_loop()
        self._done_tails: dict[str, bytes] = {}
        """By task: the bytes that follow the encoded value in the ending of a done job."""

    def done(self, job: InFlight, value: Any) -> Outcome:
        """Hot. Return the outcome of a job whose handler returned. Raises InvalidResult if its value cannot be stored."""
        message, task = job.message, job.handler
        settings = task.settings
        if message.overrides is None:
            ttl, tail = settings.result_ttl, self._done_tails.get(task.name)
        else:
            ttl, tail = job.result_ttl, None
        if ttl <= 0:
            return Outcome(DONE, job.ref, message.id, None, 0.0, message.given_id)
        encoded = task.encode(value)
        limit = settings.max_payload_bytes
        if limit is not None and len(encoded) > limit:
            raise InvalidResult(f"the result takes {len(encoded):,} bytes, more than max_payload_bytes={limit:,}")
        if tail is None:
            tail = done_tail(task.name, ttl)
            if message.overrides is None:
                self._done_tails[task.name] = tail
        return Outcome(DONE, job.ref, message.id, encode_done(encoded, tail, message.enqueued_ms), ttl, message.given_id)

    def ended(self, job: InFlight, value: Any) -> Outcome | None:
        """Return the outcome of a job that returned after it was asked to stop, or after an ack, nack or retry."""
        return self._stopped(job, value, None) if job.stop else self.as_said(job)

    def reported(self, job: InFlight, error: BaseException) -> None:
        """Log and report the error of a handler whose delivery stays open, so that the event is not retried because of it."""
        log.error("%r failed; its delivery stays open until it is acknowledged or times out", job, exc_info=error)
        self._tell(job, error)
        self._settler.unheard(_without_frames(error))

    def as_said(self, job: InFlight) -> Outcome | None:
        """Return the outcome of an explicit ack, nack or retry. It wins over what the handler returned or raised afterwards."""
        said = job.said
        assert said is not None
        if said is SETTLED:
            return None
        if said.verb == "ack":
            return Outcome(DONE, job.ref, job.message.id, None, 0.0, job.message.given_id)
        if job.lane.letters and said.verb == "nack":  # the dead letter stays stored, marked as unhandled
            message, why = without_letter(job.message), ErrorNote("Reject", said.reason)
            return verdict.dead(job.ref, message, "rejected", why, job.crashes, 0.0)
        return self._judge(job, Reject(said.reason) if said.verb == "nack" else Retry(delay=said.delay), timed_out=False)

    def _stopped(self, job: InFlight, value: Any, error: BaseException | None) -> Outcome | None:
        """Return the outcome of a job that was asked to stop and has ended now."""
        if job.stop == FENCED:
            return None
        if job.said is not None:
            return self.as_said(job)
        if job.stop == TIMEOUT:
            late = TimeoutError(f"ran past its timeout of {job.ends - job.since:g} s")
            late.__cause__ = error
            return self._judge(job, late, timed_out=True)
        if error is None:
            return self.done(job, value)
        if job.handler.settings.max_crashes == 0:
            return self.interrupted(job, job.result_ttl)
        job.lane.handed_back.append(job.ref)
        return None

    def interrupted(self, job: InFlight, result_ttl: float) -> Outcome:
        """Return the outcome of a job that may start only once and was interrupted by a shutdown."""
        return verdict.interrupted(
            job.ref, job.message, job.crashes, result_ttl, at=time.time(), worker=self._reporter.worker or ""
        )

    def failed(self, job: InFlight, error: BaseException, *, quietly: bool = False) -> Outcome | None:
        """Return the outcome of a job that raised. ``quietly``: another job already reported the same error."""
        try:
            if job.stop:
                return self._stopped(job, None, error)
            if job.said is not None:
                self._settler.unheard(error)
                how = "; a broadcast is not retried" if job.lane.broadcast else " after its outcome had been decided"
                log.error("%r failed%s", job, how, exc_info=error)
                if not quietly:
                    self._tell(job, error)
                return self.as_said(job)
            return self._judge(job, error, timed_out=False, quietly=quietly)
        except Exception as bug:
            # Even if judging itself fails, the job must end as a visible dead letter, and its slot must become free.
            log.exception("the error of %r could not be recorded, so the message becomes a dead letter", job)
            self._tell(job, bug, crash=True)
            why = ErrorNote("JudgingFailed", f"its error could not be recorded: {type(bug).__name__}; see the worker's log")
            return verdict.dead(job.ref, job.message, "exhausted", why, job.crashes, job.result_ttl)

    def _judge(self, job: InFlight, error: BaseException, *, timed_out: bool, quietly: bool = False) -> Outcome | None:
        """Apply the retry policy to an error. ``quietly``: another job already reported the same error."""
        message = job.message
        if job.lane.letters == "moved":
            self._not_moved(job, error)
            return None
        if job.lane.letters:
            message = without_letter(message)
        policy, now = verdict.policy_for(message, job.handler.settings.retry), time.time()
        outcome = verdict.judge(
            job.ref,
            message,
            error,
            policy=policy,
            timed_out=timed_out,
            crashes=job.crashes,
            expires_ms=job.expires_ms,
            result_ttl=job.result_ttl,
            received_ms=int((now - self._loop.time() + job.since) * 1000),
            failed_at=now,
            worker=self._reporter.worker or "",
            random=random.random,
        )
        if quietly:
            return outcome
        if not isinstance(error, Snooze):
            self._tell(job, error)
        said, name = verdict.describe(error), verdict.type_name(error)
        what = f"{job.lane.describe(message)[:-1]}, attempt {message.attempt} of {policy.max_retries + 1})"
        trace = (type(error), error, verdict.users_part(error.__traceback__))
        if outcome.letter is not None:
            end = job.lane.describe_end(message, outcome.letter.reason)
            log.error("%s %s: %s: %s", what, end, name, said, exc_info=trace)
        elif isinstance(error, Signal) and error.__cause__ is None:  # raised on purpose: needs no traceback
            log.warning("%s runs again in %.1f s: %s: %s", what, outcome.delay, name, said)
        elif message.attempt == 1:
            log.warning("%s runs again in %.1f s: %s: %s", what, outcome.delay, name, said, exc_info=trace)
        else:
            more = "" if job.lane.handler is not None else f" (details: millstream jobs show {shlex.quote(message.id)})"
            log.warning("%s runs again in %.1f s: %s: %s%s", what, outcome.delay, name, said, more)
        return outcome

    def _tell(self, job: InFlight, error: BaseException, *, crash: bool = False) -> None:
        message = job.message
        during: During = "decode" if isinstance(error, InvalidArguments) else "handler"
        self._reporter.tell(during, job.lane.queue, error, job_id=message.id, attempt=message.attempt, crash=crash)

    def _not_moved(self, job: InFlight, error: BaseException) -> None:
        """Release a dead letter that could not be forwarded. Forwarding is retried without limit."""
        log.warning(
            "%s: dead letter %s could not be forwarded; trying again: %s",
            job.lane.queue.spoken,
            job.message.id,
            verdict.describe(error),
        )
        self._tell(job, error)
        job.lane.handed_back.append(job.ref)


def _without_frames(error: BaseException) -> BaseException:
    """Return a copy of an error that can be kept. The frames of the original would keep the delivery alive."""
    try:
        return copy.copy(error)
    except Exception:  # the error cannot be copied
        return MillstreamError(f"{type(error).__name__}: {verdict.describe(error)}")
