"""The role of each process of a worker: supervisor or child process.

The role is passed in an environment variable, so that command lines stay readable: ``ps`` shows ``millstream worker tasks:app``
for the supervisor and ``millstream worker tasks:app child`` for its child processes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

PLAN = "_MILLSTREAM_PLAN"
"""Environment variable with the Plan of a supervisor."""

ORDERS = "_MILLSTREAM_ORDERS"
"""Environment variable with the Orders of a child process."""


def command(app: str, *more: str) -> list[str]:
    """Return the command line for a process of this app's worker."""
    return [sys.executable, "-m", "millstream", "worker", app, *more]


def take(variable: str) -> str:
    """Return the variable's value and remove it from the environment, so that processes started from here do not inherit it."""
    return os.environ.pop(variable)


def play() -> bool:
    """Run the role that the environment assigns, until the process ends. Return False if the environment assigns none."""
    if PLAN in os.environ:
        from millstream.worker.supervisor.supervisor import main
    elif ORDERS in os.environ:
        from millstream.worker.child.process import main
    else:
        return False
    with contextlib.suppress(OSError):  # Linux only: otherwise top shows "python"
        Path("/proc/self/comm").write_text("millstream")
    main()
    return True
