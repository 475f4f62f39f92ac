"""The sequence of the demo: start a server and a worker, enqueue, kill a process, and account for every job."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from millstream import Job
from millstream.cli.demo.account import ENDED, Account, Kill
from millstream.cli.demo.customers import Customers
from millstream.cli.demo.progress import progress
from millstream.cli.demo.record import Record
from millstream.cli.demo.shop import app
from millstream.cli.demo.show import Show, make_console
from millstream.cli.demo.stage import PROCESSES, Stage
from millstream.cli.interrupts import signals_as_interrupts
from millstream.errors import JobCancelled, JobExpired, JobFailed, MillstreamError, ResultError, ResultTimeout

LOOK_SECONDS = 0.1
"""Interval at which the record and the server are read."""

KILL_AFTER_SECONDS = 2.0
"""How long both worker processes run before one is killed."""

KILL_RUNNING = 8
"""How many jobs a process must be running to be killed."""

ALL_SECONDS = 40.0
"""Time limit of the demo. A job that has not ended by then is lost. A demo takes a third of this time."""

ASKED_AT_ONCE = 500

ANSWER_SECONDS = 10.0
"""Timeout for the result of a job that has ended."""


class Broken(Exception):
    """The demo cannot continue."""


def run_demo(show: Show | None = None) -> int:
    """Run the demo and return its exit code: 0 only if every accepted job is accounted for."""
    show = show or Show(make_console())
    began = time.monotonic()
    show.headline()
    with signals_as_interrupts() as received:
        try:
            with Stage() as stage:
                complaints = _play(stage, show)
        except KeyboardInterrupt:
            show.interrupted()
            return 128 + (received[0] if received else signal.SIGINT)
    if complaints:
        show.failure(complaints, stage.log)
        return 1
    show.closing(time.monotonic() - began)
    return 0


def _play(stage: Stage, show: Show) -> list[str]:
    """Run the demo on a stage. Return every inconsistency that was found."""
    began = time.monotonic()
    stage.start_server()
    show.event(f"embedded server started in {time.monotonic() - began:.2f} s, in a temporary folder")
    pid = stage.start_worker()
    show.event(f"millstream worker shop:app --processes {PROCESSES}  (supervisor: process {pid})")
    try:
        with app.override(stage.url), asyncio.Runner() as runner:
            account = runner.run(Play(stage, show).run())
        complaints = account.complaints()
        show.account(account)
        if (code := stage.stop_worker()) != 0:
            how = "did not exit" if code is None else f"exited with code {code}"
            complaints.append(f"the worker {how} after SIGTERM")
    except (Broken, MillstreamError) as error:
        complaints = [str(error)]
    if complaints:
        stage.keep_log()
    return complaints


class Play:
    """One demo on a running server and worker."""

    def __init__(self, stage: Stage, show: Show) -> None:
        self._stage = stage
        self._show = show
        self._record = Record(stage.record)
        self._customers = Customers()
        self._kill: Kill | None = None
        self._serving_since: float | None = None
        self._dead: set[str] = set()
        self._replaced = False
        self._recovered = False

    async def run(self) -> Account:
        """Enqueue the jobs, kill a worker process, wait until all queues are empty, and collect the status of every job."""
        async with app:
            customers = asyncio.create_task(self._come())
            try:
                with self._show:
                    await self._watch(customers)
            finally:
                customers.cancel()
            self._show.event(f"asking the server for the status of each of the {len(self._customers.accepted):,} jobs")
            statuses = await self._ask()
            self._record.read()
            return Account(
                accepted={job.id: job.task for job in self._customers.accepted.values()},
                statuses=statuses,
                letters=await app.dead.list(),
                record=self._record,
                kill=self._kill,
                doomed=self._customers.doomed,
                cancelled=self._customers.cancelled,
            )

    async def _come(self) -> None:
        await self._customers.come()
        self._show.event(f"the last order is in; {len(self._customers.accepted):,} jobs were accepted")

    async def _watch(self, customers: asyncio.Task[None]) -> None:
        """Read, show progress and kill a process, until every queue is empty or the time limit is reached."""
        deadline = time.monotonic() + ALL_SECONDS
        while time.monotonic() < deadline:
            code = self._stage.worker.poll() if self._stage.worker is not None else None
            if code is not None:
                raise Broken(f"the worker exited with code {code} during the demo")
            if customers.done():
                customers.result()
            # Read this before the counts: after the last enqueue, an empty queue stays empty.
            over = customers.done()
            states = await asyncio.gather(*map(app.inspector.queue, app.queues))
            await self._look()
            if over and not any(state.ready or state.running or state.scheduled for state in states):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        self._record.read()
        self._stage.pids.update(worker.pid for worker in await app.inspector.workers())
        for letter in await app.dead.list():
            if letter.id not in self._dead:
                self._dead.add(letter.id)
                self._show.event(f"{letter.task} failed {letter.attempts} times ({letter.error_type}) and is now dead")
        killed = None if self._kill is None else self._kill.pid
        customers = self._customers
        now = progress(customers.accepted, self._dead, customers.cancelled, self._record, self._stage.pids, killed)
        self._show.progress(now)
        if self._serving_since is None and self._stage.pids:
            self._serving_since = time.monotonic()
            self._show.event(f"the worker serves the queues {', '.join(app.queues)}")
        if self._kill is None:
            self._kill_one()
        else:
            self._follow(self._kill)

    def _kill_one(self) -> None:
        """Kill the busiest worker process once both are running jobs."""
        pids = self._stage.pids & self._record.pids
        if len(pids) < PROCESSES or time.monotonic() - (self._serving_since or 0.0) < KILL_AFTER_SECONDS:
            return
        busiest = max(pids, key=lambda pid: len(self._record.running_in(pid)))
        if len(self._record.running_in(busiest)) < KILL_RUNNING:
            return
        self._kill = Kill(busiest, time.monotonic())
        os.kill(busiest, signal.SIGKILL)
        # The number of interrupted jobs is known when all have run again: the account prints it.
        self._show.event((f"kill -9 {busiest}", "bold red"), ", a worker process that is running jobs")

    def _follow(self, kill: Kill) -> None:
        """Print when a new process has replaced the killed one, and when its jobs are running again."""
        if not self._replaced and (new := {pid for pid in self._record.pids if self._first_run(pid) > kill.at}):
            self._replaced = True
            self._show.event(f"process {min(new)} has replaced it")
        if not self._recovered:
            cut_off = [self._record.runs[run.job, run.attempt] for run in self._record.running_in(kill.pid)]
            if all(runs[-1].pid != kill.pid for runs in cut_off):
                self._recovered = True
                self._show.event("all jobs it was running have restarted in other processes")

    def _first_run(self, pid: int) -> float:
        return min(run.began for runs in self._record.runs.values() for run in runs if run.pid == pid)

    # -- statuses according to the server ----------------------------------------------------------------------------------

    async def _ask(self) -> dict[str, str]:
        """Return the status of every accepted job according to the server."""
        jobs = list(self._customers.accepted.values())
        statuses: dict[str, str] = {}
        for start in range(0, len(jobs), ASKED_AT_ONCE):
            some = jobs[start : start + ASKED_AT_ONCE]
            statuses.update(zip([job.id for job in some], await asyncio.gather(*map(_status, some)), strict=True))
        return statuses


async def _status(job: Job[Any]) -> str:
    """Return the status of a job. If its result says otherwise, return both."""
    status = await job.status()
    if status not in ENDED:
        return status
    ending = await _ending(job)
    return status if status == ending else f"{status}, but {ending} according to its result"


async def _ending(job: Job[Any]) -> str:
    """Return how a job ended, according to its result."""
    try:
        await job.result(timeout=ANSWER_SECONDS)
    except JobFailed:
        return "dead"
    except JobCancelled:
        return "cancelled"
    except JobExpired:
        return "expired"
    except ResultTimeout as error:
        return error.status
    except ResultError as error:
        return str(error)
    return "done"
