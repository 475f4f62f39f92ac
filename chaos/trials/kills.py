"""Repeated kills: four workers, twenty thousand jobs, two dozen kills, and a server restart in the middle."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from chaos.cases import Case, Result
from chaos.faults.processes import kill_child, kill_worker
from chaos.faults.servers import restart
from chaos.producer import Producer
from chaos.server import Engine
from chaos.stage import Scale, Setup, Stage, Stuck, beside, open_stage

SCALE = Scale(lease=5.0, workers=4, concurrency=8, rate=0.0, between=0, outage=0.0)


@dataclass(frozen=True)
class KillTest:
    """Numbers and durations of the trial."""

    jobs: int = 20_000
    rounds: int = 8
    """Each round kills two children and a whole worker. In the middle round, the server restarts right after a worker died."""
    ahead: int = 2_000
    """The most unfinished jobs at any time. Jobs are sent until the last kill: at least ``jobs``, and a few more on a slow
    machine."""
    scale: Scale = SCALE
    seconds: tuple[float, float] = (0.02, 0.05)

    @property
    def kills(self) -> int:
        return 3 * self.rounds

    @property
    def meaning(self) -> str:
        return (
            f"{self.jobs:,} jobs of {self.seconds[0] * 1000:g} to {self.seconds[1] * 1000:g} ms run on {self.scale.workers} "
            f"workers of concurrency {self.scale.concurrency} with a lease of {self.scale.lease:g} s. {2 * self.rounds} "
            f"children and {self.rounds} whole workers are killed. The server restarts once, right after the death of a worker."
        )


async def run(test: KillTest, engine: Engine, seed: int, *, bounded: bool = True) -> Result:
    """Run the trial. ``bounded``: recoveries that take too long are breaches."""
    rng = random.Random(seed)
    result = Result(Case("kill test", kill_worker))
    began = time.monotonic()
    async with open_stage(Setup(), test.scale, engine, rng) as stage:
        result.server = stage.server.name
        producer = Producer(stage.ledger, rng, rate=0.0, seconds=test.seconds)
        sending = asyncio.create_task(producer.run_in_bulk(test.jobs, ahead=test.ahead))
        try:
            await beside(sending, _kill(stage, test))
            producer.stop()
            await sending
            await stage.drained()
            result.verdict = await stage.judge(bounded=bounded)
            result.verdict.breaches += await stage.stop_workers()
        except Stuck as stuck:
            result.verdict.breaches.append(str(stuck))
        finally:
            sending.cancel()
        result.logs = stage.logs if result.verdict.breaches else ""
    result.seconds = time.monotonic() - began
    return result


async def _kill(stage: Stage, test: KillTest) -> None:
    some = test.jobs // (test.kills + 4)
    for number in range(test.rounds):
        for strike in (kill_child, kill_child, kill_worker):
            await stage.progress(some)
            await strike(stage)
        if number == test.rounds // 2:
            await restart(stage)
