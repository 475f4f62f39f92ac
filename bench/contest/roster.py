"""The contenders: the file of each, the interpreter that has it installed, and its description of itself."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
CONTENDERS = BENCH / "contenders"
VENV = BENCH / ".venv"

US = "millstream"
PEERS = ("faststream", "taskiq", "arq", "saq", "streaq", "huey", "dramatiq", "celery", "rq")
YARDSTICKS = ("xadd", "xadd_sync")
"""Baselines, not contenders: redis-py's plain ``xadd``, for comparison with sequential enqueues."""

OWN_VENV = ("arq", "saq", "dramatiq")
"""Contenders with conflicting dependencies; each is in ``.venv/<name>``, from ``requirements-<name>.txt``."""

ALL = (US, *PEERS, *YARDSTICKS)


@dataclass(frozen=True)
class Entry:
    name: str
    python: Path
    file: Path
    path: tuple[Path, ...]
    """The import path of its processes, in order."""

    title: str
    versions: dict[str, str]
    settings: str
    queued: Sequence[Sequence[str]]
    left: Sequence[Sequence[str]]
    results: Sequence[Sequence[str]]
    workers: dict[str, dict[str, list[list[str]]]]
    """The worker commands by kind of handler and number of processes."""

    def can(self, handler: str, results: bool, name: str) -> bool:
        """Return whether there is anything to measure."""
        if self.name in YARDSTICKS:
            return name == "sequential"
        return handler in self.workers and (bool(self.results) or not results)


def describe(name: str, *, source: Path | None = None, label: str | None = None, python: Path | None = None) -> Entry:
    """Ask a contender's file for its description. ``source`` is another folder to import it from, ``label`` another name for
    it, ``python`` another interpreter that has it installed."""
    python = python or (VENV / name if name in OWN_VENV else VENV) / "bin" / "python"
    file = CONTENDERS / f"on_{name}.py"
    path = (source or BENCH.parent / "src", BENCH, CONTENDERS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    environment.pop("BENCH_TALLY", None)
    told = subprocess.run([python, file, "describe"], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Entry(name=label or name, python=python, file=file, path=path, **json.loads(told.stdout))


def choose(names: str) -> list[str]:
    """Return contenders by name, comma-separated, in the roster's order. Raises ValueError for an unknown name."""
    wanted = names.split(",")
    for name in wanted:
        if name not in ALL:
            raise ValueError(f"unknown contender {name!r}; the contenders are {', '.join(ALL)}")
    return [name for name in ALL if name in wanted]


def fastest(rates: Iterable[tuple[str, float]], count: int) -> list[str]:
    """Return the names with the highest rates."""
    return [name for name, _ in sorted(rates, key=lambda pair: -pair[1])[:count]]
