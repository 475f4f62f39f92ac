"""Worker processes of a contender: started from its own command line, watched, and killed with all they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

# characters of a dead worker's output that are shown
TAIL = 2_000
PAGE = os.sysconf("SC_PAGE_SIZE")


class RowFailed(Exception):
    """A contender could not run a row; the message says why, a dead worker's last words included."""


class Workers:
    """One or more commands, each with the processes it starts."""

    def __init__(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str], folder: Path) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._processes = [
            subprocess.Popen(
                command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
                start_new_session=True,
            )
            for command in commands
        ]  # fmt: skip

    def check(self) -> None:
        """RowFailed if one of them has ended."""
        for process in self._processes:
            if process.poll() is not None:
                raise RowFailed(f"a worker ended with {process.returncode}: {self.said()}")

    def said(self) -> str:
        """The end of what they printed."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - TAIL))
        return self._output.read().decode(errors="replace").strip()

    def resident(self) -> dict[int, int]:
        """Resident bytes of every process that is running, by process id."""
        return {pid: _resident(pid) for pid in self._family()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        family = self._family()
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self._processes:
            process.wait()
        if error is not None and os.environ.get("BENCH_VERBOSE"):
            print(self.said(), file=sys.stderr)
        self._output.close()

    def _family(self) -> list[int]:
        """The commands' processes and all their descendants."""
        children: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
        family = [process.pid for process in self._processes if process.poll() is None]
        for pid in family:
            family += children.get(pid, [])
        return family


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0
