"""Workers under test: ``millstream worker`` with its children, as the operating system sees them. Linux."""

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
"""A folder whose ``sitecustomize`` moves the clock of every Python process that has it on its path."""

TOKEN = "CHAOS_TOKEN"
"""The environment variable by which our processes are known, whoever their parent is by now."""

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Worker:
    """One supervisor and its children."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    @property
    def log(self) -> str:
        """What it has logged; while it runs, up to the last finished line."""
        ended = self.code is not None
        text = self._log.read_text(errors="replace")
        return text if ended else text[: text.rfind("\n") + 1]

    @property
    def code(self) -> int | None:
        """The exit code, once there is one."""
        return self._process.poll()

    def children(self) -> list[int]:
        return sorted(pid for pid, (parent, state) in processes().items() if parent == self.pid and state != "Z")

    @property
    def family(self) -> list[int]:
        """The supervisor first: signalled in this order it does not see its children go."""
        return [self.pid, *self.children()]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)


class Workers:
    """Starts workers for one case, and ends whatever is left of them."""

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
        """``millstream worker``, its wall clock wrong by ``skew`` seconds; does not wait for it."""
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
        for pid in processes():  # also those that lost their parents
            with contextlib.suppress(OSError):
                if token in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)


def processes() -> dict[int, tuple[int, str]]:
    """Every process: its parent, and its state in a letter (T stopped, Z a zombie)."""
    found: dict[int, tuple[int, str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # the name before these two may have blanks and parentheses in it
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            found[int(process.name)] = int(parent), state
    return found


def are_gone(pids: Iterable[int]) -> bool:
    """Whether none of them runs any more; a zombie does not."""
    now = processes()
    return all(now.get(pid, (0, "Z"))[1] == "Z" for pid in pids)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time these processes have used, in user and kernel mode."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


def send(number: signal.Signals, pids: Iterable[int]) -> float:
    """Signal them in this order; the moment just before."""
    at = time.monotonic()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return at
