"""The stage: a folder, a server and a worker for one demo. All are removed afterwards, however the demo ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from millstream.backends.embedded import ensure_server, stop_server
from millstream.cli.demo.record import PATH_VARIABLE

APP = "millstream.cli.demo.shop:app"
PROCESSES = 2

STOP_SECONDS = 10.0
"""How long the worker may take to exit after SIGTERM."""


class Stage:
    """A context manager that stops the server and the worker and deletes the folder. ``keep_log`` keeps the worker's log."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-demo-")).resolve()
        self.url = f"embedded://{quote(str(self.folder))}/data"
        self.log = self.folder / "worker.log"
        self.record = self.folder / "record"
        self.record.touch()
        self.pids: set[int] = set()
        """The pids of the worker processes seen so far."""
        self.worker: subprocess.Popen[bytes] | None = None
        self._keep_log = False

    def __enter__(self) -> Self:
        return self

    def start_server(self) -> None:
        """Start the server and return when it answers."""
        ensure_server(self.folder / "data")

    def start_worker(self) -> int:
        """Start a worker with the usual command and return its pid. It has its own session, so that Ctrl-C reaches only the
        demo."""
        command = [sys.executable, "-m", "millstream", "worker", APP, "--processes", str(PROCESSES)]
        environment = {**os.environ, "MILLSTREAM_URL": self.url, PATH_VARIABLE: str(self.record)}
        with self.log.open("wb") as log:
            self.worker = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.worker.pid

    def stop_worker(self) -> int | None:
        """Stop the worker with SIGTERM. Return its exit code, or None if it is still running after STOP_SECONDS."""
        assert self.worker is not None
        self.worker.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.worker.wait(STOP_SECONDS)
        return self.worker.returncode

    def keep_log(self) -> None:
        """Keep the worker's log after the demo."""
        self._keep_log = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
        with contextlib.ExitStack() as last_things:
            last_things.callback(signal.signal, signal.SIGINT, impatient)
            last_things.callback(self._clear)
            last_things.callback(stop_server, self.folder / "data")
            last_things.callback(self._end_worker)

    def _end_worker(self) -> None:
        if self.worker is None:
            return
        if self.worker.poll() is None:
            # The first SIGTERM lets running jobs finish, the second interrupts them, and SIGKILL is the last resort.
            for number, patience in ((signal.SIGTERM, 1.0), (signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, None)):
                self.worker.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.worker.wait(patience)
                    break
        # The worker processes end with their supervisor. If it was killed, they notice and exit.
        deadline = time.monotonic() + STOP_SECONDS
        while any(map(_is_alive, self.pids)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in filter(_is_alive, self.pids):
            os.kill(pid, signal.SIGKILL)

    def _clear(self) -> None:
        if not self._keep_log:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path != self.log:
                path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:  # it has exited, or another user's process has its pid
        return False
    return True
