"""The Worker: starts and stops the claimers, runner, settler and services of one process together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from millstream._version import __version__
from millstream.aio.backoff import START_SECONDS, patiently
from millstream.broker import Broker, WorkerInfo
from millstream.errors import BrokerError, BrokerUnavailable
from millstream.events.subscription import Subscription
from millstream.jobs.task import Task
from millstream.model.address import Address
from millstream.model.handler import Handler
from millstream.model.serving import Serving
from millstream.reporting import logs
from millstream.reporting.problem import During
from millstream.reporting.reporter import Reporter
from millstream.worker.assignment import Assignment
from millstream.worker.drain import Drain
from millstream.worker.hot.claimer import Claimer
from millstream.worker.hot.follower import Follower
from millstream.worker.hot.hold import STOPPING, Hold
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.runner import Runner
from millstream.worker.hot.settler import Settler
from millstream.worker.lanes import full_addresses, lanes_of, make_lanes
from millstream.worker.leases import LeaseKeeper, Leases
from millstream.worker.services import keep_running
from millstream.worker.services.discovery import Discovery
from millstream.worker.services.keeper import KeeperThread
from millstream.worker.services.ownership import Ownership
from millstream.worker.services.registrar import Registrar
from millstream.worker.services.ticker import Ticker
from millstream.worker.services.watch import Watch
from millstream.worker.summary import Summary
from millstream.worker.suspects import Suspects

log = logs.logger("millstream.worker")

TASKS_TOLD = 500
"""Maximum number of tasks that a worker lists in the registry. With more it lists none, so that its registration stays
small."""

IDLE_SECONDS = 0.05
"""Seconds between two checks of ``until_idle``."""

UNTIL_THEY_END = 10 * 365 * 86_400.0
"""A practically unlimited grace period, in seconds that every event loop supports."""

LAST_WORDS_SECONDS = 5.0
"""Seconds after the grace period for cancelled coroutines to end, and for outcomes to reach the server."""


class KeeperDied(Exception):
    """The thread or supervisor that renews this worker's leases has died."""


