"""The stage: a folder, a server and a worker that exist for one demo, and are gone after it, however it ends."""

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
"""How long a worker that was told to stop may take."""


class Stage:
    """Enter it, start what is needed, leave it: nothing remains but, if ``keep_log`` was said, the worker's log."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-demo-")).resolve()
        self.url = f"embedded://{quote(str(self.folder))}/data"
        self.log = self.folder / "worker.log"
        self.record = self.folder / "record"
        self.record.touch()
        self.pids: set[int] = set()
        """The worker's processes, as far as they became known."""
        self.worker: subprocess.Popen[bytes] | None = None
        self._keep_log = False

    def __enter__(self) -> Self:
        return self

    def start_server(self) -> None:
        """Returns when it answers."""
        ensure_server(self.folder / "data")

    def start_worker(self) -> int:
        """A worker as anyone would start it, in a session of its own: Ctrl-C is for the demo alone. Its pid."""
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
        """Stop it as an operator would; its exit code, None if it goes on."""
        assert self.worker is not None
        self.worker.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.worker.wait(STOP_SECONDS)
        return self.worker.returncode

    def keep_log(self) -> None:
        """Leave the worker's log behind."""
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
            # Once: finish what runs. Twice: now. Then there is nothing left to ask.
            for number, patience in ((signal.SIGTERM, 1.0), (signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, None)):
                self.worker.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.worker.wait(patience)
                    break
        # Its processes end with it; if it was killed, they find out and end themselves.
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
    except OSError:  # gone, or its number is somebody else's by now
        return False
    return True
