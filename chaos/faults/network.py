"""What a network does, by a proxy between each client and the server: cuts, stalls, delays, half-open connections, lost and
torn replies."""

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
"""How long a call waits for its answer before its connection is given up."""

CHANCE = 0.05
"""How likely each reply is to be lost or torn."""


async def cut_all(stage: Stage) -> None:
    """Every connection is reset, and none can be made, for less than a lease."""
    await _on_all(stage, "connections cut", Proxy.cut, stage.lease * 0.6, away=True)


async def cut_one(stage: Stage) -> None:
    """One worker is cut off for longer than a lease: others take over what it was running, and it comes back as a new one."""
    worker, proxy = stage.rng.choice(list(zip(stage.workers.all, stage.proxies, strict=False)))
    children, began = worker.children(), time.monotonic()
    with proxy.cut():
        await asyncio.sleep(stage.lease + BEYOND)
    stage.fault(Fault("a worker cut off", began, time.monotonic(), tuple(children), fences=True))


async def stall_network(stage: Stage) -> None:
    """Nothing moves for longer than a lease; then everything arrives."""
    await _on_all(stage, "network stalled", Proxy.stalled, stage.scale.outage, away=True)


async def delay(stage: Stage) -> None:
    """Whatever is sent takes a twentieth of a lease longer, in either direction."""
    await _on_all(stage, "network delayed", lambda proxy: proxy.slow(stage.lease / 20), stage.lease)


async def half_open(stage: Stage) -> None:
    """Connections go silent and stay open: they are given up when a call is not answered, which takes longer than a lease."""
    began = time.monotonic()
    with ExitStack() as stack:
        for proxy in stage.proxies:
            stack.enter_context(proxy.silence())
        await asyncio.sleep(1.0)
    stage.fault(Fault("connections half-open", began, time.monotonic() + ANSWER_SECONDS, fences=True, away=True))


async def lose_replies(stage: Stage) -> None:
    """The server does what it is told, and the connection is reset before the answer arrives."""
    await _on_all(stage, "replies lost", lambda proxy: proxy.broken("lose", CHANCE), stage.lease)


async def tear_replies(stage: Stage) -> None:
    """The connection is reset in the middle of an answer."""
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
