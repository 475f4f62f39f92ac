"""LIMITS.md: figures with their limits, and how each was measured."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from typing import Any

from alone.limit import Found, number

WIDTH = 128


def render(found: Sequence[Found], machine: dict[str, Any], server: str, load: float, rounds: int) -> str:
    """Return the whole document."""
    about = (
        "Limits that Millstream sets itself, measured by `make bench-limits`. [RESULTS.md](RESULTS.md) compares it with nine "
        "other libraries."
    )
    on = (
        f"Measured {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} on {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gb']} GB, {machine['system']}, Python {machine['python']}. {server} ran on the same machine, in "
        f"memory only, over TCP on loopback. Load average before: {load:.2f}. Each figure is the median of {rounds} rounds, "
        "with the lowest and the highest."
    )
    how = (f"**{each.measurement.name}.** {each.how}" for each in found)
    head = ("# Limits", *map(_wrapped, (about, on)), table(found))
    return "\n\n".join((*head, "## How each was measured", *map(_wrapped, how))) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def table(found: Sequence[Found]) -> str:
    lines = ["| | | median | lowest – highest | limit | |", "|---|---|--:|--:|--:|---|"]
    for each in found:
        for limit in each.measurement.limits:
            values = each.values(limit.figure)
            lines.append(
                f"| {each.measurement.name} | {limit.what} | **{number(each.median(limit.figure))}** {limit.unit} | "
                f"{number(min(values))} – {number(max(values))} | at most {number(limit.most)} | "
                f"{'met' if each.met(limit) else '**missed**'} |"
            )
    return "\n".join(lines)
