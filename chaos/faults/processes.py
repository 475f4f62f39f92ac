"""Signals to worker processes: SIGKILL, and a temporary SIGSTOP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from signal import SIGCONT, SIGKILL, SIGSTOP

from chaos.history import Fault
from chaos.stage import Stage, until
from chaos.workers import are_gone, send

BEYOND = 1.8
"""Seconds beyond the lease that are enough for it to lapse."""

TRIES, LOOK_SECONDS = 250, 0.02
"""How often and at which interval to look for a process that holds a job, before one is killed that holds none."""


async def kill_child(stage: Stage) -> None:
    """A child is killed. Its supervisor notices and releases the lease immediately."""
    _, child = await stage.pick_child()
    await _kill(stage, "SIGKILL of a child", [child], [child])


async def kill_worker(stage: Stage) -> None:
    """Supervisor and children are killed together. Nobody releases the lease, so it has to lapse."""
    worker, _ = await stage.pick_child()
    children = worker.children()
    await _kill(stage, "SIGKILL of a whole worker", [worker.pid, *children], children)
    await stage.begin_worker()


async def kill_supervisor(stage: Stage) -> None:
    """A supervisor is killed. Its children notice, and shut down cleanly within their lease."""
    worker, _ = await stage.pick_child()
    children = worker.children()
    at = send(SIGKILL, [worker.pid])
    await until(lambda: are_gone(children), "the orphans to end")
    stage.fault(Fault("SIGKILL of a supervisor", at, time.monotonic(), tuple(children), kills=True))
    await stage.begin_worker()


async def stop_child(stage: Stage) -> None:
    """A child is stopped for longer than a lease. Its supervisor renews the lease, so its jobs wait for it."""
    _, child = await stage.pick_child()
    await _stop(stage, "SIGSTOP of a child", [child], stage.lease + BEYOND)


async def stop_supervisor(stage: Stage) -> None:
    """A supervisor is stopped for longer than a lease. Nobody renews the lease, and other workers take over its jobs."""
    worker = stage.pick()
    await _stop(stage, "SIGSTOP of a supervisor", [worker.pid], stage.lease + BEYOND, fenced=worker.children())


async def stop_worker(stage: Stage) -> None:
    """Supervisor and children are stopped for longer than a lease. Other workers take over their jobs."""
    worker = stage.pick()
    await _stop(stage, "SIGSTOP of a whole worker", worker.family, stage.lease + BEYOND, fenced=worker.children())


async def stop_worker_briefly(stage: Stage) -> None:
    """Supervisor and children are stopped for less than a lease. It has no effect."""
    worker = stage.pick()
    await _stop(stage, "SIGSTOP of a whole worker, briefly", worker.family, stage.lease / 2)


async def _kill(stage: Stage, name: str, pids: Sequence[int], children: Sequence[int]) -> None:
    """Stop the processes first, so that the server can say which jobs they hold. Killing idle processes proves little."""
    at, held = await _stop_and_ask(stage, pids, children)
    for _ in range(TRIES):
        if held:
            break
        send(SIGCONT, pids)
        await asyncio.sleep(LOOK_SECONDS)
        at, held = await _stop_and_ask(stage, pids, children)
    send(SIGKILL, pids)
    stage.fault(Fault(name, at, time.monotonic(), tuple(children), kills=True, held=held))


async def _stop_and_ask(stage: Stage, pids: Sequence[int], children: Sequence[int]) -> tuple[float, tuple[str, ...]]:
    at = send(SIGSTOP, pids)
    return at, await stage.held_by(children)


async def _stop(stage: Stage, name: str, pids: Sequence[int], seconds: float, fenced: Sequence[int] = ()) -> None:
    at = send(SIGSTOP, pids)
    await asyncio.sleep(seconds)
    ended = send(SIGCONT, reversed(pids))
    stage.fault(Fault(name, at, ended, tuple(fenced or pids), fences=bool(fenced)))
