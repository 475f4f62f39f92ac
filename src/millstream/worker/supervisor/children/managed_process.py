"""One worker process of a supervisor: replaces its child when the child dies, until the process is no longer needed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import nullcontext
from typing import Protocol

from millstream.reporting import logs
from millstream.worker import codes, messages
from millstream.worker.supervisor.children.child import Child
from millstream.worker.supervisor.children.circuit import SOON_SECONDS, Circuit
from millstream.worker.supervisor.children.launcher import Launcher
from millstream.worker.supervisor.stopping import Stopping

log = logs.logger("millstream.worker")


class Failures(Protocol):
    """Decides for all processes of a worker what to do when children fail."""

    probing: asyncio.Lock
    """Held while one process is tried again after an open circuit."""

    def circuit_opened(self, code: int) -> None:
        """Handle an opened circuit: the children of one process die right after their start, the last one with this code."""
        ...

    async def could_not_start(self, child: Child, code: int) -> bool:
        """Return True if this child never served and its end was handled. False means that its end counts as a death."""
        ...


class ManagedProcess:
    """Keeps one child running.

    A dead child is replaced, with growing delays after quick deaths. While the circuit is open, it is not replaced, except
    for a probe every PROBE_SECONDS.
    """

    def __init__(self, orders: messages.Orders, launcher: Launcher, stopping: Stopping, failures: Failures) -> None:
        self.circuit = Circuit()
        self.child: Child | None = None
        self.left = False
        """The process is no longer needed: its child ends and is not replaced."""
        self._orders = orders
        self._launcher = launcher
        self._stopping = stopping
        self._failures = failures
        self._woken = asyncio.Event()

    @property
    def serves(self) -> bool:
        """Whether its child has connected to the server and has not ended."""
        return self.child is not None and self.child.hello is not None

    def leave(self) -> None:
        """Stop replacing the child."""
        self.left = True
        self.wake()

    def wake(self) -> None:
        """End the current pause, because the situation has changed."""
        self._woken.set()

    @property
    def _over(self) -> bool:
        return self.left or self._stopping.begun

    async def live(self) -> None:
        """Keep a child running until the process is no longer needed, or the worker stops."""
        while not self._over:
            probing = self.circuit.is_open
            async with self._failures.probing if probing else nullcontext():  # only one process at a time is probed
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
            held = await self._launcher.reap(child, code)
            self.child = None
            if self._over or child.retiring or (self._orders.burst and code == codes.OK and not child.told_to_stop):
                self.left = True
                return
            if child.told_to_stop:
                self.circuit = Circuit()  # a reload
            elif not await self._failures.could_not_start(child, code):
                self._died(child.lived(code), code, blameless=child.was_blameless(held))
                await self._rest(self.circuit.pause)

    async def _start(self) -> Child | None:
        """Start a child. Return None if this machine has no free processes or file descriptors; other children keep running."""
        try:
            return await self._launcher.start(self._orders)
        except OSError as error:
            log.error("a worker process could not be started; trying again: %s", error)
            return None

    def _died(self, lived: float, code: int, *, blameless: bool) -> None:
        if self.circuit.died(lived, blameless=blameless):
            self._failures.circuit_opened(code)

    async def _probe(self, child: Child) -> None:
        """Wait until a child has served for SOON_SECONDS, or ended."""
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
