"""PID 1: what a container's first process has to do beside its work.

The kernel gives every process whose parent died to PID 1, which must wait for it, or it stays as a zombie; and it delivers to
PID 1 only signals that it handles. So a supervisor that finds itself there becomes two: PID 1 passes every signal on to the
other one and reaps whatever dies, and the other one supervises, with no child but its own to wait for.
"""

from __future__ import annotations

import contextlib
import os
import signal

NOT_PASSED_ON = frozenset({signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE})
"""Signals that are about PID 1 itself, or cannot be caught."""


def split_if_first() -> None:
    """Return at once unless this process is PID 1. If it is, return in a child of it; PID 1 ends with the child's exit code
    (128 and the signal's number if it was killed), and with it all that is left in the container."""
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - NOT_PASSED_ON | {signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        # A session of its own: Ctrl-C on the container's terminal reaches PID 1 alone, which passes it on, once.
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_until_ended(child))


def _until_ended(child: int) -> int:
    waited_for = signal.valid_signals() - NOT_PASSED_ON | {signal.SIGCHLD}
    while True:
        number = signal.sigwait(waited_for)
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
            continue
        code = None
        while True:  # one SIGCHLD may stand for many
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
        if code is not None:
            return code if code >= 0 else 128 - code
