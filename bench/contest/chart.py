"""The chart: one panel per row, the best contender on top, Millstream in colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

from contest.ledger import Ledger
from contest.roster import US, YARDSTICKS
from contest.rows import ROWS
from millstream.bench.rows import Row

OURS, THEIRS, PLAIN, INK, FAINT = "#0f766e", "#94a3b8", "#e2e8f0", "#1e293b", "#64748b"
PANELS = (
    "drain",
    "results",
    "io",
    "sync",
    "bulk",
    "concurrent",
    "sequential",
    "latency",
    "bytes",
    "rss",
    "workers",
    "events",
    "batches",
    "publish",
    "ordered",
    "ordered-200",
)
COLUMNS = 3


def draw(ledger: Ledger, path: Path) -> None:
    """Draw the ledger's figures. The suffix of the path sets the format."""
    mpl.use("svg" if path.suffix == ".svg" else "agg")
    import matplotlib.pyplot as plt  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    mpl.rcParams.update(
        {
            "font.size": 9,
            "svg.hashsalt": "bench",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "text.color": INK,
            "axes.edgecolor": FAINT,
        }
    )
    panels = [name for name in PANELS if ledger.document["rows"].get(name if name != "workers" else "workers-10")]
    lines = -(-len(panels) // COLUMNS)
    figure, axes = plt.subplots(lines, COLUMNS, figsize=(13, 3.1 * lines + 0.4), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for name, axis in zip(panels, axes.flat, strict=False):
        if name == "workers":
            _workers(ledger, axis)
        else:
            _bars(ledger, ROWS[name], axis)
    figure.tight_layout(w_pad=2.5, h_pad=2.0)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, facecolor="white", dpi=110)
    plt.close(figure)


def _bars(ledger: Ledger, row: Row, axis: Any) -> None:
    names = ledger.ranked(row)[::-1]
    figure = "p99" if row.way == "latency" else None
    values = [ledger.median(row.name, name) or 0.0 for name in names]
    colours = [OURS if name == US else PLAIN if name in YARDSTICKS else THEIRS for name in names]
    spans = [ledger.values(row.name, name) for name in names]
    errors = [[value - min(span) for value, span in zip(values, spans, strict=True)],
              [max(span) - value for value, span in zip(values, spans, strict=True)]]  # fmt: skip
    axis.barh(range(len(names)), values, color=colours, xerr=errors, error_kw={"ecolor": FAINT, "lw": 1})
    most = max(max(span) for span in spans)
    for position, (name, value, span) in enumerate(zip(names, values, spans, strict=True)):
        label = f"{value:,.0f}" if row.unit != "ms" else f"{value:.2f}"
        if figure:
            label += f"  (p99 {ledger.median(row.name, name, figure):.2f})"
        bold = {"weight": "bold", "color": OURS} if name == US else {}
        axis.text(max(span) + most * 0.02, position, label, va="center", fontsize=8, **bold)
    axis.set_yticks(range(len(names)), [ledger.title(name).replace("`", "") for name in names])
    axis.set_xlim(0, most * (1.45 if figure else 1.22))
    better = "more is better" if row.more_is_better else "less is better"
    _dress(axis, row.title, f"{row.unit}, {better}")


def _workers(ledger: Ledger, axis: Any) -> None:
    """Draw 1, 10 and 40 processes of each contender below one another."""
    labels: list[str] = []
    values: list[float] = []
    colours: list[str] = []
    for name in ledger.ranked(ROWS["workers-10"]):
        for processes, row in ((1, "drain"), (10, "workers-10"), (40, "workers-40")):
            value = ledger.median(row, name)
            if value is not None:
                labels.append(f"{ledger.title(name)} × {processes}")
                values.append(value)
                colours.append(OURS if name == US else THEIRS)
    places = range(len(labels))[::-1]
    axis.barh(places, values, color=colours)
    for place, value, colour in zip(places, values, colours, strict=True):
        bold = {"weight": "bold", "color": OURS} if colour == OURS else {}
        axis.text(value + max(values) * 0.02, place, f"{value:,.0f}", va="center", fontsize=8, **bold)
    axis.set_yticks(places, labels)
    axis.set_xlim(0, max(values) * 1.22)
    _dress(axis, "No-op drain by 1, 10, 40 processes", "jobs/s, more is better")


def _dress(axis: Any, title: str, unit: str) -> None:
    axis.set_title(title.replace(": one process, concurrency 100", "\none process, concurrency 100"), fontsize=9.5, loc="left")
    axis.set_xlabel(unit, color=FAINT, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(length=0, labelsize=8)
    axis.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    axis.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.0f}"))
