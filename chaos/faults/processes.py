"""Signals to worker processes: SIGKILL, and SIGSTOP for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from signal import SIGCONT, SIGKILL, SIGSTOP

from chaos.history import Fault
from chaos.stage import Stage, until
from chaos.workers import are_gone, send

BEYOND = 1.8
"""Seconds beyond the lease: enough for it to lapse."""

TRIES, LOOK_SECONDS = 250, 0.02
"""How often a process is looked at, and how soon again, before it is killed although it holds nothing."""


async def kill_child(stage: Stage) -> None:
    """The supervisor sees it and gives up the lease at once."""
    _, child = await stage.pick_child()
    await _kill(stage, "SIGKILL of a child", [child], [child])


async def kill_worker(stage: Stage) -> None:
    """Supervisor and children at once: nobody gives the lease up, it has to lapse."""
    worker, _ = await stage.pick_child()
    children = worker.children()
    await _kill(stage, "SIGKILL of a whole worker", [worker.pid, *children], children)
    await stage.begin_worker()


async def kill_supervisor(stage: Stage) -> None:
    """Its children see that and end themselves, in good order, within their lease."""
    worker, _ = await stage.pick_child()
    children = worker.children()
    at = send(SIGKILL, [worker.pid])
    await until(lambda: are_gone(children), "the orphans to end")
    stage.fault(Fault("SIGKILL of a supervisor", at, time.monotonic(), tuple(children), kills=True))
    await stage.begin_worker()


async def stop_child(stage: Stage) -> None:
    """For longer than a lease, which its supervisor keeps: what it holds waits for it."""
    _, child = await stage.pick_child()
    await _stop(stage, "SIGSTOP of a child", [child], stage.lease + BEYOND)


async def stop_supervisor(stage: Stage) -> None:
    """For longer than a lease: nobody renews it, and others take over what the children run."""
    worker = stage.pick()
    await _stop(stage, "SIGSTOP of a supervisor", [worker.pid], stage.lease + BEYOND, fenced=worker.children())


async def stop_worker(stage: Stage) -> None:
    """Supervisor and children, for longer than a lease."""
    worker = stage.pick()
    await _stop(stage, "SIGSTOP of a whole worker", worker.family, stage.lease + BEYOND, fenced=worker.children())


async def stop_worker_briefly(stage: Stage) -> None:
    """For less than a lease: nobody notices."""
    worker = stage.pick()
    await _stop(stage, "SIGSTOP of a whole worker, briefly", worker.family, stage.lease / 2)


async def _kill(stage: Stage, name: str, pids: Sequence[int], children: Sequence[int]) -> None:
    """Stopped first, so that the server can be asked what exactly they hold: a kill of who holds nothing teaches little."""
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
