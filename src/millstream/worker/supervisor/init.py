"""PID 1: the extra duties of a container's first process.

The kernel makes PID 1 the parent of every orphaned process, and PID 1 must reap them, or they stay zombies. Signals without a
handler are not delivered to PID 1. So a supervisor that runs as PID 1 splits in two: PID 1 forwards every signal and reaps
orphans, and its child process supervises and has only its own children to wait for.
"""

from __future__ import annotations

import contextlib
import os
import signal

NOT_PASSED_ON = frozenset({signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE})
"""Signals that concern PID 1 itself or cannot be caught."""


def split_if_first() -> None:
    """If this process is PID 1, fork and return only in the child process. Otherwise return immediately.

    PID 1 exits with the exit code of the child process, or with 128 plus the signal number if a signal killed it. The end of
    PID 1 ends all other processes of the container.
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - NOT_PASSED_ON | {signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        # A new session: Ctrl-C in the container's terminal reaches only PID 1, which forwards it once.
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
        while True:  # one SIGCHLD may stand for several ended processes
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
