"""Worker processes: started by a command, checked, measured, and killed with all their descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from millstream.bench.figures import RowFailed

TAIL = 2_000
"""Number of characters shown of a dead worker's output."""


class Workers:
    """One or more commands, each with the processes that it starts."""

    def __init__(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str], folder: Path) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._processes = [
            subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
            for command in commands
        ]

    def check(self) -> None:
        """Raise RowFailed if one of the commands has exited."""
        for process in self._processes:
            if process.poll() is not None:
                raise RowFailed(f"a worker exited with code {process.returncode}: {self.said()}")

    def said(self) -> str:
        """Return the last part of the commands' output."""
        # pread, not seek: the workers share the file offset, and would overwrite earlier output after a seek.
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), TAIL, max(0, size - TAIL)).decode(errors="replace").strip()

    def resident(self) -> dict[int, int]:
        """Return the resident bytes of every running process, by pid."""
        return self._family()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pid in self._family():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self._processes:
            process.wait()
        if error is not None and os.environ.get("BENCH_VERBOSE"):
            print(self.said(), file=sys.stderr)
        self._output.close()

    def _family(self) -> dict[int, int]:
        """Return the resident bytes of the commands' processes and all their descendants, by pid."""
        processes = _processes()
        children: dict[int, list[int]] = {}
        for pid, process in processes.items():
            children.setdefault(process.parent, []).append(pid)
        family = [process.pid for process in self._processes if process.poll() is None]
        for pid in family:
            family += children.get(pid, [])
        return {pid: processes[pid].resident if pid in processes else 0 for pid in family}


class _Process(NamedTuple):
    parent: int
    resident: int


def _processes() -> dict[int, _Process]:
    """Return every process of this machine, by pid."""
    return _from_proc() if os.path.exists("/proc/self/stat") else _from_ps()


def _from_proc() -> dict[int, _Process]:
    page = os.sysconf("SC_PAGE_SIZE")
    found: dict[int, _Process] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            resident = int((path / "statm").read_text().split()[1]) * page
        except OSError:  # it has ended
            continue
        found[int(path.name)] = _Process(int(fields[1]), resident)
    return found


def _from_ps() -> dict[int, _Process]:
    """For systems without /proc, such as macOS."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,rss="], check=True, capture_output=True, text=True)
    lines = (tuple(map(int, line.split())) for line in listed.stdout.splitlines())
    return {pid: _Process(parent, kilobytes * 1024) for pid, parent, kilobytes in lines}
