"""The stacks of a child process: the stack of each of its threads, logged as one block."""

from __future__ import annotations

import asyncio
import contextlib
import os

from millstream.reporting import logs

log = logs.logger("millstream.worker")

QUIET_SECONDS = 0.1
"""Seconds without data after which a dump counts as complete, because it has no end mark."""

READ_BYTES = 65536


class Stacks:
    """The supervisor's end of a pipe to which a child dumps its stacks.

    The child writes a dump in many small pieces, from its signal handler, even while its event loop is blocked. If several
    children wrote to the log directly, their pieces would mix.
    """

    def __init__(self) -> None:
        self.pid = 0
        """The child's process id, or 0 until it is known."""
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)
        self._pieces: list[bytes] = []
        self._quiet: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._read)

    def started(self, pid: int) -> None:
        """Close the supervisor's copy of the pipe's write end, which the child has inherited."""
        self.pid = pid
        self._close_theirs()

    def close(self) -> None:
        """Log the rest and close the pipe."""
        if self._ours < 0:
            return
        self._close_theirs()
        self._read()
        self._log()
        self._loop.remove_reader(self._ours)
        os.close(self._ours)
        self._ours = -1

    def _close_theirs(self) -> None:
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._ours, READ_BYTES):
                self._pieces.append(piece)
                if self._quiet is not None:
                    self._quiet.cancel()
                self._quiet = self._loop.call_later(QUIET_SECONDS, self._log)
            self._loop.remove_reader(self._ours)  # the child has ended

    def _log(self) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if self._pieces:
            text = b"".join(self._pieces).decode(errors="replace").rstrip()
            self._pieces.clear()
            log.warning("stacks of worker process %d:\n%s", self.pid, text)
