"""The runner: claimed messages become jobs, jobs become outcomes."""

from __future__ import annotations

import asyncio
import copy
import random
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from millstream.broker import Claim, Entry
from millstream.broker.contract import entry_name
from millstream.errors import (
    LeaseLost,
    MalformedEntry,
    MillstreamError,
    PayloadTooLarge,
    Reject,
    Retry,
    Signal,
    Snooze,
    UnknownTask,
    WorkerCrashed,
)
from millstream.jobs.current import CurrentJob, set_current_job
from millstream.model.address import split_address, spoken
from millstream.model.handler import Handler
from millstream.model.invalid import InvalidArguments, InvalidResult
from millstream.model.message import ErrorNote, Message, decode_message
from millstream.model.outcome import DONE, SETTLED, Ending, Kind, Outcome, encode_ending
from millstream.model.settings import AppSettings
from millstream.reporting import logs
from millstream.reporting.problem import During
from millstream.reporting.reporter import Reporter
from millstream.worker import verdict
from millstream.worker.hot.batches import Batches, BatchRun
from millstream.worker.hot.hold import ASYNC, THREAD, Hold
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.manual import Manual
from millstream.worker.hot.receipts import Receipts
from millstream.worker.hot.settler import Settler
from millstream.worker.hot.threads import Threads

if TYPE_CHECKING:
    from millstream.events.subscription import Subscription

log = logs.logger("millstream.worker")

TIMEOUT, SHUTDOWN, FENCED = "timeout", "shutdown", "fenced"
"""Why a running job is told to stop."""

TRUSTED = 2 / 3
"""What part of a lease is left, at the least, when it was last renewed."""

NO_MOMENT_MS = 2**47
"""An entry's id that is no less was not made of a moment in milliseconds."""

PUT_OFF_FIRST, PUT_OFF_MOST = 0.2, 2.0
"""Seconds until a message whose task is unknown here is ready again, for others: few at first, more when it has been unknown
for longer. A shorter grace looks more often."""

_NEVER = float("inf")
# Hot: Ending("done", value, None, task, ttl, enqueued_ms) is put together by hand: one encoding instead of two per kept result.
# Task and ttl are constant bytes per task, and the server knows when it ended. (Measured: 70 ns per job more than without.)
_DONE_HEAD = b"\x96\xa4done"
_encode = msgspec.msgpack.Encoder().encode


