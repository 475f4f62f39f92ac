"""Start a watchdog, and with it the server, so that both outlive the process that started them.

The watchdog starts the server, because the watchdog is a new process with one thread. In our process, a fork in another thread
could keep a copy of server.lock, and the server would appear to run as long as that child process lives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from millstream.backends.embedded.files import LOG
from millstream.backends.embedded.folder import WAY_OUT, log_tail
from millstream.errors import BrokerUnavailable, UsageError

# Seconds without a client after which the server is stopped. $MILLSTREAM_EMBEDDED_IDLE overrides it.
IDLE = 60.0
# Seconds that a watchdog may take to start and to start the server.
PATIENCE = 30.0

SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "dir": ".",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
    "logfile": LOG,
}


def idle_time() -> float:
    text = os.environ.get("MILLSTREAM_EMBEDDED_IDLE", "")
    try:
        idle = float(text or IDLE)
    except ValueError:
        idle = 0.0
    if not 0 < idle < float("inf"):
        raise UsageError(f"MILLSTREAM_EMBEDDED_IDLE must be a number of seconds greater than 0, not {text!r}")
    return idle


def launch_server(folder: Path, idle: float, lock: int, binary: str, address: str) -> None:
    """Start a server and its watchdog. On return, both hold their locks. Raises `BrokerUnavailable` if one does not start."""
    settings = {**SETTINGS, "unixsocket": address}
    launch_watchdog(folder, idle, lock, binary, *(word for name, value in settings.items() for word in (f"--{name}", value)))


def launch_watchdog(folder: Path, idle: float, lock: int, *server: str) -> None:
    """Start a watchdog for the running server, or for the server that the command ``server`` starts.

    The watchdog inherits the start lock. If this process is killed, other processes wait until the watchdog is ready and do not
    start a second server.
    """
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watchdog.py")
    try:
        done = subprocess.run(
            [_interpreter(), "-I", "-S", program, str(folder), str(idle), *server],
            cwd=folder,
            umask=0o077,
            stdin=lock,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerUnavailable(f"the watchdog of the embedded server in {folder} cannot be started: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise BrokerUnavailable(f"the embedded server in {folder} cannot be started: {said}{log_tail(folder)}")


def _interpreter() -> str:
    """Return the Python interpreter for the watchdog. ``sys.executable`` may be uwsgi, a frozen app, or empty."""
    own = "" if getattr(sys, "frozen", False) else sys.executable
    candidates = (own, os.path.join(sys.exec_prefix, "bin", "python3"), shutil.which("python3"))
    for candidate in candidates:
        if candidate and os.path.basename(candidate).startswith(("python", "pypy")) and os.access(candidate, os.X_OK):
            return candidate
    raise BrokerUnavailable(f"no Python interpreter found to run the watchdog of the embedded server. {WAY_OUT}")
