"""A yard: one server, workers of the ordered topic or task, the owners of its shards, and a producer that sends in order."""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from chaos.history import Fault
from chaos.ledger import Tail
from chaos.order import Course, Death, Handling
from chaos.ordered import (
    GROUP,
    HANDLINGS,
    MENDED,
    QUEUE,
    RULES,
    TASK,
    TOPIC,
    HandlingLine,
    Parcel,
    Rules,
    handlings_of,
    make_app,
)
from chaos.ownership import Ownership
from chaos.proxy import Proxy
from chaos.server import Engine, PrivateServer
from chaos.stage import Stuck, until
from chaos.workers import Worker, Workers, send
from millstream import Millstream

CHUNK_SECONDS = 0.05
"""Seconds between two sends of a producer."""


class Yard:
    """Created by ``open_yard``."""

    def __init__(
        self, folder: Path, server: PrivateServer, app: Millstream, rules: Rules, lease: float, ownership: Ownership
    ) -> None:
        self.server = server
        self.rules = rules
        self.lease = lease
        self.ownership = ownership
        self.workers = Workers(folder)
        self.proxies: dict[int, Proxy] = {}
        """The proxies of proxied workers, by worker process."""
        self._keeper = app.group(TOPIC, GROUP) if rules.of == "topic" else app.queue(QUEUE, shards=rules.shards or None)
        self.faults: list[Fault] = []
        self.deaths: list[Death] = []
        self.published: defaultdict[str, list[str]] = defaultdict(list)
        self.namespace = app.settings.namespace
        self._app = app
        self._folder = folder
        self._events: dict[str, str] = {}
        self._tail = Tail(folder / HANDLINGS, HandlingLine)
        self._lines: list[HandlingLine] = []

    # -- workers -----------------------------------------------------------------------------------------------------------

    def begin_worker(self, *arguments: str, url: str = "") -> Worker:
        """Start another worker without waiting until it is ready. ``url``: another URL of the server."""
        environment = {RULES: msgspec.json.encode(self.rules).decode()}
        return self.workers.launch(
            url or self.server.url, *arguments, app="chaos.ordered:app", environment=environment, lease=self.lease, grace=10
        )

    async def begin_proxied_worker(self, rng: random.Random, *arguments: str) -> Worker:
        """Start another worker that has its own proxy."""
        proxy = Proxy(self.server.path, rng)
        await proxy.start()
        worker = self.begin_worker(*arguments, url=proxy.url)
        self.proxies[worker.pid] = proxy
        return worker

    async def child_of(self, worker: Worker) -> int:
        """Return the worker's process, once it shares the shards."""
        await until(lambda: self._child(worker), "a worker to be ready")
        return self._child(worker)

    def _child(self, worker: Worker) -> int:
        if worker.code is not None:
            raise Stuck(f"a worker ended with {worker.code}:\n{worker.log}")
        return max(self.ownership.now().members.intersection(worker.children()), default=0)

    def kill_worker(self, worker: Worker) -> None:
        """Kill supervisor and children together, so that nobody releases their leases and the leases have to lapse."""
        send(signal.SIGSTOP, [worker.pid])  # so that it starts no other child
        children = worker.children()
        at = send(signal.SIGKILL, [worker.pid, *children])
        self.faults.append(Fault("SIGKILL of a whole worker", at, time.monotonic(), tuple(children), kills=True))

    def kill_child(self, child: int) -> None:
        """Kill a child. Its supervisor notices, releases the leases immediately and starts another child."""
        at = send(signal.SIGKILL, [child])
        self.faults.append(Fault("SIGKILL of a child", at, time.monotonic(), (child,), kills=True))

    async def leave(self, worker: Worker) -> None:
        """Send SIGTERM, after which a healthy worker exits with 0."""
        await self.child_of(worker)
        worker.signal(signal.SIGTERM)
        await until(lambda: worker.code is not None, "a worker to stop")
        if worker.code:
            raise Stuck(f"a worker exited with {worker.code} after SIGTERM")

    async def until_even(self, workers: Iterable[Worker]) -> float:
        """Wait until these workers share all shards evenly, or are ready if there are no shards. Return the seconds it took."""
        workers = list(workers)

        def even() -> bool:
            children = [self._child(worker) for worker in workers]
            return all(children) and (not self.rules.shards or self.ownership.now().is_even_over(children))

        return await until(even, f"{len(workers)} workers to share the work evenly")

    # -- events ------------------------------------------------------------------------------------------------------------

    async def publish(self, parcels: Iterable[tuple[str, float, str]]) -> None:
        """Publish keys, seconds and dooms, in order, in one call."""
        batch: list[Parcel] = []
        for key, seconds, doom in parcels:
            event = f"{key}/{len(self.published[key])}"
            self.published[key].append(event)
            batch.append(msgspec.convert({"event": event, "key": key, "seconds": seconds, "doom": doom}, Parcel))
        ids = await self._send(batch)
        self._events.update((id, parcel.event) for id, parcel in zip(ids, batch, strict=True))

    async def _send(self, parcels: list[Parcel]) -> list[str]:
        if self.rules.of == "topic":
            return await self._app.topics[TOPIC].publish_many(parcels)
        errand = self._app.tasks[TASK]
        return [job.id for job in await self._app.enqueue_many(errand.bind(parcel) for parcel in parcels)]

    async def produce(self, keys: int, rate: float, seconds: tuple[float, float], rng: random.Random, count: int = 0) -> None:
        """Send events of random keys at ``rate`` per second: ``count`` in total, or until cancelled if 0."""
        sent, began = 0, time.monotonic()
        while not count or sent < count:
            await asyncio.sleep(CHUNK_SECONDS)
            due = int((time.monotonic() - began) * rate)
            due = min(due, count) if count else due
            await self.publish((f"k{rng.randrange(keys)}", round(rng.uniform(*seconds), 4), "") for _ in range(due - sent))
            sent = due

    def look(self) -> list[HandlingLine]:
        """Return every line written so far."""
        self._lines += self._tail.read()
        return self._lines

    def handlings(self) -> list[Handling]:
        return handlings_of(self.look())

    async def left(self) -> int:
        """Return the number of events on the server that are neither done nor dead."""
        state = await self._app.inspector.queue(self.rules.address)
        return state.ready + state.running + state.scheduled + state.blocked

    async def done(self) -> int:
        """Return the number of done events, according to the server."""
        return (await self._app.inspector.queue(self.rules.address)).totals["done"]

    async def drained(self) -> None:
        """Wait until every event is done or dead."""

        async def empty() -> bool:
            return await self.left() == 0

        await until(empty, "every event to be done or dead")

    async def note_dead(self) -> None:
        """Record every dead letter."""
        letters = await self._app.dead.list(queue=self.rules.address, limit=None)
        self.deaths += [Death(self._events[letter.id], letter.reason) for letter in letters]

    async def mend_and_clear(self) -> int:
        """Let doomed events succeed from now on, and clear every stopped key with replay. Return the number of keys."""
        (self._folder / MENDED).touch()
        keys = {stopped.key.decode() for stopped in await self._keeper.stopped_keys()}
        at = time.monotonic()
        for key in sorted(keys):
            await self._keeper.clear(key)
        self.deaths = [
            death._replace(cleared=at) if death.event.partition("/")[0] in keys and death.cleared is None else death
            for death in self.deaths
        ]
        return len(keys)

    def course(self) -> Course:
        return Course(self.published, self.handlings(), self.deaths, self.faults)

    @property
    def logs(self) -> str:
        """The logs of all workers."""
        return "\n".join(f"log of worker {worker.pid}:\n{worker.log}" for worker in self.workers.all)


@asynccontextmanager
async def open_yard(rules: Rules, lease: float, engine: Engine, proxy: Proxy | None = None) -> AsyncGenerator[Yard]:
    """Start a server without workers, and clean everything up at the end. ``proxy``: the producer's way to the server."""
    server = PrivateServer(engine)
    with tempfile.TemporaryDirectory(prefix="chaos-ledger-") as folder:
        yard: Yard | None = None
        try:
            server.start()
            if proxy is not None:
                proxy.server_path = server.path
                await proxy.start()
            app = make_app(rules, url=server.url if proxy is None else proxy.url)
            async with app:
                with Ownership(server, app.settings.namespace, rules.address, rules.shards) as ownership:
                    yard = Yard(Path(folder), server, app, rules, lease, ownership)
                    yield yard
        finally:
            if yard is not None:
                yard.workers.clean_up()
            for each in [*(yard.proxies.values() if yard is not None else ()), *([proxy] if proxy is not None else ())]:
                await each.stop()
            server.clean_up()
