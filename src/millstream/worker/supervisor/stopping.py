"""Stopping: which signals mean what, how long children have, and what becomes of one that takes longer.

SIGTERM, SIGINT and SIGHUP stop the worker; the same or another of them again, or SIGQUIT, means now. SIGUSR1 has every child
dump its stacks. Children hear of all this from the supervisor alone: each is in a session of its own.
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
"""How long beyond its grace period a child may take to stop before it is killed."""

HANG_SECONDS = 3.0
"""A child whose loop has not turned for so long when its grace period is over is killed then."""

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NOW = signal.SIGQUIT


class Stopping:
    """Whether the worker is stopping, and why. Done once; ``begin`` is called when it begins, ``now`` when it may not last."""

    def __init__(self, children: Collection[Child], *, begin: Callable[[], None], now: Callable[[], None]) -> None:
        self.begun = False
        self.reason = codes.OK
        """The exit code that says why, if nobody told us to."""
        self._children = children
        self._begin = begin
        self._now = now
        self._signals = 0
        self._deadlines: set[asyncio.Task[None]] = set()

    def catch_signals(self) -> None:
        """From now on they are ours."""
        loop = asyncio.get_running_loop()
        for number in (*STOP, NOW):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # as nohup has it
            loop.add_signal_handler(number, self.signalled, number)
        loop.add_signal_handler(signal.SIGUSR1, self._pass_on, signal.SIGUSR1)

    def signalled(self, number: int) -> None:
        """Stop; or now, if we were told before."""
        self._signals += 1
        if self._signals == 1:
            again = "; Ctrl-C again to stop now" if number == signal.SIGINT else ""
            log.info("stopping%s", again)
            self.stop()
        if self._signals > 1 or number == NOW:
            log.warning("stopping now")
            for child in self._children:
                self.kill(child)
            self._now()

    def _pass_on(self, number: int) -> None:
        for child in self._children:
            if child.hello is not None:  # before, it may not know what to do with it
                child.signal(number)

    def stop(self, reason: int = codes.OK) -> None:
        """Tell every child, and start none any more."""
        if self.begun:
            return
        self.begun, self.reason = True, reason
        self._begin()
        for child in self._children:
            self.tell(child)

    def tell(self, child: Child) -> None:
        """Ask a child to stop, and see that it does."""
        child.told_to_stop = True
        child.signal(signal.SIGTERM)
        self.see_it_end(child)

    def see_it_end(self, child: Child) -> None:
        """Kill it if it has not stopped when its time is over."""
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
        """End it now, unless it has ended."""
        if child not in self._children or child.process.returncode is not None:
            return
        log.error("worker process %d is killed", child.pid)
        child.told_to_stop = child.killed = True
        child.cut_off = self.begun
        child.signal(signal.SIGKILL)
