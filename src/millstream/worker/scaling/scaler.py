"""The scaler: a supervisor's service that sets the number of worker processes by its strategy or a manual request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from millstream.errors import BrokerError
from millstream.reporting import logs
from millstream.worker.scaling.metrics import Metrics
from millstream.worker.scaling.requests import Answer, unlikely
from millstream.worker.scaling.stabilizer import Stabilizer

log = logs.logger("millstream.worker")


class Team(Protocol):
    """The processes that are scaled."""

    @property
    def processes(self) -> int: ...
    @property
    def minimum(self) -> int: ...
    @property
    def maximum(self) -> int: ...
    @property
    def closed(self) -> str:
        """Why the number of processes must not change any more, or empty if it may."""
        ...

    def grow(self, count: int) -> str:
        """Start ``count`` more processes. Return why not if that is refused, otherwise an empty string."""
        ...

    async def shrink(self, count: int) -> int:
        """End up to ``count`` idle processes, and return how many end."""
        ...


class Scaler:
    """Decides at every poll, and counts every decision.

    Changes and refusals are logged with their reason. Of consecutive equal refusals, only the first is logged.
    """

    def __init__(
        self,
        team: Team,
        measure: Callable[[], Awaitable[Metrics]],
        strategy: Callable[[Metrics], Awaitable[int]],
        stabilizer: Stabilizer,
        poll: float,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._team = team
        self._measure = measure
        self._strategy = strategy
        self._stabilizer = stabilizer
        self._poll = poll
        self._changed = changed
        self._deciding = asyncio.Lock()
        self._by_hand: int | None = None
        self._by_hand_until = 0.0
        self._refusal = ""
        self.decisions = {"up": 0, "down": 0, "hold": 0, "refused": 0}
        self.last = ""

    @property
    def by_hand_until(self) -> float:
        """Epoch seconds until which a manual number of processes is in effect, or 0 if there is none."""
        left = self._by_hand_until - time.monotonic()
        return time.time() + left if self._by_hand is not None and left > 0 else 0.0

    async def run(self) -> None:
        """Decide at every poll until cancelled."""
        while True:
            await asyncio.sleep(self._poll)
            with contextlib.suppress(BrokerError):  # while the server is unreachable, the load is unknown
                await self.once()

    async def once(self) -> None:
        """Make one decision."""
        metrics = await self._measure()
        async with self._deciding:
            team = self._team
            if team.closed:
                return
            if self._holds_by_hand():
                assert self._by_hand is not None
                if team.processes != self._by_hand:
                    await self._go_to(self._by_hand, "manual request")
                return
            wanted = metrics.within(await self._strategy(metrics))
            if not self._stabilizer.passes(team.processes, wanted):
                self.decisions["hold"] += 1
                if wanted == team.processes:
                    self._refusal = ""
                return
            if await self._go_to(wanted, str(metrics)):
                self._stabilizer.acted()

    async def by_hand(self, wanted: int, hold: float) -> Answer:
        """Set the number of processes. The strategy does not change it for ``hold`` seconds."""
        async with self._deciding:
            team, before = self._team, self._team.processes
            why = team.closed or unlikely(wanted, hold) or self._outside(wanted)
            if why:
                self._count_refusal(f"manual request for {wanted} process{'' if wanted == 1 else 'es'} is refused: {why}")
                return Answer(False, why, before)
            self._by_hand, self._by_hand_until = wanted, time.monotonic() + hold
            if wanted != before:
                await self._go_to(wanted, "manual request")
            self._stabilizer.acted()
            await self._changed()
            return Answer(True, self._said(before, wanted), team.processes)

    def _said(self, before: int, wanted: int) -> str:
        now = self._team.processes
        if now < wanted:
            return f"number of processes: {now} of {wanted}; {self._refusal or 'no more could be started'}"
        if now > wanted:
            return f"number of processes: {now}; {now - wanted} more will end when idle"
        return f"number of processes: {now}, unchanged" if before == now else f"number of processes: {now} (before: {before})"

    def _outside(self, wanted: int) -> str:
        least, most = self._team.minimum, self._team.maximum
        if least <= wanted <= most:
            return ""
        if least == most:
            return f"it was started with --processes {least}; to scale it, start it with a range such as {least}..{least + 3}"
        return f"{wanted} is outside the bounds {least}..{most} of --processes"

    def _holds_by_hand(self) -> bool:
        if self._by_hand is not None and time.monotonic() >= self._by_hand_until:
            log.info("the manual number of processes (%d) has expired; the strategy decides again", self._by_hand)
            self._by_hand = None
        return self._by_hand is not None

    async def _go_to(self, wanted: int, reason: str) -> bool:
        """Start or end processes. Return whether their number changed."""
        before = self._team.processes
        if wanted > before:
            why = self._team.grow(wanted - before)
        else:
            why = "" if await self._team.shrink(before - wanted) else "no process is idle"
        now = self._team.processes
        if why:
            self._count_refusal(f"scaling from {before} to {wanted} processes is refused: {why} ({reason})", why)
            return False
        self.decisions["up" if wanted > before else "down"] += 1
        self._refusal = ""
        self.last = f"scaled {'up' if wanted > before else 'down'} from {before} to {now} processes: {reason}"
        log.info("%s", self.last)
        await self._changed()
        return True

    def _count_refusal(self, text: str, why: str = "") -> None:
        self.decisions["refused"] += 1
        if not why or why != self._refusal:
            log.info("%s", text)
        self._refusal = why
        self.last = text
