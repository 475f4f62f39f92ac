"""A yard: one server, workers of the ordered topic or task, who owns its shards, and a producer that sends in order."""

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
"""How often a producer sends."""


class Yard:
    """Make it by ``open_yard``."""

    def __init__(
        self, folder: Path, server: PrivateServer, app: Millstream, rules: Rules, lease: float, ownership: Ownership
    ) -> None:
        self.server = server
        self.rules = rules
        self.lease = lease
        self.ownership = ownership
        self.workers = Workers(folder)
        self.proxies: dict[int, Proxy] = {}
        """Of workers that reach the server through one, by their process."""
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
        """Start one more, which serves a little later. ``url``: another way to the server."""
        environment = {RULES: msgspec.json.encode(self.rules).decode()}
        return self.workers.launch(
            url or self.server.url, *arguments, app="chaos.ordered:app", environment=environment, lease=self.lease, grace=10
        )

    async def begin_proxied_worker(self, rng: random.Random, *arguments: str) -> Worker:
        """The same, through a proxy of its own."""
        proxy = Proxy(self.server.path, rng)
        await proxy.start()
        worker = self.begin_worker(*arguments, url=proxy.url)
        self.proxies[worker.pid] = proxy
        return worker

    async def child_of(self, worker: Worker) -> int:
        """Its process, once it is among those that share the shards."""
        await until(lambda: self._child(worker), "a worker to serve")
        return self._child(worker)

    def _child(self, worker: Worker) -> int:
        if worker.code is not None:
            raise Stuck(f"a worker ended with {worker.code}:\n{worker.log}")
        return max(self.ownership.now().members.intersection(worker.children()), default=0)

    def kill_worker(self, worker: Worker) -> None:
        """Supervisor and children at once: nobody gives their leases up, they have to lapse."""
        send(signal.SIGSTOP, [worker.pid])  # it begins no other meanwhile
        children = worker.children()
        at = send(signal.SIGKILL, [worker.pid, *children])
        self.faults.append(Fault("SIGKILL of a whole worker", at, time.monotonic(), tuple(children), kills=True))

    def kill_child(self, child: int) -> None:
        """Its supervisor sees it, gives its leases up at once, and starts another."""
        at = send(signal.SIGKILL, [child])
        self.faults.append(Fault("SIGKILL of a child", at, time.monotonic(), (child,), kills=True))

    async def leave(self, worker: Worker) -> None:
        """SIGTERM, which a healthy worker ends on with 0."""
        await self.child_of(worker)
        worker.signal(signal.SIGTERM)
        await until(lambda: worker.code is not None, "a worker to stop")
        if worker.code:
            raise Stuck(f"a worker that was told to stop ended with {worker.code}")

    async def until_even(self, workers: Iterable[Worker]) -> float:
        """Wait until these share all shards evenly, or serve the queue that has none; the seconds it took."""
        workers = list(workers)

        def even() -> bool:
            children = [self._child(worker) for worker in workers]
            return all(children) and (not self.rules.shards or self.ownership.now().is_even_over(children))

        return await until(even, f"{len(workers)} workers to share the work evenly")

    # -- events ------------------------------------------------------------------------------------------------------------

    async def publish(self, parcels: Iterable[tuple[str, float, str]]) -> None:
        """Keys, seconds and dooms, in order, in one call."""
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
        """So many a second, of random keys; so many of all, or 0: until cancelled."""
        sent, began = 0, time.monotonic()
        while not count or sent < count:
            await asyncio.sleep(CHUNK_SECONDS)
            due = int((time.monotonic() - began) * rate)
            due = min(due, count) if count else due
            await self.publish((f"k{rng.randrange(keys)}", round(rng.uniform(*seconds), 4), "") for _ in range(due - sent))
            sent = due

    def look(self) -> list[HandlingLine]:
        """Every line that was written until now."""
        self._lines += self._tail.read()
        return self._lines

    def handlings(self) -> list[Handling]:
        return handlings_of(self.look())

    async def left(self) -> int:
        """How many events the server has that are neither done nor dead."""
        state = await self._app.inspector.queue(self.rules.address)
        return state.ready + state.running + state.scheduled + state.blocked

    async def done(self) -> int:
        """How many the server says are done."""
        return (await self._app.inspector.queue(self.rules.address)).totals["done"]

    async def drained(self) -> None:
        """Wait until nothing is left."""

        async def empty() -> bool:
            return await self.left() == 0

        await until(empty, "every event to be done or dead")

    async def note_dead(self) -> None:
        """Write down every dead letter there is."""
        letters = await self._app.dead.list(queue=self.rules.address, limit=None)
        self.deaths += [Death(self._events[letter.id], letter.reason) for letter in letters]

    async def mend_and_clear(self) -> int:
        """What was doomed goes well from now on, and every stopped key is cleared, with replay; how many keys that were."""
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
        """What every worker said."""
        return "\n".join(f"worker {worker.pid} said:\n{worker.log}" for worker in self.workers.all)


@asynccontextmanager
async def open_yard(rules: Rules, lease: float, engine: Engine, proxy: Proxy | None = None) -> AsyncGenerator[Yard]:
    """A server without workers yet, and nothing left of any afterwards. ``proxy``: the way of the producer to the server."""
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
