"""Find, start and stop the server of a data folder."""

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

# Errors of a data folder that do not go away by themselves, so a retry does not help.
PERMANENT = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG))
# Seconds that a server may take to answer, or that another process may take to start or stop it.
PATIENCE = 30.0
# Seconds after which waiting for a running but unreachable server is logged.
TELLING = 1.0
# Seconds that a server may take to load its data, while it reports that it is loading.
LOADING_PATIENCE = 600.0


def ensure_server(directory: str | Path | None = None) -> str:
    """Return the URL of the server on this data folder, ready for commands. Start the server if it is not running.

    Blocks for well under a millisecond if the server runs, and for about 100 ms if it must be started. Any thread of any
    process may call it at any time. Call it again before every reconnect, because an unused server is stopped. After a call,
    the server runs for at least the idle time, even without a connection.

    Raises `UsageError` if a retry cannot help, and `BrokerUnavailable` if it may.
    """
    if sys.platform == "win32":
        raise UsageError("the embedded server needs Linux or macOS. On Windows, use the URL of a Redis or Valkey server")
    folder = data_folder(directory)
    try:
        address = _join(folder) or _find_or_start(folder, implied=directory is None)
    except OSError as error:
        refused = UsageError if error.errno in PERMANENT else BrokerUnavailable
        raise refused(f"the embedded server in {folder} cannot be used: {error}. {WAY_OUT}") from error
    return f"unix://{quote(address)}"


def stop_server(directory: str | Path | None = None) -> bool:
    """Stop the server on this data folder. Return after it and its watchdog have exited.

    The server writes all accepted data to disk before it exits. Returns ``False`` if no server was running.
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
    """Return the address of a server that is ready and has a watchdog, without waiting. ``None`` if there is none.

    The probe is a connection, so the watchdog counts it as use. The probe holds the shared lock, while the watchdog's last
    check and its SHUTDOWN hold the exclusive lock. So either the watchdog sees the use, or the probe finds no server.
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
                logger.warning("the embedded server will not stop when it is unused: %s", error)
    _wait_until_loaded(folder, address)
    return address


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """Hold the start lock, so that no other process joins, starts or stops this folder's server."""
    lock = take_within(folder / START_LOCK, PATIENCE)
    if lock is None:
        raise BrokerUnavailable(
            f"{folder / START_LOCK} is still locked after {PATIENCE:g} s: another process is starting or stopping the server"
        )
    try:
        yield lock
    finally:
        drop(lock)


def _running(folder: Path) -> str | None:
    """Return the address of this folder's running server, or ``None`` once it is certain that none is running.

    Waits for a server that runs but cannot be reached. If its socket was deleted, for example by a logout or a cleaner of /tmp,
    its watchdog is about to stop it.
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
                f"the embedded server in {folder} is running but does not answer at {known or own}. It may hang, run in "
                f"another container, or have lost its socket and its watchdog. Find its process with "
                f"`fuser {folder / SERVER_LOCK}` and end it, or use another server. {WAY_OUT}{log_tail(folder)}"
            )
        if waited > TELLING and not told:
            told = True
            logger.warning("the embedded server in %s is running but unreachable; waiting until it answers or exits", folder)
        time.sleep(0.01)


def _start(folder: Path, idle: float, lock: int, *, implied: bool) -> str:
    binary, address = server_binary(folder), socket_path(folder)
    record(folder, address)
    launch_server(folder, idle, lock, binary, address)
    deadline = time.monotonic() + PATIENCE
    while (state := probe(address, folder)) not in ("ready", "loading"):
        if not is_held(folder / SERVER_LOCK):
            raise BrokerUnavailable(f"the embedded server in {folder} exited while starting{log_tail(folder)}")
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"the embedded server in {folder} started but did not answer at {address} within {PATIENCE:g} s "
                f"({state}){log_tail(folder)}"
            )
        time.sleep(0.002)
    # Without an explicit folder and without a terminal, the user may have forgotten to set a URL.
    logger.log(
        logging.WARNING if implied and not sys.stderr.isatty() else logging.INFO,
        "started an embedded server with its data in %s. Only this machine can use it; to share jobs between machines, set "
        "MILLSTREAM_URL",
        folder,
    )
    return address


def _wait_until_loaded(folder: Path, address: str) -> None:
    # No lock is needed: every probe counts as use, so the watchdog does not stop the server. Loading may take long.
    deadline = time.monotonic() + LOADING_PATIENCE
    while (state := probe(address, folder)) not in ("ready", "busy"):
        if state == "absent":
            raise BrokerUnavailable(f"the embedded server in {folder} exited while loading its data{log_tail(folder)}")
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"the embedded server in {folder} is not ready after {LOADING_PATIENCE:g} s ({state}){log_tail(folder)}"
            )
        time.sleep(0.02)


def _stop(folder: Path, address: str) -> None:
    with resp.connect(address) as connection:
        refusal = resp.shut_down(connection)
    if refusal:  # The server has too many clients, or a script runs.
        with resp.connect(address) as connection:
            resp.signal_peer(connection, signal.SIGTERM)
    if not is_free_within(folder / SERVER_LOCK, resp.ENDING):
        raise BrokerUnavailable(
            f"the embedded server in {folder} did not exit within {resp.ENDING:g} s {refusal}{log_tail(folder)}"
        )
