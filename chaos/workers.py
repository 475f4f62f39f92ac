"""Workers under test: ``millstream worker`` and its children, as the operating system lists them. Linux only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chaos.app import LEDGER, SETTINGS

ROOT = Path(__file__).parent.parent
CLOCKS = Path(__file__).parent / "clocks"
"""A folder with a ``sitecustomize`` that moves the clock of every Python process that has the folder on its path."""

TOKEN = "CHAOS_TOKEN"
"""The environment variable that marks the processes of the suite, including those that have lost their parent."""

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Worker:
    """One supervisor and its children."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    @property
    def log(self) -> str:
        """The log; while the worker runs, up to the last finished line."""
        ended = self.code is not None
        text = self._log.read_text(errors="replace")
        return text if ended else text[: text.rfind("\n") + 1]

    @property
    def code(self) -> int | None:
        """The exit code, or None while the worker runs."""
        return self._process.poll()

    def children(self) -> list[int]:
        return sorted(pid for pid, (parent, state) in processes().items() if parent == self.pid and state != "Z")

    @property
    def family(self) -> list[int]:
        """The pids, supervisor first: signalled in this order, it does not notice its children end."""
        return [self.pid, *self.children()]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)


class Workers:
    """Starts workers for one case, and kills those that are left at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._token = secrets.token_hex(8)
        self.all: list[Worker] = []

    def launch(
        self,
        url: str,
        *arguments: str,
        skew: float = 0.0,
        app: str = "chaos.app:app",
        environment: Mapping[str, str] = MappingProxyType({}),
        **settings: Any,
    ) -> Worker:
        """Run ``millstream worker`` with a wall clock that is wrong by ``skew`` seconds, without waiting until it is ready."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILLSTREAM_", "PYTEST_"))}
        own = {
            "MILLSTREAM_URL": url,
            LEDGER: str(self._folder),
            SETTINGS: json.dumps(settings),
            TOKEN: self._token,
            **environment,
        }
        if skew:
            own |= {"PYTHONPATH": os.pathsep.join([str(CLOCKS), kept.get("PYTHONPATH", "")]), "CHAOS_SKEW": str(skew)}
        log = self._folder / f"worker-{len(self.all)}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "millstream", "worker", app, *arguments],
                env=kept | own,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        worker = Worker(process, log)
        self.all.append(worker)
        return worker

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.all if worker.code is None]

    def clean_up(self) -> None:
        for worker in self.alive:
            worker.signal(signal.SIGKILL)
            worker.wait(10)
        token = f"{TOKEN}={self._token}".encode()
        for pid in processes():  # including processes that have lost their parents
            with contextlib.suppress(OSError):
                if token in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)


def processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the state letter (T stopped, Z zombie) of every process."""
    found: dict[int, tuple[int, str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # the process name before these two fields may contain spaces and parentheses
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            found[int(process.name)] = int(parent), state
    return found


def are_gone(pids: Iterable[int]) -> bool:
    """Return whether none of these processes runs. A zombie does not."""
    now = processes()
    return all(now.get(pid, (0, "Z"))[1] == "Z" for pid in pids)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes, in user and kernel mode."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


def send(number: signal.Signals, pids: Iterable[int]) -> float:
    """Signal the processes in this order. Return the time just before."""
    at = time.monotonic()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return at
