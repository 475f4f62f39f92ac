"""The files that the processes of a data folder share: the locks and the server's address.

The watchdog imports this file without the package, so it may use only a few modules of the standard library.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # Type checkers recognise the name, and typing need not be imported.
if TYPE_CHECKING or sys.platform != "win32":
    import fcntl
if TYPE_CHECKING:
    Path = str | os.PathLike[str]

# Held briefly: shared by processes that join the server, exclusive by a process that starts or stops it.
START_LOCK = "start.lock"
# Held by the server as long as it runs, through a descriptor that it inherits.
SERVER_LOCK = "server.lock"
# Held by the watchdog as long as it runs.
WATCHDOG_LOCK = "watchdog.lock"
# Contains the path of the socket. Trusted only if the server there has this folder as its working directory.
ADDRESS = "address"
# The log of the server.
LOG = "server.log"


def take(path: Path, *, create: bool = True, shared: bool = False) -> int | None:
    """Take a lock and return its descriptor, or ``None`` if another process holds it."""
    lock = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return lock


def take_within(path: Path, seconds: float) -> int | None:
    """Like `take`, but wait for the lock for at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while (lock := take(path)) is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return lock


def drop(lock: int) -> None:
    # Closing is not enough: a fork in another thread may have copied the descriptor.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def is_held(path: Path) -> bool:
    lock = take(path, shared=True)  # Shared, so that two processes that only check do not see each other's locks.
    if lock is not None:
        drop(lock)
    return lock is None


def is_free_within(path: Path, seconds: float) -> bool:
    lock = take_within(path, seconds)
    if lock is not None:
        drop(lock)
    return lock is not None


def is_locked(descriptor: int) -> bool:
    """Return whether another process holds the lock of an open file. The file may have been deleted."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def record(folder: Path, address: str) -> None:
    path = os.path.join(folder, ADDRESS)
    with open(f"{path}.new", "wb") as file:
        file.write(os.fsencode(address))
    os.replace(f"{path}.new", path)


def recorded(folder: Path) -> str | None:
    try:
        with open(os.path.join(folder, ADDRESS), "rb") as file:
            return os.fsdecode(file.read()) or None
    except FileNotFoundError:
        return None
