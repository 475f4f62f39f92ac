"""A worker process that is kept running: one child after another, until it is not needed any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from millstream.reporting import logs
from millstream.worker import codes, messages
from millstream.worker.supervisor.children import Child
from millstream.worker.supervisor.circuit import SOON_SECONDS, Circuit

if TYPE_CHECKING:
    from millstream.worker.supervisor.supervisor import Supervisor

log = logs.logger("millstream.worker")


class ManagedProcess:
    """Where one child is kept. A child that dies is replaced, later and later if it dies at once, and not at all while the
    circuit is open, but for one that is tried now and then."""

    def __init__(self, supervisor: Supervisor, orders: messages.Orders) -> None:
        self.circuit = Circuit()
        self.child: Child | None = None
        self.left = False
        """It is not needed any more: its child ends, and is not replaced."""
        self._supervisor = supervisor
        self._orders = orders
        self._woken = asyncio.Event()

    @property
    def serves(self) -> bool:
        """Whether its child has begun to, and has not ended."""
        return self.child is not None and self.child.hello is not None

    def leave(self) -> None:
        """Replace the child no more."""
        self.left = True
        self.wake()

    def wake(self) -> None:
        """Rest no longer: something has changed."""
        self._woken.set()

    @property
    def _over(self) -> bool:
        return self.left or self._supervisor.stopping.begun

    async def live(self) -> None:
        """Keep a child running until it is not needed any more, or the worker stops."""
        supervisor = self._supervisor
        while not self._over:
            probing = self.circuit.is_open
            async with supervisor.probing if probing else nullcontext():  # one process at a time is tried again
                if self._over:
                    return
                child = self.child = await self._start()
                if probing and child is not None:
                    await self._probe(child)
            if child is None:
                self._died(0.0, codes.FAILED, blameless=False)
                await self._rest(self.circuit.pause)
                continue
            code = await child.process.wait()
            held = await supervisor.reap(child, code)
            self.child = None
            if self._over or child.retiring or (self._orders.burst and code == codes.OK and not child.told_to_stop):
                self.left = True
                return
            if child.told_to_stop:
                self.circuit = Circuit()  # a reload
            elif not await self._could_not_start(child, code):
                self._died(child.lived(code), code, blameless=child.was_blameless(held))
                await self._rest(self.circuit.pause)

    async def _start(self) -> Child | None:
        """None: this machine has no process, or no file, left for it. Those that there are go on."""
        try:
            return await self._supervisor.start(self._orders)
        except OSError as error:
            log.error("a worker process could not be started: %s", error)
            return None

    async def _could_not_start(self, child: Child, code: int) -> bool:
        """Whether a child ended for a reason that it has given, and that was dealt with."""
        supervisor = self._supervisor
        if child.hello is not None or code not in (codes.FAILED, codes.USAGE, codes.SERVER):
            return False
        if supervisor.reloads and code != codes.SERVER:
            log.error("the change does not work; waiting for the next one")
            await supervisor.changed.wait()
            return True
        if not supervisor.has_served:  # none has ever served: it is not the server that is away for a while
            supervisor.stopping.stop(code)
            return True
        return False

    def _died(self, lived: float, code: int, *, blameless: bool) -> None:
        if self.circuit.died(lived, blameless=blameless):
            self._supervisor.opened(code)

    async def _probe(self, child: Child) -> None:
        """Wait until it has served for a while, or ended."""
        ended = asyncio.ensure_future(child.process.wait())
        try:
            while not ended.done():
                if child.served_since is not None and time.monotonic() - child.served_since > SOON_SECONDS:
                    self.circuit.serves()
                    return
                await asyncio.wait([ended], timeout=SOON_SECONDS / 10)
        finally:
            ended.cancel()

    async def _rest(self, seconds: float) -> None:
        self._woken.clear()
        if self._over:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
