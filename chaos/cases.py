"""Every fault as a case: workers run jobs, a producer sends them, the fault strikes, and every job is accounted for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from chaos.checker import Verdict
from chaos.faults import clocks, disks, network, processes, servers
from chaos.producer import Producer
from chaos.server import Engine, NotHere
from chaos.stage import FULL, Scale, Setup, Stage, Stuck, beside, open_stage

PLAIN, PROXIED = Setup(), Setup(proxied=True)

Strike = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """One fault, and the stage it needs."""

    title: str
    strike: Strike
    setup: Setup = PLAIN
    strikes: int = 3
    on_all: bool = False
    """Whether a full run strikes on every kind of server. Other cases would show the same on each."""

    @property
    def name(self) -> str:
        return self.strike.__name__

    @property
    def meaning(self) -> str:
        """What the fault does and what is promised, from its docstring."""
        return " ".join((self.strike.__doc__ or "").split())


@dataclass
class Result:
    """The result of a case."""

    case: Case
    server: str = ""
    verdict: Verdict = field(default_factory=Verdict)
    notes: list[str] = field(default_factory=list[str])
    logs: str = ""
    """The workers' logs, if a promise was broken."""
    seconds: float = 0.0
    skipped: str = ""
    """Why the case could not run here."""


ALL = (
    Case("SIGKILL of children", processes.kill_child, strikes=6, on_all=True),
    Case("SIGKILL of supervisors", processes.kill_supervisor),
    Case("SIGKILL of whole workers", processes.kill_worker, on_all=True),
    Case("SIGSTOP of children, beyond the lease", processes.stop_child, strikes=2),
    Case("SIGSTOP of supervisors, beyond the lease", processes.stop_supervisor, strikes=2),
    Case("SIGSTOP of whole workers, beyond the lease", processes.stop_worker, strikes=2),
    Case("SIGSTOP of whole workers, within the lease", processes.stop_worker_briefly),
    Case("server restarted, with its append-only file", servers.restart, on_all=True),
    Case("server unreachable for longer than an enqueue waits", servers.go_away, strikes=2, on_all=True),
    Case("server SIGKILLed, `appendfsync always`", servers.kill_always, on_all=True),
    Case("server SIGKILLed, `appendfsync everysec`", servers.kill_everysec, Setup(fsync="everysec"), on_all=True),
    Case("server stalled beyond the lease", servers.stall, strikes=2, on_all=True),
    Case("`SCRIPT FLUSH`", servers.flush_scripts, strikes=6, on_all=True),
    Case("`NOGROUP`: consumer groups destroyed", servers.destroy_groups, on_all=True),
    Case("`FLUSHALL`", servers.flush_all, strikes=2, on_all=True),
    Case("`maxmemory` reached", servers.fill, strikes=2, on_all=True),
    Case("primary made a read-only replica and back", servers.demote, strikes=2, on_all=True),
    Case("failover to a replica", servers.fail_over, Setup(proxied=True, replicated=True), strikes=2, on_all=True),
    Case("lease keys deleted", servers.lose_leases, strikes=2, on_all=True),
    Case("connections cut, within the lease", network.cut_all, PROXIED),
    Case("one worker cut off, beyond the lease", network.cut_one, PROXIED, strikes=2),
    Case("network stalled beyond the lease", network.stall_network, PROXIED, strikes=2),
    Case("network delayed by 0.1 s each way", network.delay, PROXIED, strikes=2),
    Case("connections half-open", network.half_open, PROXIED, strikes=2),
    Case("replies lost, connection reset", network.lose_replies, PROXIED, strikes=4),
    Case("replies torn in the middle, connection reset", network.tear_replies, PROXIED, strikes=4),
    Case("workers' clocks wrong by an hour", clocks.wrong_clocks, Setup(skews=(clocks.HOUR, -clocks.HOUR)), strikes=1),
    Case("disk full under the embedded server", disks.fill_disk, Setup(fsync="everysec", embedded=True), strikes=2),
)


async def run(case: Case, engine: Engine, seed: int) -> Result:
    """Run one full case on its own stage."""
    try:
        return await play(case, [case] * case.strikes, engine, seed, FULL, bounded=True)
    except NotHere as why:
        return Result(case, skipped=str(why))


async def play(case: Case, strikes: Sequence[Case], engine: Engine, seed: int, scale: Scale, *, bounded: bool) -> Result:
    """Let several faults strike one after another on one stage, set up for ``case``, with work in between.

    ``bounded``: recoveries that take too long are breaches. Raises NotHere if this machine cannot provide the stage.
    """
    result, began, rng = Result(case), time.monotonic(), random.Random(seed)
    async with open_stage(case.setup, scale, engine, rng) as stage:
        result.server = stage.server.name
        try:
            await _strike(stage, strikes, Producer(stage.ledger, rng, rate=scale.rate))
            result.verdict = await stage.judge(bounded=bounded)
            result.verdict.breaches += await stage.stop_workers()
        except Stuck as stuck:
            result.verdict.breaches.append(str(stuck))
        result.notes = stage.notes
        result.logs = stage.logs if result.verdict.breaches else ""
    result.seconds = time.monotonic() - began
    return result


async def _strike(stage: Stage, strikes: Sequence[Case], producer: Producer) -> None:
    """Strike, and wait until every strike is over and the queues are empty."""

    async def strike() -> None:
        await stage.progress()
        for case in strikes:
            await case.strike(stage)
            await stage.progress()
            await stage.renewed()

    producing = asyncio.create_task(producer.run())
    try:
        await beside(producing, strike())
        producer.stop()
        await producing
    finally:
        producer.abandon()
        producing.cancel()
    await stage.drained()
    if producer.nameless:
        raise Stuck(f"{producer.nameless} enqueues raised without the id of their job, so they cannot be sent again")
