"""One minute without a server: workers neither crash nor spin nor flood the log, and continue when the server is back.

There are three workers and one server. Two workers are cut off, each in a different way, while the third still reaches the
server. Then the server itself is unreachable for everyone. Running jobs end during the outage, and the leases outlast it. Their
outcomes must be settled afterwards, and no job may run twice.
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
"""The most CPU that a worker may use during an outage, supervisor and child together."""

BACK_SECONDS = 2.0
"""The most time from the server's return until a handler starts."""

SILENT_BACK_SECONDS = CONNECT_TIMEOUT + BACK_SECONDS
"""The same for half-open connections: the last attempt to connect may have just begun, and ends after its timeout."""

RUNNING = 8
"""Jobs sent for each worker: as many as it has slots, so that no worker stays idle."""


@dataclass
class Absence:
    """How one worker came through one outage."""

    how: str
    seconds: float
    cpu_percent: float = 0.0
    back: float = 0.0
    """Seconds from the server's return to the first handler that this worker started."""
    going: list[str] = field(default_factory=list[str])
    """Its log lines about losing the server."""
    coming: list[str] = field(default_factory=list[str])
    """Its log lines about the server's return."""


@dataclass
class Outage:
    """The result of the trial."""

    server: str = ""
    absences: list[Absence] = field(default_factory=list[Absence])
    ended_meanwhile: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    seconds: float = 0.0


async def run(engine: Engine, seed: int, seconds: float = 60.0) -> Outage:
    outage, began = Outage(), time.monotonic()
    # A renewal that fails for a third of a lease is logged separately. The lease is long enough to avoid that here.
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
            outage.verdict.breaches.append("a worker exited by itself")
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

    await _spend(stage, outage, "server unreachable", (worker,), [Absence("server stopped and started", seconds)], away)


async def _spend(
    stage: Stage,
    outage: Outage,
    name: str,
    workers: Sequence[Worker],
    absences: Sequence[Absence],
    away: Callable[[], Awaitable[None]],
) -> None:
    """Observe these workers during one outage."""
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

    await until(all_said, "every part of the workers to log the reconnect")


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
    """Send jobs until this worker runs one. Return when it started."""
    (child,) = worker.children()
    number = 0

    async def works() -> bool:
        nonlocal number
        for _ in range(4):
            number += 1
            await _send(stage, f"after-{child}-{since:.3f}-{number}", 0.05)
        stage.ledger.look()
        return any(start.pid == child and start.began >= since for start in stage.ledger.starts)

    await until(works, "a worker to run a job")
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
            breaches.append(f"{absence.how}: {absence.back:.1f} s until a handler started")
        if len(absence.going) > 1 or len(absence.coming) > 1:
            breaches.append(f"{absence.how}: {len(absence.going)} and {len(absence.coming)} log lines instead of one and one")
        for line in {line for line in absence.going + absence.coming if (absence.going + absence.coming).count(line) > 1}:
            breaches.append(f"{absence.how}: logged more than once: {line}")
