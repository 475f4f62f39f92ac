"""A stage: one server, its workers, a producer and the ledger, for one case or several consecutive cases."""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.app import QUEUES, app
from chaos.checker import Verdict, judge
from chaos.history import Fault
from chaos.ledger import Ledger
from chaos.proxy import Proxy
from chaos.server import Engine, Fsync, PrivateServer, Server, fresh_server, replicated_pair
from chaos.workers import Worker, Workers
from millstream.backends.redis.keys import queue_keys

PATIENCE = 60.0
"""Seconds to wait for anything that must happen eventually. Generous, because the machine may be busy."""

POLL_SECONDS = 0.02


class Stuck(Exception):
    """Something that must happen did not."""


@dataclass(frozen=True)
class Setup:
    """What a case needs."""

    fsync: Fsync = "always"
    proxied: bool = False
    """Each worker and the producer reach the server through their own proxies."""
    skews: tuple[float, ...] = ()
    """Seconds by which the workers' wall clocks are wrong, one after another."""
    embedded: bool = False
    """Use an embedded server with its data on a small disk of its own."""
    replicated: bool = False
    """A second server replicates the first and can take its place. Needs proxies, which then lead to the new primary."""


@dataclass(frozen=True)
class Scale:
    """Numbers and durations of a case."""

    lease: float
    workers: int
    concurrency: int
    rate: float
    """Jobs enqueued per second."""
    between: int
    """Jobs that end between two strikes."""
    outage: float
    """Seconds for which a server is unreachable; in a full run longer than an enqueue waits."""


FULL = Scale(lease=2.0, workers=3, concurrency=8, rate=150.0, between=150, outage=6.5)
SHORT = Scale(lease=0.7, workers=2, concurrency=8, rate=60.0, between=15, outage=1.8)


class Stage:
    """The place where faults strike. Created by ``open_stage``."""

    def __init__(self, folder: Path, server: Server, setup: Setup, scale: Scale, rng: random.Random) -> None:
        self.server = server
        """The primary if there are two servers."""
        self.replica: PrivateServer | None = None
        self.setup = setup
        self.scale = scale
        self.lease = scale.lease
        self.rng = rng
        self.ledger = Ledger(folder)
        self.workers = Workers(folder)
        self.proxies: list[Proxy] = []
        """The proxies of the first workers, in order, then that of the producer."""
        self.notes: list[str] = []
        """Notes of a fault for the report."""
        self._skews = list(setup.skews)

    # -- workers -----------------------------------------------------------------------------------------------------------

    async def begin_worker(self, *, proxied: bool = True) -> Worker:
        """Start another worker without waiting until it is ready. On a proxied stage it gets its own proxy."""
        url = self.server.url
        if proxied and self.setup.proxied:
            proxy = await self.begin_proxy()
            self.proxies.append(proxy)
            url = proxy.url
        skew = self._skews.pop(0) if self._skews else 0.0
        arguments = ("--concurrency", str(self.scale.concurrency), "--threads", "4")
        return self.workers.launch(url, *arguments, skew=skew, lease=self.lease, grace=5)

    async def begin_proxy(self) -> Proxy:
        proxy = Proxy(self.server.path, self.rng)
        await proxy.start()
        return proxy

    async def until_serving(self, workers: Iterable[Worker]) -> None:
        """Wait until each worker has a process that claims."""
        for worker in workers:

            async def serves(worker: Worker = worker) -> bool:
                if worker.code is not None:
                    raise Stuck(f"a worker ended with {worker.code}:\n{worker.log}")
                return bool({info.pid for info in await app.inspector.workers()} & set(worker.children()))

            await until(serves, "a worker to be ready")

    def pick(self) -> Worker:
        """Return a random worker."""
        return self.rng.choice(self.workers.alive)

    async def pick_child(self) -> tuple[Worker, int]:
        """Return a random worker and one of its processes, once it has one."""
        worker = self.pick()
        await until(lambda: bool(worker.children()), "a worker to have a child")
        return worker, self.rng.choice(worker.children())

    async def held_by(self, pids: Iterable[int]) -> tuple[str, ...]:
        """Return the ids of the jobs that these processes have claimed, according to the server."""
        marks = [f"-{pid}-" for pid in pids]
        held: list[str] = []
        for queue in QUEUES:
            for job in await app.inspector.jobs(queue, "running", limit=1000):
                if any(mark in job.consumer for mark in marks):
                    held.append(job.id)
        return tuple(held)

    # -- faults ------------------------------------------------------------------------------------------------------------

    def fault(self, fault: Fault) -> None:
        """Write a fault to the ledger."""
        self.ledger.fault(fault)

    def until_ended(self, count: int) -> Callable[[], bool]:
        """Return a condition: ``count`` more jobs have ended since this call."""
        self.ledger.look()
        wanted = len(self.ledger.ends) + count

        def ended() -> bool:
            self.ledger.look()
            return len(self.ledger.ends) >= wanted

        return ended

    async def progress(self, count: int | None = None) -> None:
        """Wait until ``count`` more jobs end."""
        count = count or self.scale.between
        await until(self.until_ended(count), f"{count} more jobs to end")

    async def renewed(self) -> None:
        """Wait until every lease is renewed after an outage, so that the next fault finds healthy workers."""

        async def in_order() -> bool:
            seconds, micros = self.server.call("TIME")
            now_ms = int(seconds) * 1000 + int(micros) // 1000
            leases = [queue_keys(app.settings.namespace, queue)["leases"] for queue in QUEUES]
            return not any(self.server.call("ZRANGEBYSCORE", key, "-inf", now_ms) for key in leases)

        await until(in_order, "every lease to be renewed")

    # -- the end -----------------------------------------------------------------------------------------------------------

    async def left(self) -> int:
        """Return the number of unfinished jobs on the server."""
        states = [await app.inspector.queue(queue) for queue in QUEUES]
        return sum(state.ready + state.running + state.scheduled for state in states)

    async def drained(self) -> None:
        """Wait until the server has no unfinished job."""

        async def empty() -> bool:
            return await self.left() == 0

        await until(empty, "the queues to be empty")

    async def judge(self, *, bounded: bool) -> Verdict:
        """Judge every job."""
        dead = {letter.id: letter.reason for letter in await app.dead.list(limit=None)}
        verdict = judge(self.ledger.history(), lease=self.lease, dead=dead, left=await self.left(), bounded=bounded)
        verdict.breaches += [
            f"doctor reports for {finding.check}: {finding.found}"
            for finding in await app.inspector.examine()
            if finding.health == "bad"
        ]
        return verdict

    @property
    def logs(self) -> str:
        """The logs of all workers."""
        return "\n".join(f"log of worker {worker.pid}:\n{worker.log}" for worker in self.workers.all)

    async def stop_workers(self) -> list[str]:
        """Send SIGTERM, after which a healthy worker exits with 0. Return a description of each other exit."""
        alive = self.workers.alive
        await self.until_serving(alive)  # the last worker may have just been started
        for worker in alive:
            worker.signal(signal.SIGTERM)
        await until(lambda: all(worker.code is not None for worker in alive), "the workers to stop")
        return [f"a worker ended with {worker.code}" for worker in alive if worker.code]


