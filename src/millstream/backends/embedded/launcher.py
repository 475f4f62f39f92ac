"""Starts a watchdog, and with it the server, so that both outlive the process that started them.

The watchdog starts the server because it is a fresh process with one thread: in ours, a fork in another thread could keep a
copy of server.lock, and the server would seem to live for as long as that child.
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

# Seconds without a client after which the server is stopped, unless $MILLSTREAM_EMBEDDED_IDLE says otherwise.
IDLE = 60.0
# Seconds a watchdog may take to say that it and the server run.
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
        raise UsageError(f"MILLSTREAM_EMBEDDED_IDLE must be a number of seconds above zero, not {text!r}")
    return idle


def launch_server(folder: Path, idle: float, lock: int, binary: str, address: str) -> None:
    """Start a server and its watchdog; on return both hold their locks, or `BrokerUnavailable` says why not."""
    settings = {**SETTINGS, "unixsocket": address}
    launch_watchdog(folder, idle, lock, binary, *(word for name, value in settings.items() for word in (f"--{name}", value)))


def launch_watchdog(folder: Path, idle: float, lock: int, *server: str) -> None:
    """Start a watchdog for the server that runs, or for the one this command starts.

    It is given the start lock too: if we are killed meanwhile, others wait until it is done, and do not start another.
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
        raise BrokerUnavailable(f"the embedded server's watchdog in {folder} cannot be started: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise BrokerUnavailable(f"the embedded server in {folder} cannot be started: {said}{log_tail(folder)}")


def _interpreter() -> str:
    """A Python to run the watchdog; ``sys.executable`` may be uwsgi, a frozen app, or nothing."""
    own = "" if getattr(sys, "frozen", False) else sys.executable
    candidates = (own, os.path.join(sys.exec_prefix, "bin", "python3"), shutil.which("python3"))
    for candidate in candidates:
        if candidate and os.path.basename(candidate).startswith(("python", "pypy")) and os.access(candidate, os.X_OK):
            return candidate
    raise BrokerUnavailable(f"there is no Python interpreter to run the embedded server's watchdog; {WAY_OUT}")
