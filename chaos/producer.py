"""A producer that keeps sending during faults, resends jobs whose fate is unknown, and records every answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from chaos import app as apps
from chaos.ledger import Ledger
from millstream import Job
from millstream.errors import BrokerUnavailable, PayloadTooLarge
from millstream.jobs.task import Task

BULK = 10
"""Jobs per bulk call."""

LOT = 100
"""Jobs per bulk call where all jobs are sent in bulk."""

POLL_SECONDS = 0.05

MOST_WAITING = 100
"""The most enqueues that wait for an answer at the same time. Further enqueues start when one has its answer."""

MIX: tuple[tuple[str, float], ...] = (
    ("nap", 0.30),
    ("forgotten", 0.15),
    ("given", 0.15),
    ("delayed", 0.10),
    ("flaky", 0.10),
    ("thread", 0.10),
    ("once", 0.05),
    ("bulk", 0.03),
    ("narrow", 0.02),
)
"""Kinds of enqueues with their weights."""

TASKS: dict[str, Task[..., Any]] = {
    "nap": apps.nap,
    "forgotten": apps.forgotten,
    "given": apps.nap,
    "delayed": apps.nap,
    "flaky": apps.flaky,
    "thread": apps.thread,
    "once": apps.once,
    "bulk": apps.nap,
}


class Producer:
    """Enqueues jobs of every kind at a fixed rate until it is stopped."""

    def __init__(self, ledger: Ledger, rng: random.Random, *, rate: float, seconds: tuple[float, float] = (0.02, 0.15)) -> None:
        self._ledger = ledger
        self._rng = rng
        self._rate = rate
        self._seconds = seconds
        """Shortest and longest duration of a handler."""
        self._number = 0
        self._stopping = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self.nameless = 0
        """Enqueues that raised without the job's id."""

    async def run(self) -> None:
        """Send until ``stop``. Return when every job has its answer; no job is given up."""
        kinds, weights = zip(*MIX, strict=True)
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._stopping.is_set() and self._error is None:
            if len(self._sending) < MOST_WAITING:
                self._begin(self._rng.choices(kinds, weights)[0])
            due = max(due + self._rng.expovariate(self._rate), loop.time() - 0.1)
            await asyncio.sleep(max(0.0, due - loop.time()))
        while self._sending:
            await asyncio.wait(self._sending)
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Stop sending, and wait for no answer."""
        self._stopping.set()
        for task in self._sending:
            task.cancel()

    def stop(self) -> None:
        self._stopping.set()

    def _begin(self, kind: str) -> None:
        task = asyncio.create_task(self._send_many() if kind == "bulk" else self._send(kind, self._key(kind)))
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled():
            self._error = self._error or task.exception()

    def _key(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"

    def _duration(self) -> float:
        return round(self._rng.uniform(*self._seconds), 4)

    async def _send(self, kind: str, key: str, known_id: str = "") -> None:
        seconds = self._duration()
        if kind == "narrow":
            await self._send_too_much(key, seconds)
            return
        task = TASKS[kind]
        if kind == "delayed":
            task = task.options(delay=round(self._rng.uniform(0.05, 1.0), 3))
        if kind == "given":
            known_id = known_id or key
        await self._insist(lambda job_id: (task.options(id=job_id) if job_id else task).enqueue(key, seconds), key, known_id)

    async def _insist(self, enqueue: Callable[[str], Any], key: str, job_id: str = "") -> None:
        """Send a job until it is accepted, with the id from the first answer."""
        while True:
            try:
                job: Job[Any] = await enqueue(job_id)
            except BrokerUnavailable as error:
                if error.job_id is None:
                    self.nameless += 1
                job_id = error.job_id or job_id
                self._ledger.enqueue(key, job_id, "unknown")
            else:
                self._ledger.enqueue(key, job.id, "accepted")
                return

    async def _send_too_much(self, key: str, seconds: float) -> None:
        try:
            await apps.narrow.enqueue(key, seconds, "x" * 200)
        except PayloadTooLarge:
            self._ledger.enqueue(key, "", "refused")

    async def _send_many(self, count: int = BULK) -> None:
        keys = [self._key("bulk") for _ in range(count)]
        calls = [apps.nap.bind(key, self._duration()) for key in keys]
        for key, answer in zip(keys, await apps.app.enqueue_many(calls, return_exceptions=True), strict=True):
            if isinstance(answer, Job):
                self._ledger.enqueue(key, answer.id, "accepted")
            elif isinstance(answer, BrokerUnavailable):
                self._ledger.enqueue(key, answer.job_id or "", "unknown")
                await self._send("nap", key, answer.job_id or "")
            else:
                raise answer

    async def run_in_bulk(self, at_least: int, *, ahead: int) -> None:
        """Send at least ``at_least`` jobs, until ``stop``. Never more than ``ahead`` jobs are unfinished."""
        sent = 0
        while sent < at_least or not self._stopping.is_set():
            self._ledger.look()
            if sent - len(self._ledger.ends) < ahead:
                await self._send_many(LOT)
                sent += LOT
            else:
                await asyncio.sleep(POLL_SECONDS)
