"""The runner: turns claimed messages into running jobs, and ended jobs into outcomes."""

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
"""The part of a lease that is always left just before its next renewal."""

_NEVER = float("inf")


class Runner:
    """Starts jobs while slots are free, buffers a few jobs that wait for a slot, and passes outcomes to the settler."""

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
        """Size in bytes up to which a body is within every task's limit."""
        self._longest = longest_timeout(handlers, settings)
        self._longer = longer
        """Called with the timeout of a job that may run longer than any job before it."""
        self.trusted = TRUSTED * settings.lease
        """Seconds after a claim for which this worker's lease on the claimed messages is certain."""
        self.receipts = Receipts(settler, self._loop)
        self._batches = Batches(self, hold, self._loop)
        self.manual = Manual(self, self._loop, settings.lease)

    def know(self, handler: Handler) -> None:
        """Take the limits of one more handler into account."""
        limit = handler.settings.max_payload_bytes
        self._look_closer_at = min(self._look_closer_at, _NEVER if limit is None else limit)
        self._may_run(handler.settings.timeout)

    def _may_run(self, timeout: float) -> None:
        """Report a timeout that is longer than all before. 0 means no timeout."""
        if self._longer is not None and self._longest and (timeout > self._longest or not timeout):
            self._longest = timeout
            self._longer(timeout)

    def accept(self, lane: Lane, claim: Claim, *, alone: bool = False) -> None:
        """Hot. Start or buffer claimed messages. Messages that can never run are settled immediately.

        ``alone`` starts a message although no other message may start now. The refs of messages that must not be buffered are
        left in ``lane.handed_back``.
        """
        hold, tasks, add = self._hold, self._prepared, _forget if lane.broadcast else self._settler.add
        handler, broadcast = lane.handler, lane.broadcast
        now = self._loop.time()
        limit = self._look_closer_at
        threads = 0
        for entry in claim.entries:
            try:
                message = decode_message(entry.body)  # type: ignore[arg-type]
            except Exception as error:  # any error that bytes can cause, such as a RecursionError for deep nesting
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
                job.said = SETTLED  # a broadcast is never settled
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
                lane.handed_back.append(entry.ref)  # at most once: a crash would make a buffered job dead although it never ran
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
            lane.kinds = (ASYNC, THREAD)  # a call may choose a queue other than its task's default
        if self._screener.taken_over:
            count, self._screener.taken_over = self._screener.taken_over, 0
            log.warning(
                "queue %r: jobs claimed again because their workers died or lost the connection to the server: %d",
                lane.queue,
                count,
            )

    def _declared_since(self, name: str) -> Prepared | None:
        """Return a task that the app declared after the worker was created, or None if there is no such task."""
        task = self._tasks.get(name)
        if task is None:
            return None
        self._prepared[name] = prepared = prepare(task)
        return prepared

    def kind_of(self, lane: Lane, entry: Entry) -> int | None:
        """Return the kind of slot that an entry needs, or ``None`` if it needs no slot because it cannot run here."""
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
        """Start buffered jobs while slots are free."""
        hold = self._hold
        self._batches.pump()
        for kind in (ASYNC, THREAD):
            while hold.ready[kind] and hold.free[kind] > 0 and not hold.shut:
                hold.free[kind] -= 1
                self._start(hold.ready[kind].popleft(), kind)

    def stop_job(self, job: InFlight, why: str) -> None:
        """Ask a running job to stop. A coroutine is cancelled; a thread can only check ``current_job().cancelled``."""
        if why == FENCED or not job.stop:
            job.stop = why
        if job.running is not None:
            # Later, after the task's first step: a task that is cancelled before it never runs the code that frees its slot.
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
            # Hot: no done-callback and no timer per job. Measured: both halve the rate.
            job.running = self._loop.create_task(self._run(job))
        elif lane.acks_first:
            job.running = self._loop.create_task(self._receive(job, kind))
        elif kind == ASYNC:
            job.running = self._loop.create_task(self.manual.run(job))
        else:
            self._submit(job)

    def _doubt(self, job: InFlight, kind: int) -> None:
        """Drop a job that was buffered for too long.

        A buffered job normally starts or is released within a moment. If it did not, this process was suspended, and another
        worker may have taken the job over. The claimer asks the server before it starts the job.
        """
        lane = job.lane
        lane.doubtful = True
        if lane.limit is not None:
            lane.active -= 1
        self._hold.free[kind] += 1
        self.slot_freed()
        self._loop.call_soon(self.pump)  # the jobs buffered behind it may belong to another lane

    def stood_still(self, lane: Lane) -> bool:
        """Return whether this process was suspended since the last tick.

        If so, drop the messages that the lane has gathered for a batch. The claimer asks the server whether they are still
        ours.
        """
        if self._loop.time() - self._hold.ticked <= self.trusted:
            return False
        lane.gathered.clear()
        lane.doubtful = True
        self._hold.freed()
        return True

    def _submit(self, job: InFlight) -> None:
        try:
            self.threads.submit(job)
        except RuntimeError as error:  # no thread can be started: a failed attempt, and the slot becomes free
            self._loop.call_soon(self.finish, job, THREAD, self.judge.failed(job, error))

    async def _receive(self, job: InFlight, kind: int) -> None:
        """Acknowledge, then run. An event that does not decode never reaches its handler and is not acknowledged here."""
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
        """Hot. Run one job in its own asyncio task, so that it has its own context variables."""
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
        """Hot. Pass the outcome to the settler. The slot goes to the next buffered job, or becomes free."""
        hold = self._hold
        hold.running.discard(job)
        lane = job.lane
        if lane.limit is not None:
            lane.active -= 1
            hold.freed()
        job.running = None  # breaks the cycle of task, context and job, which would otherwise wait for the garbage collector
        if outcome is not None:
            self._settler.add(lane, outcome)
        elif lane.watched and job.said is not SETTLED:
            lane.unwatch(LeaseLost(f"{job!r} was released, or another worker has taken it over"), (job.ref,))
        ready = hold.ready[kind]
        if ready and not hold.shut:
            self._start(ready.popleft(), kind)
            if len(ready) <= hold.low[kind]:
                hold.freed()
        else:
            hold.free[kind] += 1
            self.slot_freed()

    def slot_freed(self) -> None:
        """Called when a slot became free and no buffered job took it. Starts waiting batches and wakes claimers."""
        hold = self._hold
        self._batches.pump()
        hold.freed()
        if len(hold.running) <= hold.open:
            hold.quiet.set()

    def opened(self, count: int) -> None:
        """Add ``count`` (negative: subtract) to the number of open deliveries whose handlers have ended."""
        self._hold.open += count
        self._hold.freed()
        if len(self._hold.running) <= self._hold.open:
            self._hold.quiet.set()

    def end_together(self, jobs: Sequence[InFlight], kind: int, error: BaseException | None) -> None:
        """End the jobs of a batch, each with its own ack, nack or retry, or else with the outcome of the whole batch."""
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
        """Fail one job of a batch because its event does not decode. The other jobs run."""
        outcome = self.judge.failed(job, error)
        if outcome is not None:
            self._settler.add(job.lane, outcome)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which outcomes are settled."""
        return self._loop

    def runs(self, job: InFlight) -> bool:
        """Return whether the job's handler is still running."""
        return job in self._hold.running and not job.open

    def holds(self, job: InFlight) -> bool:
        """Return whether the job's outcome is not on the server yet. Raises LeaseLost or another BrokerError if it never will
        be."""
        if job.stop == FENCED:
            raise LeaseLost(f"this worker lost its lease, and another worker may run {job!r} now")
        if job.ref in job.lane.lost:
            raise job.lane.lost[job.ref]
        if job in self._hold.running and job.said is not SETTLED:
            return True
        return any(outcome.ref == job.ref for outcome in (*job.lane.settling, *job.lane.outcomes))

    def settle_now(self, job: InFlight) -> None:
        """Settle the ack, nack or retry of a handler that is still running."""
        outcome = self.judge.as_said(job)
        if outcome is not None:
            self._settler.add(job.lane, outcome)
            job.said = SETTLED


def longest_timeout(handlers: Iterable[Handler], settings: AppSettings) -> float:
    """Return the longest default timeout of these handlers in seconds. 0 means that a job may run without a limit."""
    timeouts = [handler.settings.timeout for handler in handlers]
    return 0.0 if 0.0 in timeouts else max(timeouts, default=settings.timeout)


def _forget(lane: Lane, outcome: Outcome) -> None:
    """Used instead of ``Settler.add`` for broadcast events that cannot run here: they are logged, and never settled."""


def _call(job: InFlight | BatchRun) -> Any:
    """Decode the arguments and call the handler, in a thread."""
    if isinstance(job, BatchRun):
        value = job.call()
    else:
        args, kwargs = job.handler.decode(job.message.args)
        value = job.handler.call(*args, **kwargs)
    if value.__class__ is CoroutineType:
        value.close()
        raise TypeError("a plain function returned a coroutine, which is never awaited: declare the function with `async def`")
    return value
