"""The files at which the processes of a data folder meet: the locks, and the server's address.

The watchdog imports this file apart from the package: it may need nothing but a little of the standard library.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as checkers understand it, without importing typing
if TYPE_CHECKING or sys.platform != "win32":
    import fcntl
if TYPE_CHECKING:
    Path = str | os.PathLike[str]

# Held for moments: shared by those who join the server, alone by who starts or stops it.
START_LOCK = "start.lock"
# Held by the server for its life, through a descriptor it inherits.
SERVER_LOCK = "server.lock"
# Held by the watchdog for its life.
WATCHDOG_LOCK = "watchdog.lock"
# Where the socket is; believed only of a server whose working directory is this folder.
ADDRESS = "address"
# What the server has to say.
LOG = "server.log"


def take(path: Path, *, create: bool = True, shared: bool = False) -> int | None:
    """The descriptor of a lock that is ours now; None if someone else has it."""
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
    """As `take`, and waits for it."""
    deadline = time.monotonic() + seconds
    while (lock := take(path)) is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return lock


def drop(lock: int) -> None:
    # Unlocked and not only closed: a fork in another thread may have copied the descriptor.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def is_held(path: Path) -> bool:
    lock = take(path, shared=True)  # shared, so that those who only look do not see each other
    if lock is not None:
        drop(lock)
    return lock is None


def is_free_within(path: Path, seconds: float) -> bool:
    lock = take_within(path, seconds)
    if lock is not None:
        drop(lock)
    return lock is not None


def is_locked(descriptor: int) -> bool:
    """As `is_held`, of a file that is open, and perhaps deleted."""
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
