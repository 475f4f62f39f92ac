"""Recycling: replaces a worker process that has reached ``--max-jobs`` or ``--max-memory``.

The new process serves before the old one stops claiming, and the old one ends when its running jobs have ended. So no job is
interrupted, and no job runs twice.
"""

from __future__ import annotations

import asyncio

from millstream.reporting import logs
from millstream.worker import messages
from millstream.worker.supervisor.children.child import Child
from millstream.worker.supervisor.children.managed_process import ManagedProcess
from millstream.worker.supervisor.children.processes import Processes
from millstream.worker.supervisor.stopping import Stopping

log = logs.logger("millstream.worker")

LOOK_SECONDS = 0.5
"""Seconds between two checks of the processes."""

SERVE_SECONDS = 60.0
"""Maximum seconds until a new process must serve. Until then, and if it never does, the old process keeps running."""

MB = 1_000_000


async def recycle(processes: Processes, stopping: Stopping) -> None:
    """Check the processes periodically, and replace those that have reached a limit, one at a time."""
    warned = False
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for process in list(processes.managed):
            if not warned and (text := too_small(process)):
                log.warning("%s", text)
                warned = True
            why = worn(process)
            if why and not stopping.begun:
                await _replace(process, why, processes, stopping)


def worn(process: ManagedProcess) -> str:
    """Return why a process should be replaced, or an empty string if it should not."""
    child = process.child
    if child is None or child.hello is None or child.told_to_stop or process.left:
        return ""
    orders, ran = child.orders, _ran(child)
    if orders.max_jobs and ran >= orders.max_jobs:
        return f"it has run {ran:,} job{'' if ran == 1 else 's'} (--max-jobs {orders.max_jobs})"
    if orders.max_memory and child.memory > orders.max_memory and (ran or child.held):
        return f"it uses {child.memory / MB:,.0f} MB (--max-memory {orders.max_memory / MB:,.0f}MB)"
    return ""


def too_small(process: ManagedProcess) -> str:
    """Return a warning if a process exceeds the memory limit before its first job, so that a new process would not help.
    Otherwise return an empty string."""
    child = process.child
    if child is None or not child.orders.max_memory or child.memory <= child.orders.max_memory:
        return ""
    if child.held or _ran(child):
        return ""
    return (
        f"worker process {child.pid} uses {child.memory / MB:,.0f} MB before its first job, more than --max-memory "
        f"{child.orders.max_memory / MB:,.0f}MB: every process is replaced after one job. Raise --max-memory"
    )


def _ran(child: Child) -> int:
    return sum(child.reported.values())


async def _replace(process: ManagedProcess, why: str, processes: Processes, stopping: Stopping) -> None:
    child = process.child
    assert child is not None
    log.info("worker process %d is replaced: %s", child.pid, why)
    process.left = True  # the new process counts instead of this one
    new = processes.begin()
    until = asyncio.get_running_loop().time() + SERVE_SECONDS
    while not new.serves and new in processes.managed and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.05)
    if new.serves:
        child.say(messages.Drain())
    elif process in processes.managed and not stopping.begun:
        log.error("worker process %d keeps running: no replacement could be started", child.pid)
        new.leave()
        process.left = False
