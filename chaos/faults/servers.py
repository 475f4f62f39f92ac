"""Servers that restart, die, stall, forget, are emptied, full or not allowed to write."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from signal import SIGKILL, SIGTERM, Signals

from chaos.app import QUEUES, app, heavy
from chaos.history import Fault
from chaos.server import PrivateServer
from chaos.stage import Stage, in_sync, until
from millstream.backends.redis.keys import GROUP, queue_keys

BUFFERED_SECONDS = 2.0
"""With ``appendfsync everysec`` a server may answer, and write so much later: a slow disk makes it wait no longer than this."""

NAME_SECONDS = 0.5
"""The most a name takes to lead to the new primary."""

BALLAST_JOBS, BALLAST_BYTES = 60, 50_000


async def restart(stage: Stage) -> None:
    """In good order, and back with its append-only file."""
    await _end_and_start(stage, "restart of the server", SIGTERM)


async def go_away(stage: Stage) -> None:
    """For longer than an enqueue waits: it raises, and says under which id to send the job again."""
    await _end_and_start(stage, "server away", SIGTERM, seconds=stage.scale.outage)


async def kill_always(stage: Stage) -> None:
    """Every write is on disk before it is answered: nothing that was accepted may be lost."""
    await _end_and_start(stage, "SIGKILL of the server (always)", SIGKILL)


async def kill_everysec(stage: Stage) -> None:
    """Writes are handed to the kernel before they are answered, and reach the disk within a second. The death of the process
    loses what it had not handed over: on a slow disk up to the last two seconds, else nothing. A power cut, which is not shown
    here, would take what the kernel had not written, too: about the last second."""
    await _end_and_start(stage, "SIGKILL of the server (everysec)", SIGKILL, loses=BUFFERED_SECONDS)


async def stall(stage: Stage) -> None:
    """SIGSTOP for longer than a lease: connected to, and answering nobody."""
    began = time.monotonic()
    with _private(stage).stopped():
        await asyncio.sleep(stage.scale.outage)
    stage.fault(Fault("stall of the server", began, time.monotonic(), away=True))


async def flush_scripts(stage: Stage) -> None:
    """Scripts are loaded again by whoever misses them."""
    began = time.monotonic()
    stage.server.call("SCRIPT", "FLUSH")
    stage.fault(Fault("SCRIPT FLUSH", began, time.monotonic()))


async def destroy_groups(stage: Stage) -> None:
    """With the group goes the list of what was started: the group is made again, and what was running is run again, even what
    may start only once."""
    began = time.monotonic()
    for queue in QUEUES:
        stage.server.call("XGROUP", "DESTROY", queue_keys(app.settings.namespace, queue)["stream"], GROUP)
    await stage.progress()  # each worker notices at its next claim
    stage.fault(Fault("NOGROUP", began, time.monotonic(), forgets=True, forgets_starts=True))


async def flush_all(stage: Stage) -> None:
    """Everything is gone: jobs, leases, ids. Workers start anew, and what is sent from then on is safe."""
    began = time.monotonic()
    stage.server.call("FLUSHALL")
    stage.fault(Fault("FLUSHALL", began, time.monotonic(), loses_since=0.0))


async def fill(stage: Stage) -> None:
    """By jobs that wait: no enqueue is accepted until workers have settled some of them."""
    ballast = "x" * BALLAST_BYTES
    await app.queue("default").pause()
    before = stage.server.memory
    for i in range(BALLAST_JOBS):
        key = f"heavy-{time.monotonic():.6f}-{i}"
        job = await heavy.enqueue(key, 0.01, ballast)
        stage.ledger.enqueue(key, job.id, "accepted")
    began, full = time.monotonic(), stage.server.memory
    stage.server.call("CONFIG", "SET", "maxmemory", full - BALLAST_JOBS * BALLAST_BYTES // 3)
    try:
        await until(lambda: stage.server.refusals("OOM") > 0, "the server to refuse an enqueue")
        await app.queue("default").resume()
        refused = stage.server.refusals("OOM")
        await stage.progress()
        ended = time.monotonic()
    finally:
        stage.server.call("CONFIG", "SET", "maxmemory", 0)
    stage.fault(Fault("maxmemory", began, ended))
    stage.notes.append(
        f"{before / 1e6:.1f} MB before, full at {full / 1e6:.1f} MB, {refused} calls refused until work was settled, "
        f"{stage.server.memory / 1e6:.1f} MB when enqueues were accepted again"
    )


async def demote(stage: Stage) -> None:
    """A read-only replica of nobody refuses every write: outcomes are kept, nothing new begins, until it is a primary again."""
    began = time.monotonic()
    stage.server.call("REPLICAOF", "127.0.0.1", "1")
    try:
        await asyncio.sleep(stage.scale.outage)
    finally:
        stage.server.call("REPLICAOF", "NO", "ONE")
    stage.fault(Fault("read-only replica", began, time.monotonic(), away=True))


async def fail_over(stage: Stage) -> None:
    """A planned failover: the replica becomes the primary, the old primary its replica, and the name leads to the new one. The
    old connections stay open and answer every write with READONLY: clients must leave them. Nothing is lost, and nothing runs
    twice."""
    old, new = stage.server, stage.replica
    assert isinstance(old, PrivateServer) and new is not None
    began = time.monotonic()
    with ExitStack() as stack:
        for proxy in stage.proxies:  # FAILOVER would stop the clients too, but it makes Redis 7.0 crash under load
            stack.enter_context(proxy.stalled())
        await until(lambda: old.replicated == new.replicated, "the replica to have every write")
        new.call("REPLICAOF", "NO", "ONE")
        old.call("REPLICAOF", "127.0.0.1", new.port)
    await asyncio.sleep(stage.rng.uniform(0.0, NAME_SECONDS))
    for proxy in stage.proxies:
        proxy.server_path = new.path
    stage.fault(Fault("failover", began, time.monotonic(), away=True, restarts=True))
    stage.server, stage.replica = new, old
    await until(lambda: in_sync(old), "the old primary to follow the new one")


async def lose_leases(stage: Stage) -> None:
    """The keys that hold the leases are deleted, as an eviction or a wrong DEL does. The workers join again, and what they were
    running runs again: nothing is stranded."""
    began = time.monotonic()
    stage.server.call("DEL", *(queue_keys(app.settings.namespace, queue)["leases"] for queue in QUEUES))
    await stage.progress()
    stage.fault(Fault("lost leases", began, time.monotonic(), fences=True, forgets=True))


async def _end_and_start(
    stage: Stage, name: str, number: Signals, *, seconds: float | None = None, loses: float | None = None
) -> None:
    began = time.monotonic()
    _private(stage).end(number)
    await asyncio.sleep(stage.rng.uniform(0.1, 1.0) if seconds is None else seconds)
    await asyncio.to_thread(stage.server.start)
    loses_since = None if loses is None else began - loses
    stage.fault(Fault(name, began, time.monotonic(), away=True, restarts=True, loses_since=loses_since))


def _private(stage: Stage) -> PrivateServer:
    assert isinstance(stage.server, PrivateServer)
    return stage.server
