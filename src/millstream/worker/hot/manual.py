"""Deliveries that are acknowledged manually (``ack="manual"``).

Such a delivery may outlive its handler. It occupies the handler's slot until it ends.
"""

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
    """Runs handlers with manual acknowledgement and ends their deliveries.

    A delivery ends at its ack, nack or retry, when it is dropped, at its timeout, or when the worker stops.
    """

    def __init__(self, runner: Runner, loop: asyncio.AbstractEventLoop, lease: float) -> None:
        self._runner = runner
        self._loop = loop
        self._lease = lease

    async def run(self, job: InFlight) -> None:
        """Run one handler, in an asyncio task of its own."""
        set_current_job(job)
        error: BaseException | None = None
        args: tuple[Any, ...] = ()
        try:
            args, kwargs = job.handler.decode(job.message.args)
            await job.handler.call(*args, **kwargs)
        except BaseException as raised:
            error = raised
        finally:
            args = ()  # code that keeps the error also keeps this frame, and the frame must not keep the delivery alive
            self.returned(job, ASYNC, error)
            error = None  # breaks the cycle between the error and this frame

    def returned(self, job: InFlight, kind: int, error: BaseException | None) -> None:
        """Called when the handler has ended. Its delivery may still be open."""
        runner = self._runner
        if job.stop and job.said is None and error is None:
            error = asyncio.CancelledError()  # the handler returned, but that does not acknowledge its delivery
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
        if job.said is not None or job.over:  # set by another thread, which may not have seen that the delivery is open
            self.end(job)

    def told(self, job: InFlight) -> None:
        """Called, from any thread, when the delivery was acknowledged or dropped."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the worker
            self._loop.call_soon_threadsafe(self.end, job)

    def end(self, job: InFlight) -> None:
        """End an open delivery whose handler has ended."""
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
        why = "its delivery was dropped before ack(), nack() or retry() was called; it is redelivered after the lease time"
        return self._runner.judge.failed(job, Retry(why, delay=self._lease))
