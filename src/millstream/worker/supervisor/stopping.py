"""Stopping: the meaning of signals, and the deadlines of children that are asked to stop.

SIGTERM, SIGINT and SIGHUP stop the worker. A second one of them, or SIGQUIT, kills its processes immediately. SIGUSR1 makes
every child dump its stacks. Children get signals only from the supervisor, because each runs in its own session.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Collection

from millstream.reporting import logs
from millstream.worker import codes
from millstream.worker.supervisor.children.child import Child

log = logs.logger("millstream.worker")

KILL_SECONDS = 10.0
"""Seconds after its grace period at which a child that has not ended is killed."""

HANG_SECONDS = 3.0
"""Seconds without a beat after which a child counts as hung, and is killed at the end of its grace period."""

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NOW = signal.SIGQUIT


class Stopping:
    """Stops the worker, once. ``begin`` is called when stopping begins, ``now`` when the worker must stop immediately."""

    def __init__(self, children: Collection[Child], *, begin: Callable[[], None], now: Callable[[], None]) -> None:
        self.begun = False
        self.reason = codes.OK
        """The exit code that says why the worker stops on its own. `codes.OK` if it was asked to stop."""
        self._children = children
        self._begin = begin
        self._now = now
        self._signals = 0
        self._deadlines: set[asyncio.Task[None]] = set()

    def catch_signals(self) -> None:
        """Install the signal handlers."""
        loop = asyncio.get_running_loop()
        for number in (*STOP, NOW):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup ignores SIGHUP
            loop.add_signal_handler(number, self.signalled, number)
        loop.add_signal_handler(signal.SIGUSR1, self._pass_on, signal.SIGUSR1)

    def signalled(self, number: int) -> None:
        """Stop the worker. On a second signal, or SIGQUIT, kill its processes."""
        self._signals += 1
        if self._signals == 1:
            again = "; Ctrl-C again to stop now" if number == signal.SIGINT else ""
            log.info("stopping%s", again)
            self.stop()
        if self._signals > 1 or number == NOW:
            log.warning("stopping now: killing all worker processes")
            for child in self._children:
                self.kill(child)
            self._now()

    def _pass_on(self, number: int) -> None:
        for child in self._children:
            if child.hello is not None:  # before its Hello, a child may not have installed its handler
                child.signal(number)

    def stop(self, reason: int = codes.OK) -> None:
        """Ask every child to stop, and start no more."""
        if self.begun:
            return
        self.begun, self.reason = True, reason
        self._begin()
        for child in self._children:
            self.tell(child)

    def tell(self, child: Child) -> None:
        """Ask a child to stop, and kill it if it does not stop in time."""
        child.told_to_stop = True
        child.signal(signal.SIGTERM)
        self.see_it_end(child)

    def see_it_end(self, child: Child) -> None:
        """Kill a child if it has not stopped by its deadline."""
        task = asyncio.create_task(self._see_it_end(child))
        self._deadlines.add(task)
        task.add_done_callback(self._deadlines.discard)

    async def _see_it_end(self, child: Child) -> None:
        hello = child.hello
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((0.0 if hello is None else hello.grace) + KILL_SECONDS):
                await asyncio.sleep(0.0 if hello is None else hello.grace)
                while hello is None or child.bye is not None or child.silent < HANG_SECONDS:
                    await asyncio.sleep(HANG_SECONDS / 10)
        self.kill(child)

    def kill(self, child: Child) -> None:
        """Kill a child, unless it has ended."""
        if child not in self._children or child.process.returncode is not None:
            return
        log.error("killing worker process %d", child.pid)
        child.told_to_stop = child.killed = True
        child.cut_off = self.begun
        child.signal(signal.SIGKILL)
