"""The launcher: starts child processes, and cleans up after each child that has ended."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

from millstream.errors import WorkerCrashed
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker import codes, messages
from millstream.worker.summary import Tally
from millstream.worker.supervisor.children.child import Child, heard_out, spawn
from millstream.worker.supervisor.relay import Relay
from millstream.worker.supervisor.stopping import Stopping

log = logs.logger("millstream.worker")


class Launcher:
    """Adds each child to ``living`` when it starts, and removes it when it has ended.

    ``hear`` is called with every message of a child. ``give_up`` gives up the leases of a child and returns how many jobs it
    held, or None if that is unknown.
    """

    def __init__(
        self,
        living: set[Child],
        stopping: Stopping,
        relay: Relay,
        reporter: Reporter,
        *,
        hear: Callable[[Child, messages.Word], Awaitable[None]],
        give_up: Callable[[Child], Awaitable[int | None]],
    ) -> None:
        self.tally = Tally()
        self._living = living
        self._stopping = stopping
        self._relay = relay
        self._reporter = reporter
        self._hear = hear
        self._give_up = give_up

    def totals(self) -> dict[str, int]:
        """Return the settled outcomes of all children, living and ended."""
        return self.tally.totals(self._living)

    async def start(self, orders: messages.Orders) -> Child:
        """Start a child. Raises OSError if this machine has no free processes or file descriptors."""
        child = await spawn(orders, self._hear)
        self._living.add(child)
        if self._stopping.begun:  # stopping began while the child was being started
            self._stopping.tell(child)
        return child

    async def reap(self, child: Child, code: int) -> int | None:
        """Clean up after a child that ended with this code: give up its leases, report a crash, add its totals.

        Return how many jobs the child held, or None if that is unknown.
        """
        self._relay.dismiss(child)
        await heard_out(child)
        self._living.discard(child)
        held = await self._give_up(child)
        died = _how_it_died(child, code, held)
        if died:
            log.error("%s", died)
            if not child.told_to_stop:
                self._reporter.tell("reclaim", None, WorkerCrashed(died), crash=True)
        self.tally.add(child, code, died, held=held, stopping=self._stopping.begun)
        return held


def _how_it_died(child: Child, code: int, held: int | None) -> str:
    """Describe an unexpected end of a child in one line. Empty if the end was expected."""
    if child.told_to_stop and child.hello is None and code == -signal.SIGTERM:
        return ""  # asked to stop before it had installed its handlers and started anything
    if code < 0 or held:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"worker process {child.pid} {how}; {held or 0} job{'' if held == 1 else 's'} that it held can be claimed again"
    if code in (codes.OK, codes.INTERRUPTED):
        return ""
    if child.hello is None and code in (codes.USAGE, codes.SERVER):
        return ""  # a child that never served has logged the reason itself
    return f"worker process {child.pid} ended with code {code}"
