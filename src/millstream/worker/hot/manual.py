"""Deliveries whose handlers own their end: one may outlive its handler, and keeps the handler's slot until it has ended."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from millstream.errors import Retry
from millstream.jobs.current import set_current_job
from millstream.model.invalid import InvalidArguments
from millstream.model.outcome import Outcome
from millstream.worker.hot.hold import ASYNC, THREAD
from millstream.worker.hot.in_flight import InFlight

if TYPE_CHECKING:
    from millstream.worker.hot.runner import Runner


class Manual:
    """Runs such handlers, and ends their deliveries: when they say how, are dropped, run out of time, or the worker stops."""

    def __init__(self, runner: Runner, loop: asyncio.AbstractEventLoop, lease: float) -> None:
        self._runner = runner
        self._loop = loop
        self._lease = lease

    async def run(self, job: InFlight) -> None:
        """One handler, as an asyncio task."""
        set_current_job(job)
        error: BaseException | None = None
        args: tuple[Any, ...] = ()
        try:
            args, kwargs = job.handler.decode(job.message.args)
            await job.handler.call(*args, **kwargs)
        except BaseException as raised:
            error = raised
        finally:
            args = ()  # whoever keeps the error keeps this frame, and it must not keep the delivery
            self.returned(job, ASYNC, error)
            error = None  # nor they each other

    def returned(self, job: InFlight, kind: int, error: BaseException | None) -> None:
        """The handler has ended; its delivery may not have."""
        runner = self._runner
        if job.stop and job.said is None and error is None:
            error = asyncio.CancelledError()  # it returned, and that says nothing about its delivery
        if job.said is not None or job.stop or isinstance(error, InvalidArguments):
            job.over = True
            outcome = runner.judge.ended(job, None) if error is None else runner.judge.failed(job, error)
            runner.finish(job, kind, outcome)
            return
        if error is not None:
            runner.judge.reported(job, error)
        job.running = None
        job.open = True
        runner.opened(1)
        if job.said is not None or job.over:  # by another thread, which may not have seen that it is open
            self.end(job)

    def told(self, job: InFlight) -> None:
        """Its delivery was told how it ends, or dropped: from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the worker
            self._loop.call_soon_threadsafe(self.end, job)

    def end(self, job: InFlight) -> None:
        """End a delivery whose handler has ended."""
        if not job.open:
            return
        job.open = False
        job.over = True
        self._runner.opened(-1)
        self._runner.finish(job, ASYNC if job.handler.is_async else THREAD, self._outcome(job))

    def _outcome(self, job: InFlight) -> Outcome | None:
        if job.stop:
            return self._runner.judge.failed(job, asyncio.CancelledError())
        if job.said is not None:
            return self._runner.judge.ended(job, None)
        why = "its delivery was dropped before ack(), nack() or retry(); it comes back after the lease"
        return self._runner.judge.failed(job, Retry(why, delay=self._lease))
