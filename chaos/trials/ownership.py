"""The ownership test: workers join, leave, die and stand still, and every shard has one owner, soon again, and never two."""

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
"""Beyond the lease: for how long a shard has no owner that could work, at most."""

LONG_SECONDS = 0.4
"""How long a parcel takes that a worker has in its hands when it is stopped."""


@dataclass(frozen=True)
class OwnershipTest:
    """How much of it."""

    shards: int = 16
    crowds: tuple[int, ...] = (1, 2, 3, 5, 3, 2)
    """How many workers there are, one after another."""
    lease: float = 2.0
    keys: int = 64
    rate: float = 150.0
    """Events per second, meanwhile."""
    kills: int = 2
    """Of whole workers, each started again."""

    @property
    def meaning(self) -> str:
        crowds = ", ".join(map(str, self.crowds))
        return (
            f"{self.shards} shards of a group over {crowds} workers that join and leave, lease {self.lease:g} s, while "
            f"{self.rate:g} events a second are handled. Then whole workers are killed with SIGKILL and started again, a child "
            "is killed, and an owner is stopped with SIGSTOP until others have its shards, and goes on. Who owns what is read "
            "from the server, all shards at one moment, every 20 ms."
        )


@dataclass
class Step:
    """Something that happened, and what became of the shards."""

    what: str
    began: float
    even: float
    """When the shards were shared evenly again."""
    unowned: float = 0.0
    """Seconds for which a shard had no owner that could work, at most."""

    @property
    def seconds(self) -> float:
        return self.even - self.began


@dataclass
class OwnershipResult:
    """What came of it."""

    test: OwnershipTest
    server: str = ""
    verdict: OrderVerdict = field(default_factory=OrderVerdict)
    steps: list[Step] = field(default_factory=list[Step])
    looks: int = 0
    moves: int = 0
    refused: int = 0
    """Outcomes that the stopped owner came back with."""
    seconds: float = 0.0
    logs: str = ""

    @property
    def breaches(self) -> list[str]:
        return self.verdict.breaches


async def run(test: OwnershipTest, engine: Engine, seed: int, *, bounded: bool = True) -> OwnershipResult:
    """``bounded``: a shard that has no owner for too long is a breach."""
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
        verdict.breaches.append(f"{verdict.published} events were published, and {done} outcomes were taken")
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
        """The process of the owner that was stopped, when, and until when."""

    async def play(self) -> None:
        yard, workers, rng = self._yard, self._workers, self._rng
        for count in self._test.crowds:
            began = time.monotonic()
            if more := max(0, count - len(workers)):
                workers += [yard.begin_worker() for _ in range(more)]
                await self._settle(f"{more} joined: {count} share", began)
            while count < len(workers):
                began = time.monotonic()
                await yard.leave(workers.pop(rng.randrange(len(workers))))
                await self._settle(f"1 left: {len(workers)} share", began)
        for _ in range(self._test.kills):
            began, place = time.monotonic(), rng.randrange(len(workers))
            yard.kill_worker(workers[place])
            workers[place] = yard.begin_worker()
            await self._settle("a whole worker was killed and started again", began)
        began = time.monotonic()
        yard.kill_child(await yard.child_of(rng.choice(workers)))
        await self._settle("a child was killed", began)
        await self._stop_an_owner()

    async def _stop_an_owner(self) -> None:
        """SIGSTOP of a whole worker in the middle of what it does, until others own all its shards; then SIGCONT."""
        yard, worker = self._yard, self._rng.choice(self._workers)
        child = await yard.child_of(worker)
        began = {handling.event for handling in yard.handlings()}  # before: the first of those may begin at once
        await yard.publish((f"k{key}", LONG_SECONDS, "") for key in range(self._test.keys))
        await until(lambda: any(_runs_long(each, child, began) for each in yard.handlings()), "a worker to be at work")
        pids = worker.family
        at = send(signal.SIGSTOP, pids)
        try:
            await until(lambda: child not in yard.ownership.now().shares() and _all_owned(yard), "others to own its shards")
        finally:
            ended = send(signal.SIGCONT, reversed(pids))
        yard.faults.append(Fault("SIGSTOP of an owner", at, ended, (child,), fences=True))
        await self._settle("an owner was stopped until others had its shards, and went on", at)
        self.stopped = child, at, ended

    async def judge_late(self) -> None:
        """What the owner was doing when it was stopped is another's: its own outcomes were refused."""
        child, at, ended = self.stopped
        late = [
            each
            for each in self._yard.handlings()
            if each.pid == child and each.began <= at and (each.ended is None or each.ended >= ended)
        ]
        self._result.refused = len(late)
        breaches = self._result.verdict.breaches
        if not late:
            breaches.append("the owner that was stopped had nothing in its hands")
        breaches += [f"{each.event}: an owner that had lost its shard settled it" for each in late if each.settled]
        # The server has all outcomes; those whose they are may not have heard of it yet.
        events = {each.event for each in late}
        await until(lambda: not events & self._undecided(child), "others to hear what became of their outcomes")
        breaches += [f"{event}: {self._taken()[event]} outcomes were taken" for event in events if self._taken()[event] > 1]

    def _taken(self) -> Counter[str]:
        return Counter(each.event for each in self._yard.handlings() if each.settled)

    def _undecided(self, stopped: int) -> set[str]:
        """Events whose outcome was reported by someone other than the stopped owner, who has not heard what became of it.

        One that loses its lease just then takes an outcome for refused that the server has taken.
        """
        return {each.event for each in self._yard.handlings() if each.settled is None and each.pid != stopped}

    async def _settle(self, what: str, began: float) -> None:
        """Wait until those that are there share evenly."""
        await self._yard.until_even(self._workers)
        self._result.steps.append(Step(what, began, time.monotonic()))


def _runs_long(handling: Handling, pid: int, before: set[str]) -> bool:
    return handling.pid == pid and handling.ended is None and handling.event not in before


def _all_owned(yard: Yard) -> bool:
    return all(len(owners) == 1 for owners in yard.ownership.now().owners)
