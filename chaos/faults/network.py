"""Network faults, by a proxy between each client and the server: cuts, stalls, delays, half-open connections, lost and torn
replies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from chaos.faults.processes import BEYOND
from chaos.history import Fault
from chaos.proxy import Proxy
from chaos.stage import Stage
from millstream.backends.redis.link import CALL_TIMEOUT

ANSWER_SECONDS = CALL_TIMEOUT
"""How long a call waits for its answer before its connection is closed."""

CHANCE = 0.05
"""Probability that a reply is lost or torn."""


async def cut_all(stage: Stage) -> None:
    """All connections are reset, and new ones are refused, for less than a lease."""
    await _on_all(stage, "connections cut", Proxy.cut, stage.lease * 0.6, away=True)


async def cut_one(stage: Stage) -> None:
    """One worker is cut off for longer than a lease. Other workers take over its running jobs, and it registers again."""
    worker, proxy = stage.rng.choice(list(zip(stage.workers.all, stage.proxies, strict=False)))
    children, began = worker.children(), time.monotonic()
    with proxy.cut():
        await asyncio.sleep(stage.lease + BEYOND)
    stage.fault(Fault("a worker cut off", began, time.monotonic(), tuple(children), fences=True))


async def stall_network(stage: Stage) -> None:
    """No data moves for longer than a lease. Then everything arrives."""
    await _on_all(stage, "network stalled", Proxy.stalled, stage.scale.outage, away=True)


async def delay(stage: Stage) -> None:
    """All data is delayed by a twentieth of a lease, in either direction."""
    await _on_all(stage, "network delayed", lambda proxy: proxy.slow(stage.lease / 20), stage.lease)


async def half_open(stage: Stage) -> None:
    """Connections go silent but stay open. A client closes one when a call times out, which takes longer than a lease."""
    began = time.monotonic()
    with ExitStack() as stack:
        for proxy in stage.proxies:
            stack.enter_context(proxy.silence())
        await asyncio.sleep(1.0)
    stage.fault(Fault("connections half-open", began, time.monotonic() + ANSWER_SECONDS, fences=True, away=True))


async def lose_replies(stage: Stage) -> None:
    """The server executes the command, and the connection is reset before the reply arrives."""
    await _on_all(stage, "replies lost", lambda proxy: proxy.broken("lose", CHANCE), stage.lease)


async def tear_replies(stage: Stage) -> None:
    """The connection is reset in the middle of a reply."""
    await _on_all(stage, "replies torn", lambda proxy: proxy.broken("tear", CHANCE), stage.lease)


async def _on_all(
    stage: Stage, name: str, misbehave: Callable[[Proxy], AbstractContextManager[None]], seconds: float, *, away: bool = False
) -> None:
    began = time.monotonic()
    with ExitStack() as stack:
        for proxy in stage.proxies:
            stack.enter_context(misbehave(proxy))
        await asyncio.sleep(seconds)
    stage.fault(Fault(name, began, time.monotonic(), away=away))
