"""A minute without a server: workers neither crash nor spin nor chatter, and go on when it is back.

Three workers and one server. Two workers are cut off from it, each in its own way, while the third sees it; then the server
itself is away for everyone. Jobs that were running when it began end meanwhile, and the leases outlast it: what they came to
must be settled afterwards, and nothing may run twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from chaos.app import nap
from chaos.checker import Verdict
from chaos.history import Fault
from chaos.proxy import Proxy
from chaos.server import Engine, PrivateServer
from chaos.stage import Scale, Setup, Stage, Stuck, open_stage, until
from chaos.workers import Worker, cpu_seconds
from millstream.backends.redis.connect import CONNECT_TIMEOUT

CPU_PERCENT = 2.0
"""The most that a worker may use meanwhile, supervisor and child together."""

BACK_SECONDS = 2.0
"""How soon after the server's return a handler begins."""

SILENT_BACK_SECONDS = CONNECT_TIMEOUT + BACK_SECONDS
"""The same for half-open connections: the last of them was begun just before, and is given up after its timeout."""

RUNNING = 8
"""Jobs that are sent for each worker: as many as it has slots, so that no worker can be without one."""


@dataclass
class Absence:
    """How one worker came through one outage."""

    how: str
    seconds: float
    cpu_percent: float = 0.0
    back: float = 0.0
    """Seconds from the server's return to the first handler that this worker began."""
    going: list[str] = field(default_factory=list[str])
    """What it logged when the server was gone."""
    coming: list[str] = field(default_factory=list[str])
    """What it logged when it was back."""


@dataclass
class Outage:
    """What came of it."""

    server: str = ""
    absences: list[Absence] = field(default_factory=list[Absence])
    ended_meanwhile: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    seconds: float = 0.0


async def run(engine: Engine, seed: int, seconds: float = 60.0) -> Outage:
    outage, began = Outage(), time.monotonic()
    # A renewal that has failed for a third of a lease is worth a line of its own: here none does.
    scale = Scale(lease=4 * seconds, workers=2, concurrency=RUNNING, rate=0.0, between=0, outage=0.0)
    async with open_stage(Setup(proxied=True), scale, engine, random.Random(seed)) as stage:
        outage.server = stage.server.name
        cut, silent = stage.workers.all
        sees = await stage.begin_worker(proxied=False)
        try:
            await stage.until_serving([sees])
            await _cut_off(stage, outage, cut, silent, seconds)
            await _server_away(stage, outage, sees, seconds)
            await stage.drained()
            outage.verdict = await stage.judge(bounded=False)
            outage.verdict.breaches += await stage.stop_workers()
        except Stuck as stuck:
            outage.verdict.breaches.append(str(stuck))
        if any(worker.code for worker in stage.workers.all):
            outage.verdict.breaches.append("a worker ended by itself")
    _judge(outage)
    outage.seconds = time.monotonic() - began
    return outage


async def _cut_off(stage: Stage, outage: Outage, cut: Worker, silent: Worker, seconds: float) -> None:
    proxies = [stage.proxies[stage.workers.all.index(worker)] for worker in (cut, silent)]
    absences = [Absence("connections reset and refused", seconds), Absence("connections half-open", seconds)]

    async def away() -> None:
        with ExitStack() as stack:
            for proxy, misbehave in zip(proxies, (Proxy.cut, Proxy.silence), strict=True):
                stack.enter_context(misbehave(proxy))
            await asyncio.sleep(seconds)

    await _spend(stage, outage, "two workers cut off", (cut, silent), absences, away)


async def _server_away(stage: Stage, outage: Outage, worker: Worker, seconds: float) -> None:
    server = stage.server
    assert isinstance(server, PrivateServer)

    async def away() -> None:
        server.end()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(server.start)

    await _spend(stage, outage, "server away", (worker,), [Absence("server stopped and started", seconds)], away)


async def _spend(
    stage: Stage,
    outage: Outage,
    name: str,
    workers: Sequence[Worker],
    absences: Sequence[Absence],
    away: Callable[[], Awaitable[None]],
) -> None:
    """An outage, seen from these workers."""
    outage.absences += absences
    await _occupy(stage, name, absences[0].seconds)
    families = [worker.family for worker in workers]
    logged, used, began = [len(worker.log) for worker in workers], [cpu_seconds(pids) for pids in families], time.monotonic()
    stage.ledger.look()
    ended = len(stage.ledger.ends)
    await away()
    back = time.monotonic()
    stage.fault(Fault(name, began, back, away=True))
    stage.ledger.look()
    outage.ended_meanwhile += len(stage.ledger.ends) - ended
    for absence, family, before in zip(absences, families, used, strict=True):
        absence.cpu_percent = 100 * (cpu_seconds(family) - before) / (back - began)
    for absence, worker in zip(absences, workers, strict=True):
        absence.back = await _until_it_works(stage, worker, back) - back
    await stage.drained()

    def all_said() -> bool:
        for absence, worker, start in zip(absences, workers, logged, strict=True):
            lines = [line.split(" ", 2)[-1].strip() for line in worker.log[start:].splitlines()]
            absence.going = [line for line in lines if not line.startswith("INFO")]
            absence.coming = [line for line in lines if line.startswith("INFO")]
        return all(len(absence.coming) >= len(absence.going) for absence in absences)

    await until(all_said, "every part of the workers to say that it is back")


async def _occupy(stage: Stage, name: str, seconds: float) -> None:
    """Let every worker run jobs that will end during the outage."""
    count = RUNNING * len(stage.workers.all)
    for i in range(count):
        await _send(stage, f"{name}-{i}", seconds / 3)
    stage.ledger.look()
    wanted = {worker.children()[0] for worker in stage.workers.all}
    await until(lambda: _running_in(stage, name) >= wanted, "every worker to run something")


def _running_in(stage: Stage, name: str) -> set[int]:
    stage.ledger.look()
    return {start.pid for start in stage.ledger.starts if start.key.startswith(name)}


async def _until_it_works(stage: Stage, worker: Worker, since: float) -> float:
    """Send jobs until this worker runs one; when it began."""
    (child,) = worker.children()
    number = 0

    async def works() -> bool:
        nonlocal number
        for _ in range(4):
            number += 1
            await _send(stage, f"after-{child}-{since:.3f}-{number}", 0.05)
        stage.ledger.look()
        return any(start.pid == child and start.began >= since for start in stage.ledger.starts)

    await until(works, "a worker to go on")
    return next(start.began for start in stage.ledger.starts if start.pid == child and start.began >= since)


async def _send(stage: Stage, key: str, seconds: float) -> None:
    job = await nap.enqueue(key, seconds)
    stage.ledger.enqueue(key, job.id, "accepted")


def _judge(outage: Outage) -> None:
    breaches = outage.verdict.breaches
    for absence in outage.absences:
        if absence.cpu_percent >= CPU_PERCENT:
            breaches.append(f"{absence.how}: {absence.cpu_percent:.1f} % CPU")
        if absence.back > (SILENT_BACK_SECONDS if "half-open" in absence.how else BACK_SECONDS):
            breaches.append(f"{absence.how}: {absence.back:.1f} s until work went on")
        if len(absence.going) > 1 or len(absence.coming) > 1:
            breaches.append(f"{absence.how}: {len(absence.going)} lines and {len(absence.coming)} instead of one each way")
        for line in {line for line in absence.going + absence.coming if (absence.going + absence.coming).count(line) > 1}:
            breaches.append(f"{absence.how}: said more than once: {line}")
