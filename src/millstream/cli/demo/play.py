"""The course of the demo, from the first process to the account."""

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
"""Between two looks at the record and at the server."""

KILL_AFTER_SECONDS = 2.0
"""How long both processes work before one of them is killed."""

KILL_RUNNING = 8
"""How many jobs it must be running then."""

ALL_SECONDS = 40.0
"""What has not ended by then is missing. A demo takes a third of it."""

ASKED_AT_ONCE = 500

ANSWER_SECONDS = 10.0
"""How long the result of a job that has ended may take to come."""


class Broken(Exception):
    """The demo cannot go on."""


def run_demo() -> int:
    """Play the demo; 0 only if every accepted job is accounted for."""
    show = Show(make_console())
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
    """Everything that happens on stage; what does not add up."""
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
            how = "did not end" if code is None else f"ended with code {code}"
            complaints.append(f"the worker {how} when it was told to stop")
    except (Broken, MillstreamError) as error:
        complaints = [str(error)]
    if complaints:
        stage.keep_log()
    return complaints


class Play:
    """One demo on a server and a worker that are there."""

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
        """Let the customers come, kill a process, wait until nothing is left to do, and ask what became of every job."""
        async with app:
            customers = asyncio.create_task(self._come())
            try:
                with self._show:
                    await self._watch(customers)
            finally:
                customers.cancel()
            self._show.event(f"the server is asked about each of the {len(self._customers.accepted):,} jobs")
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
        self._show.event(f"the last customer has gone; {len(self._customers.accepted):,} jobs were accepted")

    async def _watch(self, customers: asyncio.Task[None]) -> None:
        """Look, show and kill, until every queue is empty or time is up."""
        deadline = time.monotonic() + ALL_SECONDS
        while time.monotonic() < deadline:
            code = self._stage.worker.poll() if self._stage.worker is not None else None
            if code is not None:
                raise Broken(f"the worker ended with code {code} in the middle of the demo")
            if customers.done():
                customers.result()
            # In this order: what is empty after the last customer has gone stays empty.
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
                self._show.event(f"{letter.task} has failed {letter.attempts} times ({letter.error_type}) and is dead")
        killed = None if self._kill is None else self._kill.pid
        customers = self._customers
        now = progress(customers.accepted, self._dead, customers.cancelled, self._record, self._stage.pids, killed)
        self._show.progress(now)
        if self._serving_since is None and self._stage.pids:
            self._serving_since = time.monotonic()
            self._show.event(f"the worker serves {', '.join(app.queues)}")
        if self._kill is None:
            self._kill_one()
        else:
            self._follow(self._kill)

    def _kill_one(self) -> None:
        """Kill the busiest process once two of them work."""
        pids = self._stage.pids & self._record.pids
        if len(pids) < PROCESSES or time.monotonic() - (self._serving_since or 0.0) < KILL_AFTER_SECONDS:
            return
        busiest = max(pids, key=lambda pid: len(self._record.running_in(pid)))
        if len(self._record.running_in(busiest)) < KILL_RUNNING:
            return
        self._kill = Kill(busiest, time.monotonic())
        os.kill(busiest, signal.SIGKILL)
        # How many jobs that concerns is known when all have run again: the account says it.
        self._show.event((f"kill -9 {busiest}", "bold red"), ", a worker process in the middle of its jobs")

    def _follow(self, kill: Kill) -> None:
        """Say it when a new process has taken the place of the killed one, and when its jobs are running again."""
        if not self._replaced and (new := {pid for pid in self._record.pids if self._first_run(pid) > kill.at}):
            self._replaced = True
            self._show.event(f"process {min(new)} has taken its place")
        if not self._recovered:
            cut_off = [self._record.runs[run.job, run.attempt] for run in self._record.running_in(kill.pid)]
            if all(runs[-1].pid != kill.pid for runs in cut_off):
                self._recovered = True
                self._show.event("all jobs that it was in the middle of have begun again elsewhere")

    def _first_run(self, pid: int) -> float:
        return min(run.began for runs in self._record.runs.values() for run in runs if run.pid == pid)

    # -- the server's word -------------------------------------------------------------------------------------------------

    async def _ask(self) -> dict[str, str]:
        """What the server says about every accepted job."""
        jobs = list(self._customers.accepted.values())
        statuses: dict[str, str] = {}
        for start in range(0, len(jobs), ASKED_AT_ONCE):
            some = jobs[start : start + ASKED_AT_ONCE]
            statuses.update(zip([job.id for job in some], await asyncio.gather(*map(_status, some)), strict=True))
        return statuses


async def _status(job: Job[Any]) -> str:
    """Where a job is, by its status and by its result; both, if they differ."""
    status = await job.status()
    if status not in ENDED:
        return status
    ending = await _ending(job)
    return status if status == ending else f"{status}, but {ending} by its result"


async def _ending(job: Job[Any]) -> str:
    """How a job has ended, by its result."""
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
