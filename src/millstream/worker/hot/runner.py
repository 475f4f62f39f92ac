"""The runner: claimed messages become jobs, jobs become outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from millstream.broker import Claim, Entry, EntryLocation
from millstream.errors import LeaseLost
from millstream.jobs.current import set_current_job
from millstream.model.handler import Handler
from millstream.model.invalid import InvalidArguments, InvalidResult
from millstream.model.message import decode_message
from millstream.model.outcome import SETTLED, Outcome
from millstream.model.settings import AppSettings
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker.hot.batches import Batches, BatchRun
from millstream.worker.hot.hold import ASYNC, THREAD, Hold
from millstream.worker.hot.in_flight import FENCED, InFlight
from millstream.worker.hot.judging import Judge
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.manual import Manual
from millstream.worker.hot.prepared import Prepared, prepare
from millstream.worker.hot.receipts import Receipts
from millstream.worker.hot.screening import Screener, after_crashes
from millstream.worker.hot.settler import Settler
from millstream.worker.hot.threads import Threads

if TYPE_CHECKING:
    from millstream.events.subscription import Subscription

log = logs.logger("millstream.worker")

TRUSTED = 2 / 3
"""What part of a lease is left, at the least, when it was last renewed."""

_NEVER = float("inf")


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
        locate: Callable[[bytes], EntryLocation],
        longer: Callable[[float], None] | None = None,
    ) -> None:
        self._tasks = tasks
        self._prepared = {name: prepare(task) for name, task in tasks.items()}
        self._settings = settings
        self._hold = hold
        self._settler = settler
        self._reporter = reporter
        self._loop = asyncio.get_running_loop()
        self._screener = Screener(settings, reporter, locate)
        self.judge = Judge(settler, reporter)
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
        hold, tasks, add = self._hold, self._prepared, _forget if lane.broadcast else self._settler.add
        handler, broadcast = lane.handler, lane.broadcast
        now = self._loop.time()
        limit = self._look_closer_at
        threads = 0
        for entry in claim.entries:
            try:
                message = decode_message(entry.body)  # type: ignore[arg-type]
            except Exception as error:  # whatever bytes can provoke: deep nesting is a RecursionError
                found = self._screener.foreign(lane, entry)
                if found is None:
                    add(lane, self._screener.malformed(lane, entry, error))
                    continue
                message = found
            task = handler or tasks.get(message.task) or self._declared_since(message.task)
            if task is None or entry.crashes or entry.expires_ms or len(entry.body or entry.raw) > limit:
                if entry.crashes:
                    message = after_crashes(message, entry.crashes)
                outcome = self._screener.unfit(lane, entry, message, task, claim.now_ms)
                if outcome is not None:
                    add(lane, outcome)
                    continue
                assert task is not None
            job = InFlight(lane, entry.ref, message, task, entry.crashes, entry.expires_ms, now)
            if broadcast:
                job.said = SETTLED  # nobody settles it
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
        if self._screener.taken_over:
            count, self._screener.taken_over = self._screener.taken_over, 0
            log.warning("queue %r: %d jobs are claimed again, whose workers died or were cut off", lane.queue, count)

    def _declared_since(self, name: str) -> Prepared | None:
        """A task that the app declared after the worker was made."""
        task = self._tasks.get(name)
        if task is None:
            return None
        self._prepared[name] = prepared = prepare(task)
        return prepared

    def kind_of(self, lane: Lane, entry: Entry) -> int | None:
        """The kind of slot that an entry needs, or ``None`` if it needs no slot because it cannot run here."""
        handler = lane.handler
        if handler is None:
            try:
                handler = self._prepared.get(decode_message(entry.body).task)  # type: ignore[arg-type]
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

    def stop_job(self, job: InFlight, why: str) -> None:
        """Tell a running job to stop; a coroutine is cancelled, a thread can only look at ``current_job().cancelled``."""
        if why == FENCED or not job.stop:
            job.stop = why
        if job.running is not None:
            # Not before its first step: a task that is cancelled earlier never reaches the end that frees its slot.
            self._loop.call_soon(job.running.cancel)
        elif job.open:
            self.manual.end(job)

    def close(self) -> None:
        """Let idle threads end."""
        self.threads.close()

    def _start(self, job: InFlight, kind: int) -> None:
        hold, lane = self._hold, job.lane
        now = self._loop.time()
        if now - job.since > self.trusted and not lane.broadcast:
            self._doubt(job, kind)
            return
        hold.started[kind] += 1
        hold.running.add(job)
        message = job.message
        timeout = job.handler.settings.timeout
        if message.overrides is not None and message.overrides.timeout is not None:
            timeout = message.overrides.timeout
            self._may_run(timeout)
        job.since = now
        job.ends = now + timeout if timeout else _NEVER
        if kind == ASYNC and not lane.special:
            # Hot: no done-callback, no timer per job; both were measured to halve the rate.
            job.running = self._loop.create_task(self._run(job))
        elif lane.acks_first:
            job.running = self._loop.create_task(self._receive(job, kind))
        elif kind == ASYNC:
            job.running = self._loop.create_task(self.manual.run(job))
        else:
            self._submit(job)

    def _doubt(self, job: InFlight, kind: int) -> None:
        """What is buffered starts or is handed back within a moment. If it did not, this process stood still, and others may
        have taken it over: its claimer asks the server before it starts."""
        lane = job.lane
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

    def _submit(self, job: InFlight) -> None:
        try:
            self.threads.submit(job)
        except RuntimeError as error:  # no thread can be started: a failed attempt, and the slot comes free
            self._loop.call_soon(self.finish, job, THREAD, self.judge.failed(job, error))

    async def _receive(self, job: InFlight, kind: int) -> None:
        """Acknowledge, then run. An event that does not decode never reaches its handler, so it is not acknowledged either."""
        try:
            cast("Subscription", job.handler.handler).arguments.event(job.message.args)
            await self.receipts.acknowledge((job,))
        except BaseException as error:
            self.finish(job, kind, self.judge.failed(job, error))
            return
        if kind == ASYNC:
            await self._run(job)
        else:
            job.running = None
            self._submit(job)

    async def _run(self, job: InFlight) -> None:
        """Hot. One job in its own asyncio task, so that context variables are its own."""
        set_current_job(job)
        task = job.handler
        outcome: Outcome | None = None
        try:
            args, kwargs = task.decode(job.message.args)
            value = await task.call(*args, **kwargs)
            outcome = self.judge.ended(job, value) if job.stop or job.said else self.judge.done(job, value)
        except BaseException as error:
            outcome = self.judge.failed(job, error)
        finally:
            self.finish(job, ASYNC, outcome)

    def _thread_returned(self, job: InFlight | BatchRun, value: Any, error: BaseException | None) -> None:
        if isinstance(job, BatchRun):
            self.end_together(job.jobs, THREAD, error)
            return
        if job.lane.manual:
            self.manual.returned(job, THREAD, error)
            return
        outcome: Outcome | None
        try:
            if error is not None:
                outcome = self.judge.failed(job, error)
            else:
                outcome = self.judge.ended(job, value) if job.stop or job.said else self.judge.done(job, value)
        except InvalidResult as unfit:
            outcome = self.judge.failed(job, unfit)
        self.finish(job, THREAD, outcome)

    def finish(self, job: InFlight, kind: int, outcome: Outcome | None) -> None:
        """Hot. Hand over the outcome; the slot goes to the next in the buffer, or is free."""
        hold = self._hold
        hold.running.discard(job)
        lane = job.lane
        if lane.limit is not None:
            lane.active -= 1
            hold.freed()
        job.running = None  # task, context and job would keep each other alive until the garbage collector finds them
        if outcome is not None:
            self._settler.add(lane, outcome)
        elif lane.watched and job.said is not SETTLED:
            lane.unwatch(LeaseLost(f"{job!r} was handed back, or belongs to others now"), (job.ref,))
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

    def end_together(self, jobs: Sequence[InFlight], kind: int, error: BaseException | None) -> None:
        """A batch has ended: each of it as it said, or as all did."""
        lane = jobs[0].lane
        if lane.limit is not None:
            lane.active -= 1
        for number, job in enumerate(jobs):
            self._hold.running.discard(job)
            job.running = None
            outcome: Outcome | None
            if error is not None:
                outcome = self.judge.failed(job, error, quietly=number > 0)
            else:
                outcome = self.judge.ended(job, None) if job.stop or job.said else self.judge.done(job, None)
            if outcome is not None:
                self._settler.add(lane, outcome)
        self._hold.free[kind] += 1
        self.pump()
        self.slot_freed()

    def cannot_run(self, job: InFlight, error: InvalidArguments) -> None:
        """One of a batch whose event does not decode; the others go on."""
        outcome = self.judge.failed(job, error)
        if outcome is not None:
            self._settler.add(job.lane, outcome)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where outcomes are settled."""
        return self._loop

    def runs(self, job: InFlight) -> bool:
        """Whether its handler has not ended."""
        return job in self._hold.running and not job.open

    def holds(self, job: InFlight) -> bool:
        """Whether its end is not on the server yet. Raises why it never will be, if that is so."""
        if job.stop == FENCED:
            raise LeaseLost(f"{job!r} belongs to others now: this worker had lost its lease")
        if job.ref in job.lane.lost:
            raise job.lane.lost[job.ref]
        if job in self._hold.running and job.said is not SETTLED:
            return True
        return any(outcome.ref == job.ref for outcome in (*job.lane.settling, *job.lane.outcomes))

    def settle_now(self, job: InFlight) -> None:
        """Settle what a handler has said although it still runs."""
        outcome = self.judge.as_said(job)
        if outcome is not None:
            self._settler.add(job.lane, outcome)
            job.said = SETTLED


def longest_timeout(handlers: Iterable[Handler], settings: AppSettings) -> float:
    """How long a job may run unless its call says otherwise; 0: for ever."""
    timeouts = [handler.settings.timeout for handler in handlers]
    return 0.0 if 0.0 in timeouts else max(timeouts, default=settings.timeout)


def _forget(lane: Lane, outcome: Outcome) -> None:
    """What was broadcast and cannot run here is nobody's to settle; it was logged."""


def _call(job: InFlight | BatchRun) -> Any:
    """Runs in a thread."""
    if isinstance(job, BatchRun):
        value = job.call()
    else:
        args, kwargs = job.handler.decode(job.message.args)
        value = job.handler.call(*args, **kwargs)
    if value.__class__ is CoroutineType:
        value.close()
        raise TypeError("a plain function returned a coroutine, which nobody would run: declare it with `async def`")
    return value
