"""Servers that restart, die, stall, lose state, are flushed, full or read-only."""

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
"""With ``appendfsync everysec``, a server may reply this long before it writes. A slow disk delays it no longer than this."""

NAME_SECONDS = 0.5
"""The most time until a name resolves to the new primary."""

BALLAST_JOBS, BALLAST_BYTES = 60, 50_000


async def restart(stage: Stage) -> None:
    """The server shuts down cleanly and returns with its append-only file."""
    await _end_and_start(stage, "restart of the server", SIGTERM)


async def go_away(stage: Stage) -> None:
    """The server is unreachable for longer than an enqueue waits. The enqueue raises with the id for sending the job again."""
    await _end_and_start(stage, "server unreachable", SIGTERM, seconds=stage.scale.outage)


async def kill_always(stage: Stage) -> None:
    """Every write is on disk before the server replies, so no accepted job may be lost."""
    await _end_and_start(stage, "SIGKILL of the server (always)", SIGKILL)


async def kill_everysec(stage: Stage) -> None:
    """The server hands writes to the kernel before it replies, and the disk has them within a second. The death of the process
    loses the writes it had not handed over: up to the last two seconds on a slow disk, otherwise nothing. A power cut, which is
    not tested here, would also lose what the kernel had not written: about the last second."""
    await _end_and_start(stage, "SIGKILL of the server (everysec)", SIGKILL, loses=BUFFERED_SECONDS)


async def stall(stage: Stage) -> None:
    """The server is stopped with SIGSTOP for longer than a lease: it accepts connections but answers nothing."""
    began = time.monotonic()
    with _private(stage).stopped():
        await asyncio.sleep(stage.scale.outage)
    stage.fault(Fault("stall of the server", began, time.monotonic(), away=True))


async def flush_scripts(stage: Stage) -> None:
    """All scripts are flushed. Clients load a missing script again."""
    began = time.monotonic()
    stage.server.call("SCRIPT", "FLUSH")
    stage.fault(Fault("SCRIPT FLUSH", began, time.monotonic()))


async def destroy_groups(stage: Stage) -> None:
    """The consumer groups are destroyed, and with them the record of started jobs. Workers recreate the groups, and running
    jobs run again, even at-most-once jobs."""
    began = time.monotonic()
    for queue in QUEUES:
        stage.server.call("XGROUP", "DESTROY", queue_keys(app.settings.namespace, queue)["stream"], GROUP)
    await stage.progress()  # each worker notices at its next claim
    stage.fault(Fault("NOGROUP", began, time.monotonic(), forgets=True, forgets_starts=True))


async def flush_all(stage: Stage) -> None:
    """Everything is deleted: jobs, leases, ids. Workers register again, and jobs sent from then on are safe."""
    began = time.monotonic()
    stage.server.call("FLUSHALL")
    stage.fault(Fault("FLUSHALL", began, time.monotonic(), loses_since=0.0))


async def fill(stage: Stage) -> None:
    """Waiting jobs fill the memory. The server accepts no enqueue until workers have settled some of them."""
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
        f"{before / 1e6:.1f} MB before, full at {full / 1e6:.1f} MB, {refused} calls refused until jobs were settled, "
        f"{stage.server.memory / 1e6:.1f} MB when enqueues were accepted again"
    )


async def demote(stage: Stage) -> None:
    """A read-only replica refuses every write. Workers keep outcomes and start no new job, until it is a primary again."""
    began = time.monotonic()
    stage.server.call("REPLICAOF", "127.0.0.1", "1")
    try:
        await asyncio.sleep(stage.scale.outage)
    finally:
        stage.server.call("REPLICAOF", "NO", "ONE")
    stage.fault(Fault("read-only replica", began, time.monotonic(), away=True))


async def fail_over(stage: Stage) -> None:
    """A planned failover: the replica becomes the primary, the old primary its replica, and the name resolves to the new
    primary. Old connections stay open and answer every write with READONLY, so clients must leave them. No job is lost,
    and no job runs twice."""
    old, new = stage.server, stage.replica
    assert isinstance(old, PrivateServer) and new is not None
    began = time.monotonic()
    with ExitStack() as stack:
        for proxy in stage.proxies:  # FAILOVER would pause the clients too, but it crashes Redis 7.0 under load
            stack.enter_context(proxy.stalled())
        await until(lambda: old.replicated == new.replicated, "the replica to receive every write")
        new.call("REPLICAOF", "NO", "ONE")
        old.call("REPLICAOF", "127.0.0.1", new.port)
    await asyncio.sleep(stage.rng.uniform(0.0, NAME_SECONDS))
    for proxy in stage.proxies:
        proxy.server_path = new.path
    stage.fault(Fault("failover", began, time.monotonic(), away=True, restarts=True))
    stage.server, stage.replica = new, old
    await until(lambda: in_sync(old), "the old primary to follow the new one")


async def lose_leases(stage: Stage) -> None:
    """The lease keys are deleted, as by an eviction or a mistaken DEL. Workers register again, and their running jobs
    run again. No job is stranded."""
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
