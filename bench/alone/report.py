"""LIMITS.md: figures beside bars, and how each was measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from alone.limit import Found, number


def render(found: Sequence[Found], machine: dict[str, Any], server: str, load: float, rounds: int) -> str:
    """The whole document."""
    return (
        "# Limits\n\n"
        "Bars of Millstream's own that need no peer, by `make bench-limits`; beside nine peers it is measured in "
        "[RESULTS.md](RESULTS.md).\n\n"
        f"Measured {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} on {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gb']} GB, {machine['system']}, Python {machine['python']}; {server} on the same machine, in memory "
        f"only, over TCP on the loopback. Load average before: {load:.2f}. Each figure is the median of {rounds} rounds, "
        "beside it the lowest and the highest.\n\n"
        f"{table(found)}\n\n"
        "## How each was measured\n\n" + "\n\n".join(f"**{each.measurement.name}.** {each.how}" for each in found) + "\n"
    )


def table(found: Sequence[Found]) -> str:
    lines = ["| | | median | lowest – highest | bar | |", "|---|---|--:|--:|--:|---|"]
    for each in found:
        for limit in each.measurement.limits:
            values = each.values(limit.figure)
            lines.append(
                f"| {each.measurement.name} | {limit.what} | **{number(each.median(limit.figure))}** {limit.unit} | "
                f"{number(min(values))} – {number(max(values))} | at most {number(limit.most)} | "
                f"{'met' if each.met(limit) else '**missed**'} |"
            )
    return "\n".join(lines)
