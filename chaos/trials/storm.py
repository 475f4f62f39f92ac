"""The storm: many kinds of faults at random, several at the same time, while ordered work runs at the limit of each worker."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from chaos.checker import Verdict
from chaos.faults.network import ANSWER_SECONDS, CHANCE
from chaos.faults.processes import BEYOND
from chaos.history import Fault
from chaos.order import judge_order
from chaos.ordered import Ordered, Rules
from chaos.proxy import Proxy
from chaos.server import Engine
from chaos.stage import Stuck, beside
from chaos.trials.trial import TrialResult
from chaos.workers import Worker, send
from chaos.yard import Yard, open_yard
from millstream.backends.redis.keys import queue_keys

NOTICE_SECONDS = 1.5
"""Seconds after which a worker has noticed that it lost its lease: it claims every second."""


@dataclass(frozen=True)
class StormTest:
    """Numbers and durations of the trial."""

    of: Ordered = "task"
    shards: int = 0
    seconds: float = 20.0
    """Duration of the storm."""
    keys: int = 60
    rate: float = 150.0
    """Jobs or events per second."""
    workers: int = 3
    concurrency: int = 4
    lease: float = 3.0
    failing: float = 0.05
    between: tuple[float, float] = (0.3, 1.5)
    """Seconds between the starts of two strikes. A strike may last longer than the lease, so strikes overlap."""
    took: tuple[float, float] = (0.005, 0.05)
    """Shortest and longest duration of a handler."""

    @property
    def meaning(self) -> str:
        what = "jobs of an ordered task" if self.of == "task" else f"events of an ordered topic with {self.shards} shards"
        return (
            f"For {self.seconds:g} s, faults strike at random, {self.between[0]:g} to {self.between[1]:g} s apart, several at "
            "the same time: kills and stops of workers, cut, silent and torn connections, restarts and kills of the server, "
            f"deleted leases and scripts. {self.workers} workers of concurrency {self.concurrency} run {what}: {self.keys} "
            f"keys, {self.rate:g} messages per second. {self.failing:.0%} of all attempts fail. The lease is {self.lease:g} s."
        )


TESTS: dict[Engine, StormTest] = {"valkey": StormTest(), "redis": StormTest("topic", shards=4)}
"""A different kind of order on each kind of server."""


async def run(test: StormTest, engine: Engine, seed: int) -> TrialResult:
    rng, began = random.Random(seed), time.monotonic()
    result = TrialResult("storm", "The storm", test.meaning)
    rules = Rules(test.of, shards=test.shards, failing=test.failing, seed=seed)
    proxy = Proxy("", rng)
    async with open_yard(rules, test.lease, engine, proxy) as yard:
        result.server = yard.server.name
        storm = _Storm(yard, test, proxy, rng)
        try:
            await storm.play()
        except Stuck as stuck:
            result.verdict.breaches.append(str(stuck))
        await _judge(yard, storm, result)
        result.logs = yard.logs if result.breaches else ""
    result.seconds = time.monotonic() - began
    return result


async def _judge(yard: Yard, storm: _Storm, result: TrialResult) -> None:
    await yard.note_dead()
    order = judge_order(yard.course(), stop=False, left=await yard.left())
    breaches = [*result.verdict.breaches, *order.breaches, *yard.ownership.doubles()[:5]]
    twice = Counter({"faults": order.again} if order.again else {})
    result.verdict = Verdict(order.published, order.published, done=order.done, dead=order.dead, twice=twice, breaches=breaches)
    struck = ", ".join(f"{count} {what}" for what, count in sorted(storm.strikes.items()))
    result.expect("every accepted message is done, each key in order and one at a time", struck, not breaches)
    codes = f"exit codes {', '.join(map(str, storm.ended))}" if storm.ended else "none did"
    result.expect("no worker exits unless it was killed", codes, not storm.ended)


class _Storm:
    def __init__(self, yard: Yard, test: StormTest, producer: Proxy, rng: random.Random) -> None:
        self._yard = yard
        self._test = test
        self._producer = producer
        self._rng = rng
        self._free: list[Worker] = []
        """Workers that no strike is using."""
        self._killed: set[int] = set()
        self._server = asyncio.Lock()
        self.strikes: Counter[str] = Counter()
        self.ended: list[int] = []
        """Exit codes of workers that exited by themselves."""

    async def play(self) -> None:
        test, yard = self._test, self._yard
        self._free = [await self._begin() for _ in range(test.workers)]
        await yard.until_even(self._free)
        producing = asyncio.create_task(yard.produce(test.keys, test.rate, test.took, self._rng))
        try:
            await beside(producing, self._strike_for(test.seconds))
        finally:
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)
        await yard.drained()
        self.ended = [worker.code for worker in yard.workers.all if worker.code is not None and worker.pid not in self._killed]

    async def _begin(self) -> Worker:
        return await self._yard.begin_proxied_worker(self._rng, "--concurrency", str(self._test.concurrency))

    async def _strike_for(self, seconds: float) -> None:
        until, under_way = time.monotonic() + seconds, set[asyncio.Task[None]]()
        while time.monotonic() < until:
            await asyncio.sleep(self._rng.uniform(*self._test.between))
            strike = self._rng.choice(self._all())
            under_way.add(asyncio.create_task(strike()))
            for done in [each for each in under_way if each.done()]:
                under_way.discard(done)
                done.result()
        await asyncio.gather(*under_way)

    def _all(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        return (
            self._kill_child,
            self._kill_worker,
            self._stop_worker,
            self._cut_worker,
            self._cut_all,
            self._lose_replies,
            self._tear_replies,
            self._forget_connections,
            self._restart,
            self._kill_server,
            self._flush_scripts,
            self._delete_leases,
        )

    # -- processes ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _taken(self) -> Iterator[Worker | None]:
        """Yield a ready worker for one strike alone, or None if there is none."""
        chosen = self._rng.choice(self._free) if self._free else None
        if chosen is not None:
            self._free.remove(chosen)
        try:
            yield chosen
        finally:
            if chosen is not None and chosen.pid not in self._killed:
                self._free.append(chosen)

    async def _kill_child(self) -> None:
        with self._taken() as worker:
            if worker is not None and (children := worker.children()):
                self._yard.kill_child(children[0])
                self.strikes["kills of children"] += 1

    async def _kill_worker(self) -> None:
        with self._taken() as worker:
            if worker is not None:
                self._killed.add(worker.pid)
                self._yard.kill_worker(worker)
                self._free.append(await self._begin())
                self.strikes["kills of workers"] += 1

    async def _stop_worker(self) -> None:
        with self._taken() as worker:
            if worker is not None:
                pids, children = worker.family, worker.children()
                at = send(signal.SIGSTOP, pids)
                await asyncio.sleep(self._rng.uniform(0.2, self._test.lease + BEYOND))
                ended = send(signal.SIGCONT, reversed(pids))
                self._fence("SIGSTOP of a worker", at, ended, children)

    # -- network -----------------------------------------------------------------------------------------------------------

    async def _cut_worker(self) -> None:
        with self._taken() as worker:
            if worker is not None:
                began, children = time.monotonic(), worker.children()
                with self._yard.proxies[worker.pid].cut():
                    await asyncio.sleep(self._rng.uniform(0.2, self._test.lease + BEYOND))
                self._fence("a worker cut off", began, time.monotonic() + NOTICE_SECONDS, children)

    async def _cut_all(self) -> None:
        await self._on_network("all connections cut", Proxy.cut, self._rng.uniform(0.1, 1.0))

    async def _lose_replies(self) -> None:
        await self._on_network("replies lost", lambda proxy: proxy.broken("lose", CHANCE), 1.0)

    async def _tear_replies(self) -> None:
        await self._on_network("replies torn", lambda proxy: proxy.broken("tear", CHANCE), 1.0)

    async def _forget_connections(self) -> None:
        """Drop one worker's connections. It notices when a call times out, and its lease may have lapsed by then."""
        with self._taken() as worker:
            if worker is not None:
                began, children = time.monotonic(), worker.children()
                self._yard.proxies[worker.pid].forget_all()
                await asyncio.sleep(ANSWER_SECONDS)
                self._fence("connections half-open", began, time.monotonic() + NOTICE_SECONDS, children)

    async def _on_network(self, name: str, misbehave: Callable[[Proxy], AbstractContextManager[None]], seconds: float) -> None:
        began = time.monotonic()
        with ExitStack() as stack:
            for proxy in (self._producer, *self._yard.proxies.values()):
                stack.enter_context(misbehave(proxy))
            await asyncio.sleep(seconds)
        self._note(Fault(name, began, time.monotonic(), away=True))

    # -- the server --------------------------------------------------------------------------------------------------------

    async def _restart(self) -> None:
        await self._end_and_start("server restarts", signal.SIGTERM)

    async def _kill_server(self) -> None:
        await self._end_and_start("server kills", signal.SIGKILL)

    async def _end_and_start(self, name: str, number: signal.Signals) -> None:
        async with self._server:
            began = time.monotonic()
            self._yard.server.end(number)
            await asyncio.sleep(self._rng.uniform(0.05, 0.8))
            await asyncio.to_thread(self._yard.server.start)
            self._note(Fault(name, began, time.monotonic(), away=True, restarts=True))

    async def _flush_scripts(self) -> None:
        async with self._server:
            self._yard.server.call("SCRIPT", "FLUSH")
            self.strikes["SCRIPT FLUSH"] += 1

    async def _delete_leases(self) -> None:
        """Delete the leases at every address: running messages are taken over although their workers live."""
        rules = self._yard.rules
        addresses = [rules.address, *rules.address.shards(rules.shards)]
        async with self._server:
            began, children = time.monotonic(), [pid for worker in self._yard.workers.alive for pid in worker.children()]
            self._yard.server.call("DEL", *(queue_keys(self._yard.namespace, each)["leases"] for each in addresses))
            self._fence("leases deleted", began, began + NOTICE_SECONDS, children)

    # -- the record --------------------------------------------------------------------------------------------------------

    def _fence(self, name: str, began: float, ended: float, pids: list[int]) -> None:
        self._note(Fault(name, began, ended, tuple(pids), fences=True))

    def _note(self, fault: Fault) -> None:
        self._yard.faults.append(fault)
        self.strikes[fault.name] += 1