class Worker:
    """Serves queues until it is stopped. A worker is started and stopped once.

    ``isolate`` is called with a queue that has suspects, and runs them in a separate process. Without it, this worker drains
    and runs the suspects alone, one at a time. ``longer`` is called with a timeout that exceeds those of all tasks.
    ``supervisor`` is the id of this worker's supervisor, or empty if it has none.
    """

    def __init__(
        self,
        broker: Broker,
        keeper: LeaseKeeper,
        assignment: Assignment,
        *,
        isolate: Callable[[Address], None] | None = None,
        longer: Callable[[float], None] | None = None,
        supervisor: str = "",
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.failed = asyncio.Event()
        """Set when the worker has failed. ``error`` says why."""
        self.error: BaseException | None = None
        self._broker = broker
        self._keeper = keeper
        self._assignment = assignment
        self._tasks = _told(assignment.tasks)
        self._supervisor = supervisor
        self._started_at = time.time()
        queues, settings, subscriptions = assignment.queues, assignment.settings, assignment.subscriptions
        self._lanes, shared_addresses = lanes_of(assignment)
        self._hold = Hold(assignment.concurrency, assignment.threads, asyncio.get_running_loop().time)
        self._reporter = reporter = Reporter(assignment.observers, log, worker=self.id)
        keeper.report_to(reporter)
        self._settler = Settler(broker, self._hold, self._lanes, reporter, self._fenced)
        handlers: list[Handler] = [*subscriptions.values(), *assignment.broadcasts]
        self._runner = Runner(assignment.tasks, handlers, settings, self._hold, self._settler, reporter, broker.locate, longer)
        self._leases = Leases(self.id, settings.lease, broker, keeper, self._hold, self._runner, self._settler, reporter)
        self._claimers: list[Claimer] = []
        self._suspects = Suspects(
            broker, self._hold, self._runner, self._settler, self._claimers, reporter, fenced=self._fenced, isolate=isolate
        )
        self._claimers += [self._claimer(lane) for lane in self._lanes]
        self._ownership = Ownership(self.id, self._leases, self._hold, shared_addresses)
        self._ownership.know(self._claimers)
        prefixes = [assignment.prefixes[queue] for queue in queues if queue in assignment.prefixes]
        self._discovery = Discovery(broker, prefixes, self._serve_too, subscriptions)
        self._followers = [
            Follower(broker, broadcast, self._hold, self._runner, reporter)
            for broadcast in assignment.broadcasts
            if broadcast.address in queues
        ]
        self._registrar = Registrar(broker, self._info, reporter)
        self._ticker = Ticker(self._hold, self._runner, self._lanes, self._claimers, reporter, self._ticked)
        self._drain = Drain(self._hold, self._runner, self._settler)
        self._claiming: list[asyncio.Task[None]] = []
        self._following: list[asyncio.Task[None]] = []
        self._services: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Task[Summary] | None = None
        self._stack = AsyncExitStack()
        self._watch: Watch | None = None
        self._state: Any = None
        self._claims = False

    @property
    def first_error(self) -> BaseException | None:
        """The first error of the worker itself, of settling an outcome, or of a handler whose job is not retried."""
        return self._settler.first_error or self.error

    @property
    def lease(self) -> float:
        """Seconds for which a lease is valid without a renewal."""
        return self._assignment.settings.lease

    @property
    def totals(self) -> Mapping[str, int]:
        """Number of outcomes that this worker settled as done, retried and dead, and of those that the server refused."""
        return self._settler.totals

    @property
    def held(self) -> int:
        """Number of messages that the worker holds: running, buffered or unsettled."""
        hold = self._hold
        waiting = sum(map(len, hold.ready)) + sum(len(lane.gathered) + len(lane.handed_back) for lane in self._lanes)
        return len(hold.running) + waiting + hold.unsettled

    @property
    def interrupted(self) -> int:
        """Number of handlers that the shutdown interrupted. Known as soon as the worker has stopped, even while the lifespan is
        still being left."""
        stopping = self._stopping
        ended = stopping is not None and stopping.done() and not stopping.cancelled() and stopping.exception() is None
        return stopping.result().interrupted if stopping is not None and ended else 0

    def retire(self) -> bool:
        """Stop claiming if the worker holds no message, and return True; ``stop`` then does the rest. Otherwise change nothing
        and return False."""
        if self.held:
            return False
        self._hold.shut.add(STOPPING)
        return True

    async def start(self, *, claim: bool = True) -> None:
        """Enter the lifespan, take leases, and start claiming. With ``claim=False``, only ``run_suspects`` claims.

        If a step fails, the completed steps are undone and the error is raised.
        """
        try:
            await self._start(claim)
        except BaseException as error:
            if isinstance(error, Exception):
                self._reporter.tell("maintenance", None, error)
            await self.stop(0.0)
            raise

    async def _start(self, claim: bool) -> None:
        self._state = await self._stack.enter_async_context(self._assignment.lifespan())
        await self._keeper.start()
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        for lane in self._lanes:
            lane.state, lane.runner = self._state, self._runner
            if not claim:
                lane.max_consumers = None  # a worker that runs only suspects does not count towards the maximum
            if lane.max_consumers is None:
                await patiently(partial(self._leases.join, lane), deadline, self._missed)
        if claim:
            await patiently(self._ownership.look, deadline, self._missed)
        await patiently(self._discovery.look, deadline, self._missed)
        for follower in self._followers if claim else ():
            follower.lane.state, follower.lane.runner = self._state, self._runner
            await patiently(follower.begin, deadline, self._missed)
        await patiently(self._registrar.beat, deadline, self._missed)
        self._reporter.heal("read", None)
        self._watch = Watch(self._describe)
        self._hold.ticked = asyncio.get_running_loop().time()
        self._services = [
            self._serve("settler", self._settler.run, "settle"),
            self._serve("ticker", self._ticker.run, "maintenance"),
            self._serve("registrar", self._registrar.run, "maintenance"),
            self._serve("discovery", self._discovery.run, "maintenance"),
        ]
        if claim:
            self._services.append(self._serve("ownership", self._ownership.run, "maintenance"))
        self._claims = claim
        if claim:
            self._claiming = [self._begin_to_claim(claimer) for claimer in self._claimers]
            self._following = [
                self._serve("follower", follower.run, "read", follower.lane.queue) for follower in self._followers
            ]
        log.info(
            "worker %s serves %s with %d coroutines and %d threads on %s%s",
            self.id,
            ", ".join(self._served()),
            *self._hold.sizes,
            self._broker.capabilities.server or "memory",
            f" at {self._assignment.where}" if self._assignment.where else "",
        )

    def _missed(self, error: BrokerUnavailable) -> None:
        self._reporter.fail("read", None, error, "the worker could not start yet; trying again: %s", error)

    async def _serve_too(self, subscription: Subscription) -> None:
        """Serve a group that was discovered after the worker was created."""
        if STOPPING in self._hold.shut:
            return
        (lane,) = make_lanes(Serving(subscription.address), {}, subscription)
        self._runner.know(subscription)
        lane.state, lane.runner = self._state, self._runner
        await self._leases.join(lane)
        self._lanes.append(lane)  # from now on, the worker leaves this lane when it stops
        claimer = self._claimer(lane)
        self._claimers.append(claimer)
        if self._claims:
            self._claiming.append(self._begin_to_claim(claimer))

    def _begin_to_claim(self, claimer: Claimer) -> asyncio.Task[None]:
        return self._serve("claimer", claimer.run, "read", claimer.queue)

    def _serve(
        self, name: str, run: Callable[[], Awaitable[None]], during: During, address: Address | None = None
    ) -> asyncio.Task[None]:
        running = keep_running(name, run, self._reporter, during, address)
        return asyncio.create_task(running, name=f"millstream-{name}")

    def _served(self) -> list[str]:
        followed = {follower.lane.queue for follower in self._followers}
        broadcasts = [f"broadcast {follower.broadcast.name!r}" for follower in self._followers]
        return [*(queue.spoken for queue in self._assignment.queues if queue not in followed), *broadcasts]

    async def run_suspects(self) -> None:
        """Run the suspects of every queue, each alone, until none is left."""
        for lane in self._lanes:
            await self._suspects.run(lane)

    async def until_idle(self) -> None:
        """Wait until no job is ready or running on any queue, in this worker or another. Used by ``--burst``."""
        while True:
            for claimer in self._claimers:
                if not claimer.paused:
                    await claimer.empty.wait()
            with contextlib.suppress(BrokerUnavailable):  # it is unknown whether a job is left: check again
                if self._hold.idle and not await self._anything_left():
                    return
            await asyncio.sleep(IDLE_SECONDS)

    async def _anything_left(self) -> bool:
        states = [await self._broker.inspector.queue(lane.queue) for lane in self._lanes]
        return any((state.ready and not state.paused) or state.running for state in states)

    async def stop(self, grace: float) -> Summary:
        """Stop the worker and return its summary.

        The worker stops claiming, releases messages that have not started, and gives running jobs ``grace`` seconds to finish.
        It then cancels the remaining jobs and releases them without spending an attempt. Finally it settles all outcomes and
        gives up its leases. Broadcast events are dropped instead of released.

        Stopping always completes: cancelling the caller only ends the grace period. A second call waits for the same end. Call
        it from the task that called ``start``, because the lifespan must be left by the task that entered it.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace), name="millstream-stop")
        cancelled: asyncio.CancelledError | None = None
        while not self._stopping.done():
            try:
                await asyncio.wait([self._stopping])
            except asyncio.CancelledError as error:
                cancelled = error
                self.hurry()
        await self._stack.aclose()
        if cancelled is not None:
            raise cancelled
        return self._stopping.result()

    async def _stop(self, grace: float) -> Summary:
        hold = self._hold
        hold.shut.add(STOPPING)
        if self.error is not None:
            grace = min(grace, self.lease / 3)  # the leases are not renewed any more: end before they lapse
        if hold.running:
            patience = "until they end" if grace == UNTIL_THEY_END else f"at most {grace:g} s"
            log.info("worker %s is stopping: waiting for running jobs (%d), %s", self.id, len(hold.running), patience)
        drain = self._drain
        try:
            drain.stop_moves()
            await self._claim_no_more()
            await self._step(grace, drain.until_quiet())
            drain.interrupt()
            if drain.interrupted:
                await self._step(LAST_WORDS_SECONDS, hold.until_quiet())
            drain.abandon()
            await self._step(LAST_WORDS_SECONDS, self._settler.drained())
            await self._step(LAST_WORDS_SECONDS, self._leases.leave(self._lanes, {job.lane for job in drain.abandoned}))
            await self._step(LAST_WORDS_SECONDS, self._registrar.leave())
        finally:
            await self._end({job.lane for job in drain.abandoned})
        totals, interrupted = self._settler.totals, len(drain.interrupted)
        log.info(
            "worker %s stopped: %d done, %d retried, %d dead%s",
            self.id,
            totals["done"],
            totals["retried"],
            totals["dead"],
            f", {interrupted} interrupted" if interrupted else "",
        )
        if self._assignment.observers is not None:
            await self._assignment.observers.told()
        return Summary(dict(totals), interrupted, len(drain.abandoned), self.first_error)

    async def _claim_no_more(self) -> None:
        await self._step(LAST_WORDS_SECONDS, self._ownership.stop())
        for task in self._following:
            task.cancel()  # events that were read and have not started are dropped: a broadcast is not redelivered
        await self._step(LAST_WORDS_SECONDS, asyncio.gather(*self._following, return_exceptions=True))
        await asyncio.gather(*(self._step(LAST_WORDS_SECONDS, claimer.stop()) for claimer in self._claimers))
        await self._step(LAST_WORDS_SECONDS, asyncio.gather(*self._claiming, return_exceptions=True))
        for task in self._leases.rejoining:
            task.cancel()  # otherwise a lane might join again after the last lease was given up
        await asyncio.gather(*(self._step(LAST_WORDS_SECONDS, claimer.hand_back(0.0)) for claimer in self._claimers))

    async def _end(self, still_running: set[Lane]) -> None:
        """End the services. The keeper ends last, and not before an abandoned job has ended."""
        tasks = [*self._services, *self._claiming, *self._leases.rejoining]
        if self._ticker.handing_back is not None:
            tasks.append(self._ticker.handing_back)
        for task in tasks:
            task.cancel()
        await self._step(LAST_WORDS_SECONDS, asyncio.gather(*tasks, return_exceptions=True))
        if self._watch is not None:
            self._watch.stop()
        for lane in self._lanes:
            lane.unwatch(BrokerUnavailable(f"worker {self.id} stopped before the server stored all outcomes of {lane.queue!r}"))
        self._runner.close()
        lanes = [lane for lane in still_running if lane.consumer]
        if lanes and isinstance(self._keeper, KeeperThread):  # under a supervisor, the job ends with its process
            self._keeper.stop_after(self._leases.outlast(lanes))
        else:
            await self._step(LAST_WORDS_SECONDS, self._keeper.stop())

    async def _step(self, seconds: float, awaitable: Awaitable[Any]) -> None:
        """Run one step of stopping, for at most ``seconds``. If it fails, the next step runs nevertheless."""
        try:
            async with asyncio.timeout(seconds):
                await awaitable
        except TimeoutError:
            pass
        except BrokerError as error:
            text = "a step of stopping failed because the server is unreachable or refused; the next step follows: %s"
            self._reporter.fail("maintenance", None, error, text, error)
        except Exception as error:
            text = "a step of stopping failed; the next step follows: %s"
            self._reporter.fail("maintenance", None, error, text, error, level=logging.ERROR, crash=True)

    def never_left(self) -> None:
        """Report a worker that was entered and never left."""
        self._reporter.tell(
            "unclosed", None, ResourceWarning("a worker was entered (`async with app.worker()`) and never left")
        )

    def hurry(self) -> None:
        """End the grace period of ``stop`` now."""
        self._drain.hurry()

    # -- services ----------------------------------------------------------------------------------------------------------

    def _ticked(self) -> None:
        """Signal that the event loop is responsive, and fail the worker if its keeper has died."""
        if self._watch is not None:
            self._watch.beat()
        if not self._keeper.alive and self.error is None and STOPPING not in self._hold.shut:
            self._fail(KeeperDied("the worker's leases are not renewed any more, so it stops before they lapse"))

    def _fail(self, error: BaseException) -> None:
        log.critical("worker %s failed and stops: %s", self.id, error)
        error.__cause__ = self._keeper.error
        self._reporter.tell("renew", None, error, crash=True)
        self.error = error
        self._hold.shut.add(STOPPING)
        self.failed.set()

    def _claimer(self, lane: Lane) -> Claimer:
        return Claimer(
            self._broker,
            lane,
            self._lanes,
            self._hold,
            self._runner,
            self._reporter,
            fenced=self._fenced,
            suspects=self._suspects.wait_in,
        )

    def _fenced(self, lane: Lane, consumer: str) -> None:
        self._leases.fence(lane, consumer)

    def _info(self) -> WorkerInfo:
        return WorkerInfo(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=list(dict.fromkeys(str(lane.queue.base) for lane in (*self._lanes, *(f.lane for f in self._followers)))),
            started=self._started_at,
            totals=dict(self._settler.totals),
            supervisor=self._supervisor,
            tasks=self._tasks,
            slots=self._hold.sizes,
            running=self._hold.in_use,
            full=full_addresses(self._lanes, self._hold),
        )

    def _describe(self, task: asyncio.Task[Any] | None) -> str:
        with contextlib.suppress(RuntimeError):  # another thread changed the set during the iteration
            for job in self._hold.running:
                if job.running is task and task is not None:
                    return f"task {job.handler.name!r} (job {job.message.id})"
        return "code that is not part of a job"


def _told(tasks: Mapping[str, Task[..., Any]]) -> dict[str, bool] | None:
    """Return each task's name and whether it runs in a thread, or None if there are too many tasks for the registry."""
    return {name: not task.is_async for name, task in tasks.items()} if len(tasks) <= TASKS_TOLD else None
