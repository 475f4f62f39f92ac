"""Finding, starting and stopping the server of a data folder."""

from __future__ import annotations

import errno
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from millstream.backends.embedded import resp
from millstream.backends.embedded.binary import server_binary
from millstream.backends.embedded.files import (
    SERVER_LOCK,
    START_LOCK,
    WATCHDOG_LOCK,
    drop,
    is_free_within,
    is_held,
    record,
    recorded,
    take,
    take_within,
)
from millstream.backends.embedded.folder import WAY_OUT, data_folder, log_tail, prepare, socket_path
from millstream.backends.embedded.launcher import idle_time, launch_server, launch_watchdog
from millstream.backends.embedded.probe import probe
from millstream.errors import BrokerUnavailable, UsageError
from millstream.reporting import logs

logger = logs.logger("millstream.embedded")

# Of a data folder that stays as it is until somebody changes it: trying again does not help.
PERMANENT = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG))
# Seconds a server may take to answer at all, or another process to start or stop it.
PATIENCE = 30.0
# Seconds of waiting for a server that lives and cannot be reached after which the log says so.
TELLING = 1.0
# Seconds a server may take to load its data, while it says that it does.
LOADING_PATIENCE = 600.0


def ensure_server(directory: str | Path | None = None) -> str:
    """The URL of a running server on this data folder, ready for commands, started if it was not there.

    Blocks: well under a millisecond if the server runs, some 100 ms if it must be started. Any thread of any process
    may call it at any time; call it again before every reconnect, because an unused server is stopped. The server is
    not stopped for at least the idle time after a call, connected or not.

    Raises `UsageError` where it can never work and `BrokerUnavailable` where it did not work now.
    """
    if sys.platform == "win32":
        raise UsageError("the embedded server needs Linux or macOS; on Windows give the URL of a Redis or Valkey server")
    folder = data_folder(directory)
    try:
        address = _join(folder) or _find_or_start(folder, implied=directory is None)
    except OSError as error:
        refused = UsageError if error.errno in PERMANENT else BrokerUnavailable
        raise refused(f"the embedded server in {folder} cannot be used: {error}. {WAY_OUT}") from error
    return f"unix://{quote(address)}"


def stop_server(directory: str | Path | None = None) -> bool:
    """Stop the server on this data folder, if there is one, and return once it and its watchdog are gone.

    Everything it accepted is on disk then. True if there was one to stop.
    """
    if sys.platform == "win32":
        return False
    folder = data_folder(directory)
    if not folder.is_dir():
        return False
    try:
        with _alone(folder):
            address = _running(folder)
            if address is not None:
                _stop(folder, address)
            is_free_within(folder / WATCHDOG_LOCK, resp.ANSWER)
    except OSError as error:
        raise BrokerUnavailable(f"the embedded server in {folder} cannot be stopped: {error}") from error
    return address is not None


def _join(folder: Path) -> str | None:
    """The address of a server that is ready and watched, without waiting for anyone; None if it takes more.

    A question counts as use, because it is a connection. It is asked under the shared lock, the watchdog's last look
    and its SHUTDOWN happen under the exclusive one: either the watchdog sees the use, or the question finds no server.
    """
    try:
        lock = take(folder / START_LOCK, create=False, shared=True)
        if lock is None:
            return None
        try:
            address = recorded(folder)
            joined = address and probe(address, folder) == "ready" and is_held(folder / WATCHDOG_LOCK)
        finally:
            drop(lock)
    except OSError:
        return None
    return address if joined else None


def _find_or_start(folder: Path, *, implied: bool) -> str:
    idle = idle_time()
    prepare(folder)
    with _alone(folder) as lock:
        address = _running(folder)
        if address is None:
            address = _start(folder, idle, lock, implied=implied)
        elif not is_held(folder / WATCHDOG_LOCK):
            try:
                launch_watchdog(folder, idle, lock)
            except BrokerUnavailable as error:
                logger.warning("the embedded server will not stop by itself: %s", error)
    _wait_until_loaded(folder, address)
    return address


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """The start lock: nobody else joins, starts or stops this folder's server meanwhile."""
    lock = take_within(folder / START_LOCK, PATIENCE)
    if lock is None:
        raise BrokerUnavailable(f"{folder / START_LOCK} is held by a process that is starting or stopping the server")
    try:
        yield lock
    finally:
        drop(lock)


def _running(folder: Path) -> str | None:
    """The address of this folder's living server; None once it is certain that there is none.

    Waits for one that lives and cannot be reached: if its socket was deleted, as by a logout or a cleaner of /tmp, its
    watchdog is about to stop it.
    """
    began = time.monotonic()
    told = False
    while True:
        known, own = recorded(folder), socket_path(folder)
        for address in dict.fromkeys((known or own, own)):
            if probe(address, folder) in ("ready", "loading", "busy"):
                if address != known:
                    record(folder, address)
                return address
        if not is_held(folder / SERVER_LOCK):
            return None
        waited = time.monotonic() - began
        if waited > PATIENCE:
            raise BrokerUnavailable(
                f"a server holds {folder} and does not answer at {known or own}: it hangs, it runs in another container, or "
                f"its socket and its watchdog are gone. End it (`fuser {folder / SERVER_LOCK}` names it), or: {WAY_OUT}"
                f"{log_tail(folder)}"
            )
        if waited > TELLING and not told:
            told = True
            logger.warning("the embedded server in %s cannot be reached: waiting until it answers or ends", folder)
        time.sleep(0.01)


def _start(folder: Path, idle: float, lock: int, *, implied: bool) -> str:
    binary, address = server_binary(folder), socket_path(folder)
    record(folder, address)
    launch_server(folder, idle, lock, binary, address)
    deadline = time.monotonic() + PATIENCE
    while (state := probe(address, folder)) not in ("ready", "loading"):
        if not is_held(folder / SERVER_LOCK):
            raise BrokerUnavailable(f"the embedded server in {folder} ended while it started{log_tail(folder)}")
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"the embedded server in {folder} started but did not answer at {address} within {PATIENCE:g} s "
                f"({state}){log_tail(folder)}"
            )
        time.sleep(0.002)
    # Where no folder is named and nobody watches, a URL may have been forgotten.
    logger.log(
        logging.WARNING if implied and not sys.stderr.isatty() else logging.INFO,
        "started an embedded server with its data in %s; it serves this machine only: set MILLSTREAM_URL to share jobs "
        "between machines",
        folder,
    )
    return address


def _wait_until_loaded(folder: Path, address: str) -> None:
    # Without the lock: loading takes long, and every question of ours counts as use.
    deadline = time.monotonic() + LOADING_PATIENCE
    while (state := probe(address, folder)) not in ("ready", "busy"):
        if state == "absent":
            raise BrokerUnavailable(f"the embedded server in {folder} ended while it loaded its data{log_tail(folder)}")
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"the embedded server in {folder} is not ready after {LOADING_PATIENCE:g} s ({state}){log_tail(folder)}"
            )
        time.sleep(0.02)


def _stop(folder: Path, address: str) -> None:
    with resp.connect(address) as connection:
        refusal = resp.shut_down(connection)
    if refusal:  # it is full of clients, or busy with a script
        with resp.connect(address) as connection:
            resp.signal_peer(connection, signal.SIGTERM)
    if not is_free_within(folder / SERVER_LOCK, resp.ENDING):
        raise BrokerUnavailable(f"the embedded server in {folder} did not end in {resp.ENDING:g} s {refusal}{log_tail(folder)}")
