"""The order trials: keys whose events or jobs fail, workers that are killed or stopped, and every key in order."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from chaos.order import OrderVerdict, judge_order
from chaos.ordered import Ordered, Rules
from chaos.server import Engine
from chaos.stage import Stuck, beside, until
from chaos.yard import Yard, open_yard
from millstream.model.ordering import OnFailure

KILLED_WORKER, KILLED_CHILD, SCALED_IN, RESTART = (
    "kills of workers", "kills of children", "scaled in", "server restarts"
)  # fmt: skip
STRIKES = (KILLED_WORKER, KILLED_CHILD, SCALED_IN)
"""The kinds of strikes that every run has at least once."""


@dataclass(frozen=True)
class OrderTest:
    """Numbers and durations of the trial."""

    on_failure: OnFailure
    of: Ordered = "topic"
    keys: int = 200
    events: int = 20_000
    shards: int = 8
    """Number of shards; 0: the unsharded queue of an ordered task, which every worker serves."""
    workers: int = 3
    """Number of workers. The last is scaled in and out, the others are killed."""
    lease: float = 2.0
    failing: float = 0.05
    doomed: int = 20
    """Number of keys with an event in the middle that dies. Half of these are rejected, half exhaust their retries."""
    every: float = 2.0
    """Seconds between kills, alternately of whole workers and of children."""
    rate: float = 600.0
    """Events per second."""
    seconds: tuple[float, float] = (0.001, 0.008)
    restart: bool = False
    """Whether the server restarts in the middle."""

    @property
    def what(self) -> str:
        """A short name of the trial."""
        return f"ordered {self.of}, {self.shards} shards" if self.shards else f"ordered {self.of}, no shards"

    @property
    def meaning(self) -> str:
        things = "events" if self.of == "topic" else "jobs"
        return (
            f"{self.keys} keys, {self.events:,} {things} of {self.seconds[0] * 1000:g} to {self.seconds[1] * 1000:g} ms at "
            f"{self.rate:g} per second, {self.workers} workers, lease {self.lease:g} s. "
            f"{self.failing:.0%} of all attempts fail, and {self.doomed} {things} of different keys fail for good. "
            f"Every {self.every:g} s, SIGKILL ends alternately a whole worker or only its child, and it is started again. "
            "In between, another worker is stopped with SIGTERM and started again."
        )


@dataclass
class OrderResult:
    """The result of the trial."""

    test: OrderTest
    server: str = ""
    verdict: OrderVerdict = field(default_factory=OrderVerdict)
    stopped: OrderVerdict | None = None
    """The verdict before the stopped keys were cleared."""
    keys_cleared: int = 0
    strikes: Counter[str] = field(default_factory=Counter[str])
    moves: int = 0
    unowned: float = 0.0
    """The longest time in seconds for which a shard had no living owner."""
    seconds: float = 0.0
    logs: str = ""
    """The workers' logs, if a promise was broken."""

    @property
    def breaches(self) -> list[str]:
        return [*(self.stopped.breaches if self.stopped else ()), *self.verdict.breaches]


TASKS = (
    OrderTest("stop", "task", events=5_000, shards=4, rate=350.0, restart=True),
    OrderTest("skip", "task", events=5_000, shards=0, rate=350.0, restart=True),
)
"""An ordered task, in a queue with shards and in one without."""


async def run(test: OrderTest, engine: Engine, seed: int) -> OrderResult:
    rng, began = random.Random(seed), time.monotonic()
    rules = Rules(test.of, shards=test.shards, on_failure=test.on_failure, failing=test.failing, seed=seed)
    result = OrderResult(test)
    async with open_yard(rules, test.lease, engine) as yard:
        result.server = yard.server.name
        try:
            await yard.until_even([yard.begin_worker() for _ in range(test.workers)])
            await _play(yard, test, result, rng)
            await _judge(yard, test, result)
        except Stuck as stuck:
            left = await yard.left()
            result.verdict = judge_order(yard.course(), stop=test.on_failure == "stop", left=left)
            result.verdict.breaches.insert(0, str(stuck))
        gaps = yard.ownership.gaps(yard.faults)
        result.moves, result.unowned = yard.ownership.moves(), max((gap.seconds for gap in gaps), default=0.0)
        result.verdict.breaches += yard.ownership.doubles()[:5]
        result.logs = yard.logs if result.breaches else ""
    result.seconds = time.monotonic() - began
    return result


async def _play(yard: Yard, test: OrderTest, result: OrderResult, rng: random.Random) -> None:
    """Send, strike at the same time, and wait until every message is done or dead."""

    async def produce() -> None:
        doomed = rng.sample(range(test.keys), test.doomed)
        half = (test.events - test.doomed) // 2
        await yard.produce(test.keys, test.rate, test.seconds, rng, half)
        await yard.publish((f"k{key}", test.seconds[0], ("rejected", "exhausted")[key % 2]) for key in doomed)
        await yard.produce(test.keys, test.rate, test.seconds, rng, half // 2)
        kinds = [*STRIKES, *([RESTART] if test.restart else [])]  # on a slow machine they come late
        await until(lambda: all(result.strikes[kind] for kind in kinds), "every kind of strike")
        rest = test.events - test.doomed - half - half // 2
        await yard.produce(test.keys, test.rate, test.seconds, rng, rest)

    striking = asyncio.create_task(_strike(yard, test, result.strikes, rng))
    try:
        await beside(striking, produce())
        await beside(striking, yard.drained())
    finally:
        striking.cancel()
        await asyncio.gather(striking, return_exceptions=True)


async def _strike(yard: Yard, test: OrderTest, strikes: Counter[str], rng: random.Random) -> None:
    *targets, guest = yard.workers.all
    turn = 0
    while True:
        await asyncio.sleep(test.every)
        turn += 1
        if test.restart and turn == 5:
            yard.server.end()
            await asyncio.to_thread(yard.server.start)
            strikes[RESTART] += 1
        if turn % 3 == 2:
            if guest.code is None:
                await yard.leave(guest)
                strikes[SCALED_IN] += 1
            else:
                guest = yard.begin_worker()
                strikes["scaled out"] += 1
        place = rng.randrange(len(targets))
        if turn % 2:
            yard.kill_worker(targets[place])
            targets[place] = yard.begin_worker()
            strikes[KILLED_WORKER] += 1
        else:
            yard.kill_child(await yard.child_of(targets[place]))
            strikes[KILLED_CHILD] += 1


async def _judge(yard: Yard, test: OrderTest, result: OrderResult) -> None:
    stop = test.on_failure == "stop"
    await yard.note_dead()
    if stop:
        result.stopped = judge_order(yard.course(), stop=True, left=await yard.left())
        result.keys_cleared = await yard.mend_and_clear()
        await yard.drained()
        await yard.note_dead()
    result.verdict = judge_order(yard.course(), stop=stop, left=await yard.left())