@asynccontextmanager
async def open_stage(setup: Setup, scale: Scale, engine: Engine, rng: random.Random) -> AsyncGenerator[Stage]:
    """Start a server and its workers, and clean everything up at the end."""
    replica: PrivateServer | None = None
    server: Server
    if setup.replicated:
        server, replica = replicated_pair(engine)
    else:
        server = fresh_server(engine, setup.fsync, embedded=setup.embedded)
    with tempfile.TemporaryDirectory(prefix="chaos-ledger-") as folder:
        stage = Stage(Path(folder), server, setup, scale, rng)
        proxy: Proxy | None = None
        try:
            server.start()
            if replica is not None:
                stage.replica = replica
                replica.start()
                await until(lambda: in_sync(replica), "the replica to be in sync")
            proxy = await stage.begin_proxy() if setup.proxied else None
            with app.override(server.url if proxy is None else proxy.url):
                async with app:
                    await stage.until_serving([await stage.begin_worker() for _ in range(scale.workers)])
                    if proxy is not None:
                        stage.proxies.append(proxy)
                    yield stage
        finally:
            stage.workers.clean_up()
            for each in {*stage.proxies, *([proxy] if proxy else [])}:
                await each.stop()
            server.clean_up()
            if replica is not None:
                replica.clean_up()
            stage.ledger.close()


def in_sync(replica: Server) -> bool:
    """Return whether a replica has its first copy of the primary's data and follows it."""
    said: dict[str, object] = replica.call("INFO", "replication")
    return said.get("role") == "slave" and said.get("master_link_status") == "up"


async def beside(background: asyncio.Task[None], work: Coroutine[Any, Any, None]) -> None:
    """Run the work. If the background task fails first, fail with its error."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait((working, background), return_when=asyncio.FIRST_COMPLETED)
        if background.done():
            background.result()
        await working
    finally:
        working.cancel()


async def until(condition: Callable[[], object], what: str, within: float = PATIENCE) -> float:
    """Wait until the condition, which may be a coroutine function, holds. Return the seconds it took."""
    began = time.monotonic()
    while True:
        holds = condition()
        if asyncio.iscoroutine(holds):
            holds = await holds
        if holds:
            return time.monotonic() - began
        if time.monotonic() - began > within:
            raise Stuck(f"waited {within:g} s for {what}")
        await asyncio.sleep(POLL_SECONDS)