class Runner:
    """Starts jobs while slots are free, buffers the few that come before their slot, and hands outcomes to the settler."""

    def __init__(
        self,
        tasks: Mapping[str, Handler],
        subscriptions: Iterable[Handler],
        settings: AppSettings,
        hold: Hold,
        settler: Settler,
        reporter: Reporter,
        longer: Callable[[float], None] | None = None,
    ) -> None:
        self._tasks = tasks
        self._settings = settings
        self._hold = hold
        self._settler = settler
        self._reporter = reporter
        self._taken_over = 0
        """Of what the present claim brought: how many a worker that died had held."""
        self._done_tails: dict[str, bytes] = {}
        """By task: what follows the value in the ending of a job that is done."""
        self._loop = asyncio.get_running_loop()
        self.threads = Threads(hold.sizes[THREAD], _call, self._thread_returned)
        handlers = [*tasks.values(), *subscriptions]
        limits = [settings.max_payload_bytes, *(handler.settings.max_payload_bytes for handler in handlers)]
        self._look_closer_at = min((limit for limit in limits if limit is not None), default=_NEVER)
        """A body no larger than this is within every task's limit."""
        self._longest = longest_timeout(handlers, settings)
        self._longer = longer
        """Told of a job that may run longer than any before it."""
        self.trusted = TRUSTED * settings.lease
        """For so many seconds what was claimed is surely ours."""
        settler.pump = self.pump
        self.receipts = Receipts(settler, self._loop)
        self._batches = Batches(self, hold, self._loop)
        self.manual = Manual(self, self._loop, settings.lease)

    def know(self, handler: Handler) -> None:
        """Run this one too."""
        limit = handler.settings.max_payload_bytes
        self._look_closer_at = min(self._look_closer_at, _NEVER if limit is None else limit)
        self._may_run(handler.settings.timeout)

    def _may_run(self, timeout: float) -> None:
        """A job may run so long; 0: for ever."""
        if self._longer is not None and self._longest and (timeout > self._longest or not timeout):
            self._longest = timeout
            self._longer(timeout)

    def accept(self, lane: Lane, claim: Claim, *, alone: bool = False) -> None:
        """Hot. Start or buffer what a claim brought; settle at once what can never run. ``alone``: start it although nothing
        else may start now. What may not be buffered is left in ``lane.handed_back``."""
        hold, tasks, add = self._hold, self._tasks, _forget if lane.broadcast else self._settler.add
        handler, broadcast = lane.handler, lane.broadcast
        now = self._loop.time()
        limit = self._look_closer_at
        threads = 0
        for entry in claim.entries:
            try:
                message = decode_message(entry.body)  # type: ignore[arg-type]
            except Exception as error:  # whatever bytes can provoke: deep nesting is a RecursionError
                found = self._foreign(lane, entry)
                if found is None:
                    add(lane, self._malformed(lane, entry, error))
                    continue
                message = found
            task = handler or tasks.get(message.task)
            if task is None or entry.crashes or entry.expires_ms or len(entry.body or entry.raw) > limit:
                if entry.crashes:
                    message = _after_crashes(message, entry.crashes)
                outcome = self._unfit(lane, entry, message, task, claim.now_ms)
                if outcome is not None:
                    add(lane, outcome)
                    continue
                assert task is not None
            job = CurrentJob(lane, entry.ref, message, task, entry.crashes, entry.expires_ms, now)
            if broadcast:
                job._said = SETTLED  # nobody settles it
            if lane.batch is not None:
                lane.gathered.append(job)
                continue
            kind = ASYNC
            if not task.is_async:
                kind = THREAD
                threads += 1
            if hold.free[kind] > 0 and (alone or not hold.shut):
                hold.free[kind] -= 1
                self._start(job, kind)
            elif task.settings.max_crashes == 0:
                lane.handed_back.append(entry.ref)  # at most once: one that waits here could die without having run
                continue
            else:
                hold.ready[kind].append(job)
            if lane.limit is not None:
                lane.active += 1
        if lane.batch is not None and lane.gathered:
            self._batches.gather(lane, alone=alone)
        if len(lane.kinds) > 1 and claim.entries:
            lane.note(threads, len(claim.entries))
        elif handler is None and threads != (len(claim.entries) if THREAD in lane.kinds else 0):
            lane.kinds = (ASYNC, THREAD)  # a call may choose another queue than its task's
        if self._taken_over:
            count, self._taken_over = self._taken_over, 0
            log.warning("queue %r: %d jobs are claimed again, whose workers died or were cut off", lane.queue, count)

    def kind_of(self, lane: Lane, entry: Entry) -> int | None:
        """The kind of slot that an entry needs, or ``None`` if it needs no slot because it cannot run here."""
        handler = lane.handler
        if handler is None:
            try:
                handler = self._tasks.get(decode_message(entry.body).task)  # type: ignore[arg-type]
            except Exception:  # as in ``accept``
                return None
        if handler is None:
            return None
        return ASYNC if handler.is_async else THREAD

    def pump(self) -> None:
        """Start what is buffered while slots are free."""
        hold = self._hold
        self._batches.pump()
        for kind in (ASYNC, THREAD):
            while hold.ready[kind] and hold.free[kind] > 0 and not hold.shut:
                hold.free[kind] -= 1
                self._start(hold.ready[kind].popleft(), kind)

    def stop_job(self, job: CurrentJob, why: str) -> None:
        """Tell a running job to stop; a coroutine is cancelled, a thread can only look at ``current_job().cancelled``."""
        if why == FENCED or not job._stop:
            job._stop = why
        if job._running is not None:
            # Not before its first step: a task that is cancelled earlier never reaches the end that frees its slot.
            self._loop.call_soon(job._running.cancel)
        elif job._open:
            self.manual.end(job)

    def close(self) -> None:
        """Let idle threads end."""
        self.threads.close()

    def _start(self, job: CurrentJob, kind: int) -> None:
        hold, lane = self._hold, job._lane
        now = self._loop.time()
        if now - job._since > self.trusted and not lane.broadcast:
            self._doubt(job, kind)
            return
        hold.started[kind] += 1
        hold.running.add(job)
        message = job._message
        timeout = job._task.settings.timeout
        if message.overrides is not None and message.overrides.timeout is not None:
            timeout = message.overrides.timeout
            self._may_run(timeout)
        job._since = now
        job._ends = now + timeout if timeout else _NEVER
        if kind == ASYNC and not lane.special:
            # Hot: no done-callback, no timer per job; both were measured to halve the rate.
            job._running = self._loop.create_task(self._run(job))
        elif lane.acks_first:
            job._running = self._loop.create_task(self._receive(job, kind))
        elif kind == ASYNC:
            job._running = self._loop.create_task(self.manual.run(job))
        else:
            self._submit(job)

    def _doubt(self, job: CurrentJob, kind: int) -> None:
        """What is buffered starts or is handed back within a moment. If it did not, this process stood still, and others may
        have taken it over: its claimer asks the server before it starts."""
        lane = job._lane
        lane.doubtful = True
        if lane.limit is not None:
            lane.active -= 1
        self._hold.free[kind] += 1
        self.slot_freed()
        self._loop.call_soon(self.pump)  # what is buffered behind it may be another lane's

    def stood_still(self, lane: Lane) -> bool:
        """Whether this process did, since the last tick: what a lane has gathered is doubtful then, and is gathered no more."""
        if self._loop.time() - self._hold.ticked <= self.trusted:
            return False
        lane.gathered.clear()
        lane.doubtful = True
        self._hold.freed()
        return True

    def _submit(self, job: CurrentJob) -> None:
        try:
            self.threads.submit(job)
        except RuntimeError as error:  # no thread can be started: a failed attempt, and the slot comes free
            self._loop.call_soon(self.finish, job, THREAD, self.failed(job, error))

    async def _receive(self, job: CurrentJob, kind: int) -> None:
        """Acknowledge, then run. An event that does not decode never reaches its handler, so it is not acknowledged either."""
        try:
            cast("Subscription", job._task).arguments.event(job._message.args)
            await self.receipts.acknowledge((job,))
        except BaseException as error:
            self.finish(job, kind, self.failed(job, error))
            return
        if kind == ASYNC:
            await self._run(job)
        else:
            job._running = None
            self._submit(job)

    async def _run(self, job: CurrentJob) -> None:
        """Hot. One job in its own asyncio task, so that context variables are its own."""
        set_current_job(job)
        task = job._task
        outcome: Outcome | None = None
        try:
            args, kwargs = task.arguments.decode(job._message.args)
            value = await task.fn(*args, **kwargs)
            outcome = self.ended(job, value) if job._stop or job._said else self._done(job, value)
        except BaseException as error:
            outcome = self.failed(job, error)
        finally:
            self.finish(job, ASYNC, outcome)

    def _thread_returned(self, job: CurrentJob | BatchRun, value: Any, error: BaseException | None) -> None:
        if isinstance(job, BatchRun):
            self.end_together(job.jobs, THREAD, error)
            return
        if job._lane.manual:
            self.manual.returned(job, THREAD, error)
            return
        outcome: Outcome | None
        try:
            if error is not None:
                outcome = self.failed(job, error)
            else:
                outcome = self.ended(job, value) if job._stop or job._said else self._done(job, value)
        except InvalidResult as unfit:
            outcome = self.failed(job, unfit)
        self.finish(job, THREAD, outcome)

    def finish(self, job: CurrentJob, kind: int, outcome: Outcome | None) -> None:
        """Hot. Hand over the outcome; the slot goes to the next in the buffer, or is free."""
        hold = self._hold
        hold.running.discard(job)
        lane = job._lane
        if lane.limit is not None:
            lane.active -= 1
            hold.freed()
        job._running = None  # task, context and job would keep each other alive until the garbage collector finds them
        if outcome is not None:
            self._settler.add(lane, outcome)
        elif lane.watched and job._said is not SETTLED:
            lane.unwatch(LeaseLost(f"{job!r} was handed back, or belongs to others now"), (job._ref,))
        ready = hold.ready[kind]
        if ready and not hold.shut:
            self._start(ready.popleft(), kind)
            if len(ready) <= hold.low[kind]:
                hold.freed()
        else:
            hold.free[kind] += 1
            self.slot_freed()

    def slot_freed(self) -> None:
        """A slot came free, and nothing that is buffered takes it."""
        hold = self._hold
        self._batches.pump()
        hold.freed()
        if len(hold.running) <= hold.open:
            hold.quiet.set()

    def opened(self, count: int) -> None:
        """So many more deliveries go on without their handlers, or fewer."""
        self._hold.open += count
        self._hold.freed()
        if len(self._hold.running) <= self._hold.open:
            self._hold.quiet.set()

    def end_together(self, jobs: Sequence[CurrentJob], kind: int, error: BaseException | None) -> None:
        """A batch has ended: each of it as it said, or as all did."""
        lane = jobs[0]._lane
        if lane.limit is not None:
            lane.active -= 1
        for number, job in enumerate(jobs):
            self._hold.running.discard(job)
            job._running = None
            outcome: Outcome | None
            if error is not None:
                outcome = self.failed(job, error, quietly=number > 0)
            else:
                outcome = self.ended(job, None) if job._stop or job._said else self._done(job, None)
            if outcome is not None:
                self._settler.add(lane, outcome)
        self._hold.free[kind] += 1
        self.pump()
        self.slot_freed()

    def cannot_run(self, job: CurrentJob, error: InvalidArguments) -> None:
        """One of a batch whose event does not decode; the others go on."""
        outcome = self.failed(job, error)
        if outcome is not None:
            self._settler.add(job._lane, outcome)

    def _done(self, job: CurrentJob, value: Any) -> Outcome:
        """Hot. Raises InvalidResult."""
        message, task = job._message, job._task
        settings = task.settings
        if message.overrides is None:
            ttl, tail = settings.result_ttl, self._done_tails.get(task.name)
        else:
            ttl, tail = _result_ttl(job), None
        if ttl <= 0:
            return Outcome(DONE, job._ref, message.id, None, 0.0, message.given_id)
        encoded = task.returns.encode(value)
        limit = settings.max_payload_bytes
        if limit is not None and len(encoded) > limit:
            raise InvalidResult(f"the result takes {len(encoded):,} bytes, more than max_payload_bytes={limit:,}")
        if tail is None:
            tail = _done_tail(task.name, ttl)
            if message.overrides is None:
                self._done_tails[task.name] = tail
        ending = _DONE_HEAD + encoded + tail + _encode(message.enqueued_ms)
        return Outcome(DONE, job._ref, message.id, ending, ttl, message.given_id)

    def ended(self, job: CurrentJob, value: Any) -> Outcome | None:
        """What a job becomes that returned, and was told to stop or had said how it ends."""
        return self._stopped(job, value, None) if job._stop else self._as_said(job)

    def reported(self, job: CurrentJob, error: BaseException) -> None:
        """A handler failed whose work is not tried again for that."""
        log.error("%r failed; its delivery goes on without it", job, exc_info=error)
        self._tell(job, error)
        self._settler.unheard(_without_frames(error))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where outcomes are settled."""
        return self._loop

    def runs(self, job: CurrentJob) -> bool:
        """Whether its handler has not ended."""
        return job in self._hold.running and not job._open

    def holds(self, job: CurrentJob) -> bool:
        """Whether its end is not on the server yet. Raises why it never will be, if that is so."""
        if job._stop == FENCED:
            raise LeaseLost(f"{job!r} belongs to others now: this worker had lost its lease")
        if job._ref in job._lane.lost:
            raise job._lane.lost[job._ref]
        if job in self._hold.running and job._said is not SETTLED:
            return True
        return any(outcome.ref == job._ref for outcome in (*job._lane.settling, *job._lane.outcomes))

    def settle_now(self, job: CurrentJob) -> None:
        """Settle what a handler has said although it still runs."""
        outcome = self._as_said(job)
        if outcome is not None:
            self._settler.add(job._lane, outcome)
            job._said = SETTLED

    def _as_said(self, job: CurrentJob) -> Outcome | None:
        """What a handler of events said wins over what it did then."""
        said = job._said
        assert said is not None
        if said is SETTLED:
            return None
        if said.verb == "ack":
            return Outcome(DONE, job._ref, job._message.id, None, 0.0, job._message.given_id)
        if job._lane.letters and said.verb == "nack":
            return Outcome(Kind.DEAD, job._ref, job._message.id)  # it stays in the list
        return self._judge(job, Reject(said.reason) if said.verb == "nack" else Retry(delay=said.delay), timed_out=False)

    def _stopped(self, job: CurrentJob, value: Any, error: BaseException | None) -> Outcome | None:
        """What a job becomes that was told to stop, now that it really has ended."""
        if job._stop == FENCED:
            return None
        if job._said is not None:
            return self._as_said(job)
        if job._stop == TIMEOUT:
            late = TimeoutError(f"ran past its timeout of {job._ends - job._since:g} s")
            late.__cause__ = error
            return self._judge(job, late, timed_out=True)
        if error is None:
            return self._done(job, value)
        if job._task.settings.max_crashes == 0:
            return self.interrupted(job, _result_ttl(job))
        job._lane.handed_back.append(job._ref)
        return None

    def interrupted(self, job: CurrentJob, result_ttl: float) -> Outcome:
        """What a job becomes that may start only once, and is stopped by a shutdown."""
        return verdict.interrupted(
            job._ref, job._message, job._crashes, result_ttl, at=time.time(), worker=self._reporter.worker or ""
        )

    def failed(self, job: CurrentJob, error: BaseException, *, quietly: bool = False) -> Outcome | None:
        """What a job becomes that raised."""
        try:
            if job._stop:
                return self._stopped(job, None, error)
            if job._said is not None:
                self._settler.unheard(error)
                how = "; a broadcast is not tried again" if job._lane.broadcast else " after its end was settled or said"
                log.error("%r failed%s", job, how, exc_info=error)
                if not quietly:
                    self._tell(job, error)
                return self._as_said(job)
            return self._judge(job, error, timed_out=False, quietly=quietly)
        except Exception as bug:
            # Whatever goes wrong in judging, the job must end in a visible place and its slot must come free.
            log.exception("judging %r failed", job)
            self._tell(job, bug, crash=True)
            why = ErrorNote("JudgingFailed", f"its error could not be recorded: {type(bug).__name__}; the worker's log has it")
            return verdict.dead(job._ref, job._message, "exhausted", why, job._crashes, _result_ttl(job))

    def _judge(self, job: CurrentJob, error: BaseException, *, timed_out: bool, quietly: bool = False) -> Outcome | None:
        """``quietly``: the same was said of another one already."""
        message = job._message
        if job._lane.letters:
            return self._judge_letter(job, error)
        policy, now = verdict.policy_for(message, job._task.settings.retry), time.time()
        outcome = verdict.judge(
            job._ref,
            message,
            error,
            policy=policy,
            timed_out=timed_out,
            crashes=job._crashes,
            expires_ms=job._expires_ms,
            result_ttl=_result_ttl(job),
            received_ms=int((now - self._loop.time() + job._since) * 1000),
            failed_at=now,
            worker=self._reporter.worker or "",
            random=random.random,
        )
        if quietly:
            return outcome
        if not isinstance(error, Snooze):
            self._tell(job, error)
        said, name = verdict.describe(error), verdict.type_name(error)
        what = f"{_named(job._lane, message)[:-1]}, attempt {message.attempt} of {policy.max_retries + 1})"
        trace = (type(error), error, verdict.users_part(error.__traceback__))
        if outcome.letter is not None:
            log.error("%s is dead, %s: %s: %s", what, outcome.letter.reason, name, said, exc_info=trace)
        elif isinstance(error, Signal) and error.__cause__ is None:  # what a handler says on purpose needs no traceback
            log.warning("%s runs again in %.1f s: %s: %s", what, outcome.delay, name, said)
        elif message.attempt == 1:
            log.warning("%s runs again in %.1f s: %s: %s", what, outcome.delay, name, said, exc_info=trace)
        else:
            more = "" if job._lane.handler is not None else f" (more: millstream jobs show {shlex.quote(message.id)})"
            log.warning("%s runs again in %.1f s: %s: %s%s", what, outcome.delay, name, said, more)
        return outcome

    def _tell(self, job: CurrentJob, error: BaseException, *, crash: bool = False) -> None:
        message = job._message
        during: During = "decode" if isinstance(error, InvalidArguments) else "handler"
        self._reporter.tell(during, job._lane.queue, error, job_id=message.id, attempt=message.attempt, crash=crash)

    def _judge_letter(self, job: CurrentJob, error: BaseException) -> Outcome | None:
        """A dead letter whose handler failed is gone all the same; one that could not be moved is tried again."""
        if job._lane.letters == "moved":
            log.warning("%s: %s could not be moved: %s", spoken(job._lane.queue), job.id, verdict.describe(error))
            self._tell(job, error)
            job._lane.handed_back.append(job._ref)
            return None
        trace = (type(error), error, verdict.users_part(error.__traceback__))
        what, said = spoken(job._lane.queue), verdict.describe(error)
        if isinstance(error, InvalidArguments):
            log.error("%s: %s cannot be read, and stays in the list: %s", what, job.id, said)
            self._tell(job, error)
            return Outcome(Kind.DEAD, job._ref, job.id)
        log.error("the handler of %s failed; %s is gone: %s: %s", what, job.id, type(error).__name__, said, exc_info=trace)
        self._tell(job, error)
        return Outcome(DONE, job._ref, job.id)

    # -- what can never run ------------------------------------------------------------------------------------------------

    def _foreign(self, lane: Lane, entry: Entry) -> Message | None:
        """What another program wrote, as a message, where that is asked for; None: it is none."""
        if entry.body is not None or lane.foreign is None:
            return None
        try:
            payload = lane.foreign(entry.raw)
        except Exception as error:  # whatever bytes can provoke
            log.debug("the fields of entry %r cannot be read: %s", entry.ref, error)
            return None
        name = entry_name(entry.ref).removeprefix("L")
        topic, _ = split_address(lane.queue) or (lane.queue, "")
        ms = int(name.partition("-")[0])
        return Message(name, topic, msgspec.Raw(payload), ms if ms < NO_MOMENT_MS else 0)

    def _malformed(self, lane: Lane, entry: Entry, error: Exception) -> Outcome:
        body = entry.raw if entry.body is None else entry.body
        why = "its fields are not a Millstream message" if entry.body is None else f"its body does not decode: {error}"
        ends = "passed over" if lane.broadcast else "dead"
        log.error("entry %s of queue %r is %s, malformed: %s", entry_name(entry.ref), lane.queue, ends, why)
        outcome = verdict.malformed(entry.ref, body, why, entry.crashes)
        if self._reporter.observed:
            malformed = MalformedEntry(why)
            malformed.__cause__ = error
            self._reporter.tell("decode", lane.queue, malformed, job_id=outcome.id)
        return outcome

    def _unfit(self, lane: Lane, entry: Entry, message: Message, task: Handler | None, now_ms: int) -> Outcome | None:
        """Why this message must not run here and now, as an outcome; None if it may."""
        ttl = self._settings.result_ttl if task is None else task.settings.result_ttl
        if message.overrides is not None and message.overrides.result_ttl is not None:
            ttl = message.overrides.result_ttl
        if entry.expires_ms and entry.expires_ms <= now_ms and lane.keeps_expired:
            why = ErrorNote("Expired", f"it expired {(now_ms - entry.expires_ms) / 1000:.1f} s before it could be handled")
            log.error("event %s (group %r) is dead, expired: %s", message.id, lane.queue, why.message)
            tried = msgspec.structs.replace(message, attempt=message.attempt - 1)
            return verdict.dead(entry.ref, tried, "expired", why, entry.crashes, ttl)
        if entry.expires_ms and entry.expires_ms <= now_ms:
            log.info("%s has expired", _named(lane, message))
            ending = encode_ending(Ending("expired", task=message.task, ttl=ttl, enqueued_ms=message.enqueued_ms))
            return Outcome(Kind.EXPIRED, entry.ref, message.id, ending if ttl > 0 else None, ttl, message.given_id)
        if task is None:
            return self._unknown(lane, entry, message, now_ms, ttl)
        size, limit = len(bytes(message.args)), task.settings.max_payload_bytes
        if limit is not None and size > limit:
            why = ErrorNote("PayloadTooLarge", f"its arguments take {size:,} bytes, more than max_payload_bytes={limit:,}")
            ends = "passed over" if lane.broadcast else "dead"
            log.error("%s is %s, oversize: %s", _named(lane, message), ends, why.message)
            self._tell_of(lane, message, PayloadTooLarge(why.message))
            return verdict.dead(entry.ref, message, "oversize", why, entry.crashes, ttl)
        if entry.crashes > task.settings.max_crashes:
            why = ErrorNote(
                "WorkerCrashed",
                f"{entry.crashes} worker processes died while running it; max_crashes={task.settings.max_crashes}",
            )
            log.error("%s is dead, crashed: %s", _named(lane, message), why.message)
            self._tell_of(lane, message, WorkerCrashed(why.message))
            return verdict.dead(entry.ref, message, "crashed", why, entry.crashes, ttl)
        if entry.crashes:
            self._taken_over += 1
            if self._reporter.observed:
                nth = f"crash {entry.crashes} of at most {task.settings.max_crashes}"
                died = f"the worker that held it died or was cut off, {nth}; it is claimed again"
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
            why = ErrorNote(
                "UnknownTask", f"no worker that served queue {lane.queue!r} for {grace:g} s knows task {message.task!r}"
            )
            log.error("job %s is dead, unknown_task: %s", message.id, why.message)
            self._tell_of(lane, message, UnknownTask(why.message))
            return verdict.dead(entry.ref, message, "unknown_task", why, entry.crashes, ttl)
        if not message.unknown_since_ms:
            log.warning(
                "job %s is of task %r, which this worker does not know; it is put off for up to %g s. "
                "Is the task imported (include=…), or does another app serve queue %r?",
                message.id,
                message.task,
                grace,
                lane.queue,
            )
            unknown = f"this worker knows no task {message.task!r}; the job is put off for up to {grace:g} s"
            self._tell_of(lane, message, UnknownTask(unknown))
        delay = min(PUT_OFF_MOST, max(PUT_OFF_FIRST, (now_ms - since) / 4000), max(0.05, grace / 10))
        return verdict.retry(entry.ref, message, delay, entry.expires_ms, unknown_since_ms=since)


def longest_timeout(handlers: Iterable[Handler], settings: AppSettings) -> float:
    """How long a job may run unless its call says otherwise; 0: for ever."""
    timeouts = [handler.settings.timeout for handler in handlers]
    return 0.0 if 0.0 in timeouts else max(timeouts, default=settings.timeout)


def _done_tail(task: str, ttl: float) -> bytes:
    return _encode(None) + _encode(task) + _encode(ttl)


def _without_frames(error: BaseException) -> BaseException:
    """The like of an error that can be kept: its own frames hold the delivery, which may be dropped now."""
    try:
        return copy.copy(error)
    except Exception:  # one that cannot be made again
        return MillstreamError(f"{type(error).__name__}: {verdict.describe(error)}")


def _named(lane: Lane, message: Message) -> str:
    """For the log."""
    if lane.handler is None:
        return f"job {message.id} (task {message.task!r})"
    return f"event {message.id} ({spoken(lane.queue)})"


def _after_crashes(message: Message, crashes: int) -> Message:
    """The message with its crashes since the last attempt that ended, as one failed attempt."""
    died = (
        "the worker that held it died or was cut off"
        if crashes == 1
        else f"{crashes} workers that held it died or were cut off"
    )
    return verdict.with_failure(message, "WorkerCrashed", died, time.time(), "")


def _forget(lane: Lane, outcome: Outcome) -> None:
    """What was broadcast and cannot run here is nobody's to settle; it was logged."""


def _call(job: CurrentJob | BatchRun) -> Any:
    """Runs in a thread."""
    if isinstance(job, BatchRun):
        value = job.call()
    else:
        args, kwargs = job._task.arguments.decode(job._message.args)
        value = job._task.fn(*args, **kwargs)
    if value.__class__ is CoroutineType:
        value.close()
        raise TypeError("a plain function returned a coroutine, which nobody would run: declare it with `async def`")
    return value


def _result_ttl(job: CurrentJob) -> float:
    overrides = job._message.overrides
    if overrides is not None and overrides.result_ttl is not None:
        return overrides.result_ttl
    return job._task.settings.result_ttl
