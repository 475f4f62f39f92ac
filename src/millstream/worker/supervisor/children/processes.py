"""The worker processes that a supervisor keeps running, and the reaction to failing children."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.reporting import logs
from millstream.worker import codes, messages
from millstream.worker.supervisor.children.child import Child
from millstream.worker.supervisor.children.launcher import Launcher
from millstream.worker.supervisor.children.lives import Lives
from millstream.worker.supervisor.children.managed_process import ManagedProcess
from millstream.worker.supervisor.reloader import Reloads
from millstream.worker.supervisor.stopping import Stopping

log = logs.logger("millstream.worker")


class Processes:
    """Starts managed processes with the same orders, and keeps a list of them.

    ``has_served`` returns whether any child of this worker ever served.
    """

    def __init__(
        self,
        orders: messages.Orders,
        launcher: Launcher,
        lives: Lives,
        stopping: Stopping,
        reloads: Reloads,
        has_served: Callable[[], bool],
    ) -> None:
        self.managed: list[ManagedProcess] = []
        self.probing = asyncio.Lock()
        self._orders = orders
        self._launcher = launcher
        self._lives = lives
        self._stopping = stopping
        self._reloads = reloads
        self._has_served = has_served

    def begin(self) -> ManagedProcess:
        """Start one more process."""
        process = ManagedProcess(self._orders, self._launcher, self._stopping, self)
        self.managed.append(process)
        self._lives.begin(process.live(), lambda: self.managed.remove(process))
        return process

    def wake(self) -> None:
        """End the pauses of all processes, because the situation has changed."""
        for process in self.managed:
            process.wake()

    def circuit_opened(self, code: int) -> None:
        """Stop the worker if every circuit is open. Otherwise the other processes keep running."""
        circuits = [process.circuit for process in self.managed if not process.left]
        deaths = max(circuit.fruitless for circuit in circuits)
        if all(circuit.is_open for circuit in circuits):
            text = "worker processes die right after their start: %d consecutive, the last with exit code %d; the worker stops"
            log.critical(text, deaths, code)
            self._stopping.stop(codes.SERVER if code == codes.SERVER else codes.CRASHING)
        else:
            text = (
                "%d consecutive worker processes died right after their start, the last with exit code %d; others keep running"
            )
            log.error(text, deaths, code)

    async def could_not_start(self, child: Child, code: int) -> bool:
        """After a reload, wait for the next change. If no child ever served, stop the worker: this is not a brief outage."""
        if child.hello is not None or code not in (codes.FAILED, codes.USAGE, codes.SERVER):
            return False
        if self._reloads.count and code != codes.SERVER:
            log.error("the worker could not start after the change; waiting for the next change")
            await self._reloads.next()
            return True
        if not self._has_served():
            self._stopping.stop(code)
            return True
        return False
