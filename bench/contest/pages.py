"""The figures of a run in the tables of README.md and docs/comparison.md.

A table is recognised by its header, which names Millstream and other libraries, and a row by the label in its first cell.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

PAGES = ("README.md", "docs/comparison.md")
US = "millstream"


class Figure(NamedTuple):
    row: str
    """The row of the benchmark."""
    form: Callable[[float], str]
    figure: str = "value"
    ratio: bool = False
    """Whether peers are shown by how many times as fast Millstream is."""


def _rate(value: float) -> str:
    return f"{value:,.0f}/s"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{value:.2f} ms"


FIGURES = {
    "Jobs per second, one process": Figure("drain", _count),
    "Enqueue to start, median": Figure("latency", _milliseconds),
    "No-op jobs, results off": Figure("drain", _rate, ratio=True),
    "No-op jobs, results on": Figure("results", _rate, ratio=True),
    "Jobs that wait 10 ms": Figure("io", _rate, ratio=True),
    "Plain functions": Figure("sync", _rate, ratio=True),
    "Bulk enqueue": Figure("bulk", _rate, ratio=True),
    "100 concurrent enqueues": Figure("concurrent", _rate, ratio=True),
    "Sequential enqueues": Figure("sequential", _rate, ratio=True),
    "Enqueue to start, p50": Figure("latency", _milliseconds),
    "Enqueue to start, p99": Figure("latency", _milliseconds, "p99"),
    "Server memory per queued job": Figure("bytes", "{:.0f} B".format),
    "Idle worker process": Figure("rss", "{:.0f} MB".format),
    "Events, one per call of the handler": Figure("events", _rate, ratio=True),
    "Events, in batches": Figure("batches", _rate, ratio=True),
    "Publishing many events": Figure("publish", _rate, ratio=True),
}


def updated(page: str, rows: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Return the page with every figure of its tables replaced by that of a run."""
    lines: list[str] = []
    names: list[str] = []
    for line in page.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if len(cells) > 1 and cells[1].strip("*").lower() == US:
            names = [cell.strip("*").lower() for cell in cells[1:]]
        label = cells[0].replace("**", "") if cells else ""
        if names and label in FIGURES:
            found = [_cell(FIGURES[label], rows, name) for name in names]
            if cells[1].startswith("**"):
                found[0] = f"**{found[0]}**"
            line = f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in (cells[0], *found))}|"
        lines.append(line)
    return "\n".join(lines)


def _cell(figure: Figure, rows: dict[str, dict[str, list[dict[str, Any]]]], name: str) -> str:
    ours, theirs = _median(figure, rows, US), _median(figure, rows, name)
    if ours is None or theirs is None:
        return ""
    return f"{ours / theirs:.1f} ×" if figure.ratio and name != US else figure.form(theirs)


def _median(figure: Figure, rows: dict[str, dict[str, list[dict[str, Any]]]], name: str) -> float | None:
    rounds = rows.get(figure.row, {}).get(name, [])
    values = [each["value"] if figure.figure == "value" else each["more"][figure.figure] for each in rounds]
    return median(values) if values else None
