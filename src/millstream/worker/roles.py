"""What each process of a worker is to do.

It travels in the environment, so that the command line is one that a person knows: ``ps`` shows ``millstream worker tasks:app``
for the supervisor and ``millstream worker tasks:app child`` for its child processes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

PLAN = "_MILLSTREAM_PLAN"
"""Of a supervisor: its Plan."""

ORDERS = "_MILLSTREAM_ORDERS"
"""Of a child process: its Orders."""


def command(app: str, *more: str) -> list[str]:
    """The command line of a process of this app's worker."""
    return [sys.executable, "-m", "millstream", "worker", app, *more]


def take(variable: str) -> str:
    """What this process is to do. Processes that it starts do not inherit it."""
    return os.environ.pop(variable)


def play() -> bool:
    """Do what the environment says, until the process ends; False if it says nothing."""
    if PLAN in os.environ:
        from millstream.worker.supervisor.supervisor import main
    elif ORDERS in os.environ:
        from millstream.worker.child.process import main
    else:
        return False
    with contextlib.suppress(OSError):  # Linux only: the short name, as top shows it, would be that of Python
        Path("/proc/self/comm").write_text("millstream")
    main()
    return True
