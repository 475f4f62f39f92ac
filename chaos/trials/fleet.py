"""A mixed fleet: workers of two releases serve one queue, and the older ones do not know every task."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from signal import SIGCONT, SIGSTOP
from typing import Any

from chaos.fleet import QUEUE, RETRY, VERSION, Version, make_app
from chaos.server import Engine
from chaos.site import Site, open_site
from chaos.stage import Stuck
from chaos.trials.trial import TrialResult
from chaos.workers import Worker, send
from millstream.jobs.call import Call

MODULE = "chaos.fleet"

UNHEARD_OF = "unheard_of"
"""The task that no worker knows."""


@dataclass(frozen=True)
class FleetTest:
    """Numbers and durations of the trial."""

    old: int = 3
    """Number of workers that do not know the new tasks. One worker knows them."""
    jobs: int = 50
    """Jobs of each kind and wave."""
    snoozes: int = 12
    """How often each snoozing job requests a later run, one second later; in total longer than the grace period."""
    grace: float = 10.0
    """``unknown_task_grace``."""
    late: float = 2.0
    """Seconds for which the worker that knows the new tasks is stopped after the first jobs were sent; less than the lease and
    the grace period."""
    lease: float = 5.0
    bound: float = 30.0
    """Seconds within which every job must be done."""

    @property
    def meaning(self) -> str:
        return (
            f"{self.old} workers of an old release and one of a new release serve one queue. The new one is stopped for the "
            f"first {self.late:g} s. There are two waves of {self.jobs} jobs each of a shared task, a new task, "
            f"a new task that fails {RETRY.max_retries} times and a new task that snoozes {self.snoozes} times, and "
            f"one job of a task that no worker knows. `unknown_task_grace` is {self.grace:g} s."
        )


async def run(test: FleetTest, engine: Engine, seed: int, *, bounded: bool = True) -> TrialResult:
    """Run the trial. ``bounded``: taking too long is a breach. Which worker claims which job is random."""
    del seed
    result, began = TrialResult("fleet", "Workers of two releases", test.meaning), time.monotonic()
    async with open_site(make_app, test.lease, engine, unknown_task_grace=test.grace) as site:
        result.server = site.server.name
        try:
            await _play(site, test, result, bounded)
        except Stuck as stuck:
            result.verdict.breaches.append(str(stuck))
        result.logs = site.logs if result.breaches else ""
    result.seconds = time.monotonic() - began
    return result


async def _play(site: Site, test: FleetTest, result: TrialResult, bounded: bool) -> None:
    new = _begin(site, "new")
    await site.until_serving([new, *(_begin(site, "old") for _ in range(test.old))])
    family = new.family
    began = send(SIGSTOP, family)
    try:
        await _send(site, test, "first")
        unheard_of = await site.app.tasks[UNHEARD_OF].enqueue(UNHEARD_OF)
        await asyncio.sleep(test.late)
    finally:
        send(SIGCONT, reversed(family))
    await _send(site, test, "second")
    try:
        await site.drained([QUEUE])
    finally:
        took = time.monotonic() - began
        dead = [letter for letter in await site.app.dead.list(limit=None) if letter.id != unheard_of.id]
        unknown = [letter.id for letter in dead if letter.reason == "unknown_task"]
        name = "no job dies as `unknown_task` while a worker that knows its task lives"
        result.expect(name, f"{len(unknown)} of {8 * test.jobs} did", not unknown)
    result.expect(f"every job is done within {test.bound:g} s", f"{took:.1f} s", took <= test.bound or not bounded)
    letter = await site.app.dead.show(unheard_of.id)
    assert letter is not None and letter.enqueued_at is not None
    lived = (letter.died_at - letter.enqueued_at).total_seconds()
    result.expect(
        f"a job of a task that no worker knows dies as `unknown_task`, and not before {test.grace:g} s",
        f"{letter.reason} after {lived:.1f} s",
        letter.reason == "unknown_task" and lived >= test.grace,
    )
    site.ledger.enqueue(UNHEARD_OF, unheard_of.id, "unknown")  # the checker accepts only crashes as a cause of death
    await site.app.dead.purge(unheard_of.id)
    result.verdict = await site.judge([QUEUE])


def _begin(site: Site, version: Version) -> Worker:
    return site.begin_worker(MODULE, "--concurrency", "8", environment={VERSION: version})


async def _send(site: Site, test: FleetTest, wave: str) -> None:
    tasks, calls = site.app.tasks, dict[str, Call[Any]]()
    for number in range(test.jobs):
        for name in ("shared", "fresh", "failing", "snoozing"):
            key = f"{name}-{wave}-{number}"
            calls[key] = tasks[name].bind(key, test.snoozes) if name == "snoozing" else tasks[name].bind(key)
    for key, job in zip(calls, await site.app.enqueue_many(calls.values()), strict=True):
        site.ledger.enqueue(key, job.id, "accepted")
