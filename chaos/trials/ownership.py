"""The ownership trial: workers join, stop, die and freeze. Every shard soon has an owner again, and never two."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from chaos.history import Fault
from chaos.order import Handling, OrderVerdict, judge_order
from chaos.ordered import Rules
from chaos.server import Engine
from chaos.stage import Stuck, beside, until
from chaos.workers import Worker, send
from chaos.yard import Yard, open_yard

UNOWNED_SECONDS = 2.0
"""The most time beyond the lease for which a shard may have no owner that could work."""

LONG_SECONDS = 0.4
"""Duration of the event that a worker is handling when it is stopped."""


@dataclass(frozen=True)
class OwnershipTest:
    """Numbers and durations of the trial."""

    shards: int = 16
    crowds: tuple[int, ...] = (1, 2, 3, 5, 3, 2)
    """Consecutive numbers of workers."""
    lease: float = 2.0
    keys: int = 64
    rate: float = 150.0
    """Events per second during the trial."""
    kills: int = 2
    """Number of whole workers that are killed and started again."""

    @property
    def meaning(self) -> str:
        crowds = ", ".join(map(str, self.crowds))
        return (
            f"{self.shards} shards of a group are shared by {crowds} workers that join and stop, with a lease of "
            f"{self.lease:g} s and {self.rate:g} events per second. Then whole workers are killed with SIGKILL and started "
            "again, a child is killed, and an owner is stopped with SIGSTOP until other workers own its shards, and continues. "
            "The owners are read from the server every 20 ms, all shards in one step."
        )


@dataclass
class Step:
    """One event of the trial, and its effect on the shards."""

    what: str
    began: float
    even: float
    """When the shards were shared evenly again."""
    unowned: float = 0.0
    """The longest time in seconds for which a shard had no owner that could work."""

    @property
    def seconds(self) -> float:
        return self.even - self.began


@dataclass
class OwnershipResult:
    """The result of the trial."""

    test: OwnershipTest
    server: str = ""
    verdict: OrderVerdict = field(default_factory=OrderVerdict)
    steps: list[Step] = field(default_factory=list[Step])
    looks: int = 0
    moves: int = 0
    refused: int = 0
    """Outcomes of the stopped owner that were refused."""
    seconds: float = 0.0
    logs: str = ""

    @property
    def breaches(self) -> list[str]:
        return self.verdict.breaches


async def run(test: OwnershipTest, engine: Engine, seed: int, *, bounded: bool = True) -> OwnershipResult:
    """Run the trial. ``bounded``: a shard that has no owner for too long is a breach."""
    rng, began = random.Random(seed), time.monotonic()
    result = OwnershipResult(test)
    async with open_yard(Rules(shards=test.shards, asks=True), test.lease, engine) as yard:
        result.server = yard.server.name
        producing = asyncio.create_task(yard.produce(test.keys, test.rate, (0.005, 0.05), rng))
        trial = _Trial(yard, test, result, rng)
        try:
            await beside(producing, trial.play())
        except Stuck as stuck:
            result.verdict.breaches.append(str(stuck))
        finally:
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)
        await _judge(yard, trial, result, bounded)
        result.logs = yard.logs if result.breaches else ""
    result.seconds = time.monotonic() - began
    return result


async def _judge(yard: Yard, trial: _Trial, result: OwnershipResult, bounded: bool) -> None:
    breaches = result.verdict.breaches
    try:
        await yard.drained()
        await trial.judge_late()
    except Stuck as stuck:
        breaches.append(str(stuck))
    verdict = judge_order(yard.course(), stop=False, left=await yard.left())
    if (done := await yard.done()) != verdict.published:
        verdict.breaches.append(f"{verdict.published} events were published, but {done} outcomes were accepted")
    verdict.breaches = [*breaches, *verdict.breaches, *yard.ownership.doubles()[:5]]
    result.verdict, result.looks, result.moves = verdict, len(yard.ownership.looks), yard.ownership.moves()
    gaps = yard.ownership.gaps(yard.faults)
    for step in result.steps:
        step.unowned = max((gap.seconds for gap in gaps if step.began <= gap.since <= step.even), default=0.0)
        most = yard.lease + UNOWNED_SECONDS
        if bounded and step.unowned > most:
            verdict.breaches.append(
                f"{step.what}: a shard had no owner for {step.unowned:.2f} s, which is more than {most:g} s"
            )


class _Trial:
    def __init__(self, yard: Yard, test: OwnershipTest, result: OwnershipResult, rng: random.Random) -> None:
        self._yard = yard
        self._test = test
        self._result = result
        self._rng = rng
        self._workers: list[Worker] = []
        self.stopped = 0, 0.0, 0.0
        """The process of the stopped owner, when it was stopped, and when it continued."""

    async def play(self) -> None:
        yard, workers, rng = self._yard, self._workers, self._rng
        for count in self._test.crowds:
            began = time.monotonic()
            if more := max(0, count - len(workers)):
                workers += [yard.begin_worker() for _ in range(more)]
                await self._settle(f"{more} joined, {count} in total", began)
            while count < len(workers):
                began = time.monotonic()
                await yard.leave(workers.pop(rng.randrange(len(workers))))
                await self._settle(f"1 left, {len(workers)} in total", began)
        for _ in range(self._test.kills):
            began, place = time.monotonic(), rng.randrange(len(workers))
            yard.kill_worker(workers[place])
            workers[place] = yard.begin_worker()
            await self._settle("whole worker killed and started again", began)
        began = time.monotonic()
        yard.kill_child(await yard.child_of(rng.choice(workers)))
        await self._settle("child killed", began)
        await self._stop_an_owner()

    async def _stop_an_owner(self) -> None:
        """Stop a whole worker with SIGSTOP while it handles an event, until others own all its shards. Then send SIGCONT."""
        yard, worker = self._yard, self._rng.choice(self._workers)
        child = await yard.child_of(worker)
        began = {handling.event for handling in yard.handlings()}  # read first: the new events may start immediately
        await yard.publish((f"k{key}", LONG_SECONDS, "") for key in range(self._test.keys))
        await until(lambda: any(_runs_long(each, child, began) for each in yard.handlings()), "a worker to be at work")
        pids = worker.family
        at = send(signal.SIGSTOP, pids)
        try:
            await until(lambda: child not in yard.ownership.now().shares() and _all_owned(yard), "others to own its shards")
        finally:
            ended = send(signal.SIGCONT, reversed(pids))
        yard.faults.append(Fault("SIGSTOP of an owner", at, ended, (child,), fences=True))
        await self._settle("owner stopped until others owned its shards, then continued", at)
        self.stopped = child, at, ended

    async def judge_late(self) -> None:
        """Check that the outcomes of the stopped owner were refused, because others own its events."""
        child, at, ended = self.stopped
        late = [
            each
            for each in self._yard.handlings()
            if each.pid == child and each.began <= at and (each.ended is None or each.ended >= ended)
        ]
        self._result.refused = len(late)
        breaches = self._result.verdict.breaches
        if not late:
            breaches.append("the stopped owner was not handling any event")
        breaches += [f"{each.event}: an owner that had lost its shard settled it" for each in late if each.settled]
        # The server has all outcomes, but the other workers may not have received the answers yet.
        events = {each.event for each in late}
        await until(lambda: not events & self._undecided(child), "others to learn whether their outcomes were accepted")
        breaches += [f"{event}: {self._taken()[event]} outcomes were accepted" for event in events if self._taken()[event] > 1]

    def _taken(self) -> Counter[str]:
        return Counter(each.event for each in self._yard.handlings() if each.settled)

    def _undecided(self, stopped: int) -> set[str]:
        """Return events that a worker other than the stopped owner has settled without having the server's answer yet.

        A worker that loses its lease at that moment counts an outcome as refused although the server accepted it.
        """
        return {each.event for each in self._yard.handlings() if each.settled is None and each.pid != stopped}

    async def _settle(self, what: str, began: float) -> None:
        """Wait until the live workers share the shards evenly."""
        await self._yard.until_even(self._workers)
        self._result.steps.append(Step(what, began, time.monotonic()))


def _runs_long(handling: Handling, pid: int, before: set[str]) -> bool:
    return handling.pid == pid and handling.ended is None and handling.event not in before


def _all_owned(yard: Yard) -> bool:
    return all(len(owners) == 1 for owners in yard.ownership.now().owners)
