"""Servers that fail over: Sentinel and Cluster under load, with and without waiting for replicas.

Each event has its own servers, one worker and a producer of every kind of job. It strikes in the middle. Afterwards the
producer and the worker must go on by themselves, and every job is accounted for.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from redis.crc import key_slot
from redis.exceptions import RedisError

from chaos.app import QUEUES, app
from chaos.checker import Verdict, judge
from chaos.history import Fault
from chaos.ledger import Ledger
from chaos.producer import Producer
from chaos.server import Engine, NotHere, PrivateServer
from chaos.stage import Stuck, until
from chaos.topologies import NODE_TIMEOUT_MS, Cluster, Sentinels, node_id
from chaos.trials.trial import TrialResult
from chaos.workers import Worker, Workers
from millstream.backends.redis.keys import namespace_keys, queue_keys

LEASE = 10.0
"""Longer than any failover here, so that no lease lapses because of it."""

RATE = 150.0
"""Jobs enqueued per second."""

AROUND_SECONDS = 2.0
"""Seconds of load before and after each event."""

GAP_SECONDS = 15.0
"""The most time without a start that counts as kept."""


@dataclass(frozen=True)
class Event:
    """One change of the servers."""

    name: str
    strike: Callable[[Site], Awaitable[None]]
    cluster: bool
    replicas: int = 1
    """Replicas that must acknowledge before a job counts as accepted."""
    beside: int = 1
    """Replicas of the primary behind sentinels. After a kill, one must be left to acknowledge. In a planned failover, the old
    primary accepts what the other replicas acknowledge until it is demoted, so there must be no other one."""
    loses: bool = False
    """Without confirmation, this event may lose what the primary accepted last."""

    @property
    def title(self) -> str:
        return f"{'Cluster' if self.cluster else 'Sentinel'}: {self.name}, replicas={self.replicas}"


class Site:
    """The servers of one event, and their worker."""

    def __init__(self, servers: Cluster | Sentinels, namespace: str) -> None:
        self.servers = servers
        self.namespace = namespace

    @property
    def cluster(self) -> Cluster:
        assert isinstance(self.servers, Cluster)
        return self.servers

    @property
    def sentinels(self) -> Sentinels:
        assert isinstance(self.servers, Sentinels)
        return self.servers

    @property
    def key(self) -> str:
        """A key of the busiest queue."""
        return queue_keys(self.namespace, QUEUES[0])["stream"]

    @property
    def url(self) -> str:
        """The URL. The only seed of a cluster is the node of the registry."""
        if isinstance(self.servers, Cluster):
            return self.servers.url_of(self.servers.primary_of(namespace_keys(self.namespace)["queues"]))
        return self.servers.url


# -- events ----------------------------------------------------------------------------------------------------------------


async def _kill_primary(site: Site) -> None:
    before = site.sentinels.primary
    before.end(signal.SIGKILL)
    await asyncio.to_thread(site.sentinels.until_changed, before)


async def _fail_over(site: Site) -> None:
    await asyncio.to_thread(site.sentinels.fail_over)


async def _fail_over_together(site: Site) -> None:
    try:
        await asyncio.to_thread(site.sentinels.fail_over, "COORDINATED")
    except RedisError as error:
        raise NotHere("this server has no coordinated failover") from error


async def _kill_sentinel(site: Site) -> None:
    site.sentinels.sentinels[-1].kill()
    await asyncio.sleep(NODE_TIMEOUT_MS / 1000)


async def _kill_master(site: Site) -> None:
    await _kill_node(site, site.key)


async def _kill_seed(site: Site) -> None:
    await _kill_node(site, namespace_keys(site.namespace)["queues"])


async def _kill_node(site: Site, key: str) -> None:
    node = site.cluster.primary_of(key)
    node.end(signal.SIGKILL)
    await until(lambda: site.cluster.primary_of(key) is not node, "a replica to be promoted")
    await asyncio.to_thread(node.start)  # it comes back as the replica that must acknowledge from now on


async def _cluster_failover(site: Site) -> None:
    node = site.cluster.primary_of(site.key)
    (replica,) = site.cluster.replicas_of(node)
    replica.call("CLUSTER", "FAILOVER")
    await until(lambda: site.cluster.primary_of(site.key) is replica, "the replica to be promoted")


async def _stall(site: Site) -> None:
    """Stop a primary for half of the time after which the others declare it dead."""
    with site.cluster.primary_of(site.key).stopped():
        await asyncio.sleep(NODE_TIMEOUT_MS / 2000)


async def _migrate_atomically(site: Site) -> None:
    slot, source = key_slot(site.key.encode()), site.cluster.primary_of(site.key)
    target = _another(site, source)
    try:
        source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node_id(target))
    except RedisError as error:
        raise NotHere("this server cannot move a slot in one step") from error
    await until(lambda: site.cluster.primary_of(site.key) is target, "the slot to move")


async def _migrate_keys(site: Site) -> None:
    await asyncio.to_thread(move_keys, site.cluster, key_slot(site.key.encode()), _another(site, None))


async def _add_node(site: Site) -> None:
    """Add a node, and give it the slots of all queues."""
    added = await asyncio.to_thread(site.cluster.add_node)
    for queue in QUEUES:
        slot = key_slot(queue_keys(site.namespace, queue)["stream"].encode())
        await asyncio.to_thread(move_keys, site.cluster, slot, added)


def _another(site: Site, but: PrivateServer | None) -> PrivateServer:
    """Return a primary that does not serve the busiest queue."""
    but = but or site.cluster.primary_of(site.key)
    return next(node for node in site.cluster.primaries if node is not but)


def move_keys(cluster: Cluster, slot: int, target: PrivateServer) -> None:
    """Move a slot key by key, as redis-cli does."""
    source = cluster.server_of(slot)
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))
    while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 10):
        source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for node in (target, source, *cluster.primaries):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", node_id(target))


EVENTS = (
    Event("SIGKILL of the primary", _kill_primary, cluster=False, beside=2),
    Event("SIGKILL of the primary", _kill_primary, cluster=False, replicas=0, loses=True),
    Event("failover", _fail_over, cluster=False),
    Event("failover", _fail_over, cluster=False, replicas=0, loses=True),
    Event("coordinated failover", _fail_over_together, cluster=False),
    Event("SIGKILL of a sentinel", _kill_sentinel, cluster=False),
    Event("SIGKILL of a primary", _kill_master, cluster=True),
    Event("SIGKILL of a primary", _kill_master, cluster=True, replicas=0, loses=True),
    Event("SIGKILL of the only seed", _kill_seed, cluster=True),
    Event("CLUSTER FAILOVER", _cluster_failover, cluster=True),
    Event("a primary stalls", _stall, cluster=True),
    Event("atomic migration", _migrate_atomically, cluster=True),
    Event("migration key by key", _migrate_keys, cluster=True),
    Event("a node is added", _add_node, cluster=True, replicas=0),
)


# -- the trial -------------------------------------------------------------------------------------------------------------


async def run(engine: Engine, seed: int, events: tuple[Event, ...] = EVENTS) -> TrialResult:
    """Run every event on servers of its own."""
    result, began = TrialResult("failovers", "Failovers", __doc__ or ""), time.monotonic()
    settings = app.settings
    for number, event in enumerate(events):
        try:
            await _run(event, engine, random.Random(seed + number), result)
        except NotHere as error:
            result.expect(event.title, f"not here: {error}", True)
        except Stuck as stuck:
            result.expect(event.title, str(stuck), False)
        finally:
            app.settings = settings
    result.seconds = time.monotonic() - began
    return result


async def _run(event: Event, engine: Engine, rng: random.Random, result: TrialResult) -> None:
    servers: Cluster | Sentinels = Cluster(engine, replicas=1) if event.cluster else Sentinels(engine, replicas=event.beside)
    with servers, tempfile.TemporaryDirectory(prefix="chaos-ledger-") as folder:
        ledger, workers = Ledger(Path(folder)), Workers(Path(folder))
        namespace = _spread(servers) if isinstance(servers, Cluster) else "millstream"
        app.settings = dataclasses.replace(app.settings, namespace=namespace, replicas=event.replicas)
        site = Site(servers, namespace)
        result.server = servers.servers[0].name if isinstance(servers, Sentinels) else servers.nodes[0].name
        try:
            with app.override(site.url):
                async with app:
                    worker = workers.launch(site.url, lease=LEASE, grace=5, namespace=namespace, replicas=event.replicas)
                    verdict = await _strike(event, site, worker, ledger, rng)
        finally:
            workers.clean_up()
            ledger.close()
        _note(event, verdict, ledger, result, worker)


async def _strike(event: Event, site: Site, worker: Worker, ledger: Ledger, rng: random.Random) -> Verdict:
    producer = Producer(ledger, rng, rate=RATE)
    sending = asyncio.create_task(producer.run())
    try:
        await until(lambda: _ended(ledger) >= RATE * AROUND_SECONDS, "jobs to run before the event")
        began = time.monotonic()
        await event.strike(site)
        lost_since = began - AROUND_SECONDS if event.loses and not event.replicas else None
        fault = Fault(
            event.name, began, time.monotonic(), forgets=True, forgets_starts=True, loses_since=lost_since, restarts=True
        )
        ledger.fault(fault)
        wanted = _ended(ledger) + RATE * AROUND_SECONDS
        await until(lambda: _ended(ledger) >= wanted, "jobs to run after the event")
    finally:
        producer.stop()
    await sending

    async def drained() -> bool:
        states = [await app.inspector.queue(queue) for queue in QUEUES]
        return not any(state.ready + state.running + state.scheduled for state in states)

    await until(drained, "the queues to be empty")
    dead = {letter.id: letter.reason for letter in await app.dead.list(limit=None)}
    verdict = judge(ledger.history(), lease=LEASE, dead=dead, bounded=False)
    if worker.code is not None:
        verdict.breaches.append(f"the worker ended with {worker.code}")
    return verdict


def _ended(ledger: Ledger) -> int:
    ledger.look()
    return len(ledger.ends)


def _note(event: Event, verdict: Verdict, ledger: Ledger, result: TrialResult, worker: Worker) -> None:
    starts = sorted(start.began for start in ledger.starts)
    gap = max((second - first for first, second in pairwise(starts)), default=0.0)
    found = (
        f"{verdict.accepted:,} accepted, {len(verdict.lost) + verdict.wiped} lost, {verdict.twice.total()} twice, "
        f"longest gap {gap:.1f} s"
    )
    allowed = event.loses and not event.replicas
    kept = not verdict.breaches and gap <= GAP_SECONDS and (allowed or not verdict.wiped)
    result.expect(event.title, found, kept)
    result.verdict.accepted += verdict.accepted
    result.verdict.done += verdict.done
    result.verdict.sent += verdict.sent
    result.verdict.wiped += verdict.wiped
    result.verdict.lost += verdict.lost
    result.verdict.twice.update(verdict.twice)
    result.verdict.breaches += [f"{event.title}: {breach}" for breach in verdict.breaches]
    if not kept:
        result.logs += f"\n{event.title}\n{worker.log}"


def _spread(cluster: Cluster) -> str:
    """Return a namespace whose queues are on different nodes."""
    for number in range(10_000):
        namespace = f"chaos{number}"
        nodes = {cluster.primary_of(queue_keys(namespace, queue)["stream"]).port for queue in QUEUES}
        if len(nodes) == len(QUEUES):
            return namespace
    raise RuntimeError("no namespace spreads the queues over the nodes")
