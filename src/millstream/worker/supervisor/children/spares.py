"""Spare processes: each runs the suspects of one queue, one at a time, and ends."""

from __future__ import annotations

import time

import msgspec

from millstream.model.address import Address
from millstream.reporting import logs
from millstream.worker import codes, messages
from millstream.worker.supervisor.children.circuit import PROBE_SECONDS, Circuit
from millstream.worker.supervisor.children.launcher import Launcher
from millstream.worker.supervisor.children.lives import Lives
from millstream.worker.supervisor.stopping import Stopping

log = logs.logger("millstream.worker")


class Spares:
    """Runs one spare process at a time. After each quick death, the delay before the next one grows. Suspects wait that long;
    other jobs are not affected."""

    def __init__(self, orders: messages.Orders, launcher: Launcher, lives: Lives, stopping: Stopping) -> None:
        self.circuit = Circuit()
        self._orders = orders
        self._launcher = launcher
        self._lives = lives
        self._stopping = stopping
        self._running = False
        self._not_before = float("-inf")

    def isolate(self, queue: Address) -> None:
        """Start a spare process for the suspects of a queue. Called repeatedly while the queue has suspects."""
        if self._stopping.begun or self._running or time.monotonic() < self._not_before:
            return
        log.warning("queue %r has jobs that were running when workers died; a spare process runs each of them alone", queue)
        self._running = True
        orders = msgspec.structs.replace(self._orders, queues=[queue], burst=False, suspects_only=True)
        self._lives.begin(self._run(orders), self._ended)

    async def _run(self, orders: messages.Orders) -> None:
        try:
            child = await self._launcher.start(orders)
        except OSError as error:
            log.error("a spare process could not be started; trying again: %s", error)
            self._died(0.0)
            return
        code = await child.process.wait()
        held = await self._launcher.reap(child, code)
        if child.told_to_stop:
            return
        if code == codes.OK or child.was_blameless(held):
            self.circuit.serves()
        else:
            self._died(child.lived(code))

    def _died(self, lived: float) -> None:
        if self.circuit.died(lived, blameless=False):
            text = "%d consecutive spare processes died right after their start; jobs that must run alone wait for %g s"
            log.error(text, self.circuit.fruitless, PROBE_SECONDS)
        self._not_before = time.monotonic() + self.circuit.pause

    def _ended(self) -> None:
        self._running = False
