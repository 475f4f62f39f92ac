"""Busy survivors: workers die while every other worker is at its limit with long handlers."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from chaos.busy import BATCHED, CONSUMED, GROUP, HURRY, LANES, QUEUE, TASK, make_app, work
from chaos.checker import RECOVERY_SECONDS
from chaos.history import Fault
from chaos.server import Engine
from chaos.site import Site, open_site
from chaos.stage import Stuck, until
from chaos.trials.trial import TrialResult
from chaos.workers import Worker, send
from millstream import Delivery
from millstream.events.consumer import Consumer
from millstream.model.address import Address

MODULE = "chaos.busy"

NEVER = float("inf")

ORPHAN_SECONDS = 3600.0
"""Duration of the handlers that die with their workers."""


@dataclass(frozen=True)
class BusyTest:
    """Numbers and durations of the trial."""

    lease: float = 2.0
    seconds: float = 6.0
    """Duration of the survivors' handlers: more than the 5 s after which a gap between claims looks like a clock step."""
    backlog: int = 4
    """Jobs or batches per lane that the survivors run, one after another."""

    @property
    def bound(self) -> float:
        """Seconds from the kill until an orphaned job runs: the lease, the time to notice, and one handler."""
        return self.lease + RECOVERY_SECONDS + self.seconds

    @property
    def meaning(self) -> str:
        return (
            f"Two workers hold one job or batch of each kind of queue and group, and are killed with SIGKILL. All other "
            f"workers are at their limit, with handlers of {self.seconds:g} s, and more work waits. The lease is "
            f"{self.lease:g} s. The dead workers' messages must run within {self.bound:g} s: the lease, {RECOVERY_SECONDS:g} s "
            "and one handler."
        )


async def run(test: BusyTest, engine: Engine, seed: int, *, bounded: bool = True) -> TrialResult:
    """Run the trial. ``bounded``: a job that runs too late is a breach; otherwise, one that runs after the backlog."""
    del seed
    result, began = TrialResult("busy", "All survivors at their limit", test.meaning), time.monotonic()
    async with open_site(make_app, test.lease, engine) as site:
        result.server = site.server.name
        try:
            await _Trial(site, test, result, bounded).play()
        except Stuck as stuck:
            result.verdict.breaches.append(str(stuck))
        result.logs = site.logs if result.breaches else ""
    result.seconds = time.monotonic() - began
    return result


class _Trial:
    def __init__(self, site: Site, test: BusyTest, result: TrialResult, bounded: bool) -> None:
        self._site = site
        self._test = test
        self._result = result
        self._bounded = bounded
        self._orphans: dict[str, list[str]] = {}
        """Keys of the victims' messages, by lane."""

    async def play(self) -> None:
        site, test = self._site, self._test
        groups = [address for address in LANES.values() if address != QUEUE]
        victims = [self._begin(QUEUE), self._begin(*groups)]
        for lane, address in LANES.items():
            self._orphans[lane] = await self._send(address, "orphan", 1, ORPHAN_SECONDS)
        orphans = {key for keys in self._orphans.values() for key in keys}
        await until(lambda: orphans <= site.running().keys(), "the victims to run one message per lane")
        consumer = await self._consume()
        async with consumer:
            survivors = [self._begin(QUEUE), self._begin(*(each for each in groups if not each.startswith(CONSUMED)))]
            await site.until_serving(survivors)
            first = {key for address in LANES.values() for key in await self._send(address, "first", 1, test.seconds)}
            await until(lambda: first <= site.running().keys(), "the survivors to run one message per lane")
            for number in range(1, test.backlog):
                for address in LANES.values():
                    await self._send(address, f"later{number}", 1, test.seconds)
            at = self._kill(victims)
            try:
                await until(lambda: orphans <= self._begun_since(at).keys(), "the orphaned messages to run")
                (site.folder / HURRY).touch()
                await site.drained(LANES.values())
            finally:
                self._judge_orphans(at)
            self._result.verdict = await site.judge(LANES.values())

    def _begin(self, *addresses: str) -> Worker:
        """Start a worker of these lanes. The queue itself has no limit, so its worker has one."""
        chosen = [word for address in addresses for word in ("-q", address)]
        return self._site.begin_worker(MODULE, *chosen, *(("-c", "1") if QUEUE in addresses else ()))

    async def _consume(self) -> Consumer:
        """Return a consumer in this process, the only survivor that is not a worker."""
        folder = str(self._site.folder)

        async def handle(event: tuple[str, float], delivery: Delivery) -> None:
            await work(folder, [event[0]], event[1], [delivery.id], delivery.crashes)

        return await self._site.app.topics[CONSUMED].consume(GROUP, handle, concurrency=1)

    async def _send(self, address: Address, name: str, count: int, seconds: float) -> list[str]:
        """Send ``count`` jobs, events or batches. Return their keys."""
        site = self._site
        keys = [f"{address}/{name}/{number}" for number in range(count * (2 if address.log == BATCHED else 1))]
        for key in keys:
            if address.is_queue:
                job_id = (await site.app.tasks[TASK].enqueue(key, seconds)).id
            else:
                job_id = await site.app.topics[address.log].publish((key, seconds))
            site.ledger.enqueue(key, job_id, "accepted")
        return keys

    def _kill(self, victims: list[Worker]) -> float:
        supervisors, children = [each.pid for each in victims], [pid for each in victims for pid in each.children()]
        at = send(signal.SIGKILL, [*supervisors, *children])
        self._site.ledger.fault(Fault("SIGKILL of whole workers", at, time.monotonic(), tuple(children), kills=True))
        return at

    def _begun_since(self, at: float) -> dict[str, float]:
        """Return how many seconds after ``at`` each key started; if it started twice, the last time."""
        self._site.ledger.look()
        return {start.key: start.began - at for start in self._site.ledger.starts if start.began > at}

    def _judge_orphans(self, at: float) -> None:
        begun, last = self._begun_since(at), f"later{self._test.backlog - 1}"
        for lane, address in LANES.items():
            took = max(begun.get(key, NEVER) for key in self._orphans[lane])
            backlog = min((seconds for key, seconds in begun.items() if key.startswith(f"{address}/{last}/")), default=NEVER)
            found = "it never ran" if took == NEVER else f"{took:.1f} s"
            name = f"{lane}: the dead worker's message runs within {self._test.bound:g} s"
            # On a machine where times mean little: at least before the last message of the survivors' backlog.
            self._result.expect(name, found, took <= self._test.bound if self._bounded else took < backlog)
