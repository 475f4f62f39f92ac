"""The ledger of a run: all figures and the machine as one JSON document, from which the report and the chart are made."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self

from contest.roster import US, Entry
from contest.rows import ROWS
from millstream.bench.figures import Measured
from millstream.bench.machine import machine
from millstream.bench.rows import Row


class Ledger:
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    @classmethod
    def begin(cls, entries: Iterable[Entry], server: str, *, rounds: int, seconds: float) -> Self:
        return cls(
            {
                "begun": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                "minutes": 0.0,
                "rounds": rounds,
                "seconds": seconds,
                "machine": machine(),
                "server": server,
                "loads": [],
                "contenders": {
                    entry.name: {
                        "title": entry.title,
                        "versions": entry.versions,
                        "settings": entry.settings,
                        "workers": {kind: _printable(by_count["1"][0]) for kind, by_count in entry.workers.items()},
                    }
                    for entry in entries
                },
                "rows": {},
                "failures": {},
            }
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(json.loads(path.read_text()))

    def add(self, entry: Entry, row: Row, measured: Measured) -> None:
        self.document["rows"].setdefault(row.name, {}).setdefault(entry.name, []).append(measured.as_json())

    def fail(self, entry: Entry, row: Row, why: str) -> None:
        self.document["failures"].setdefault(row.name, {}).setdefault(entry.name, []).append(why)

    def note_load(self) -> None:
        """Record the load average of the last minute, which shows other work on the machine."""
        self.document["loads"].append(round(os.getloadavg()[0], 2))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.document, indent=1) + "\n")

    # --- reading ---

    @property
    def rows(self) -> list[Row]:
        return [row for row in ROWS.values() if row.name in self.document["rows"]]

    def title(self, name: str) -> str:
        title: str = self.document["contenders"][name]["title"]
        return title

    def rounds(self, row: str, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document["rows"].get(row, {}).get(name, [])
        return found

    def values(self, row: str, name: str, figure: str = "value") -> list[float]:
        return [each["value"] if figure == "value" else each["more"][figure] for each in self.rounds(row, name)]

    def median(self, row: str, name: str, figure: str = "value") -> float | None:
        values = self.values(row, name, figure)
        return median(values) if values else None

    def ranked(self, row: Row, names: Sequence[str] | None = None) -> list[str]:
        """Return the contenders measured in the row, the best first."""
        there: list[str] = [name for name in self.document["rows"].get(row.name, {}) if names is None or name in names]
        return sorted(there, key=lambda name: self.median(row.name, name) or 0.0, reverse=row.more_is_better)

    def ours_failed(self) -> bool:
        """Return whether Millstream could not run a row or was not exact. Failures of peers are only shown."""
        failed = any(US in by_name for by_name in self.document["failures"].values())
        return failed or any(name == US for _, name, _ in self.inexact())

    def inexact(self) -> list[tuple[str, str, str]]:
        """Return row, contender and note of every round that was not exact."""
        return [
            (row, name, each["note"])
            for row, by_name in self.document["rows"].items()
            for name, rounds in by_name.items()
            for each in rounds
            if not each["exact"]
        ]


def _printable(command: Sequence[str]) -> str:
    """Return a worker's command line without installation paths."""
    return " ".join(Path(word).name if os.sep in word else word for word in command)
