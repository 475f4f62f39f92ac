"""The targets that Millstream sets itself, and whether a run met them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from contest.ledger import Ledger
from contest.roster import PEERS, US
from contest.rows import ROWS


class Bar(NamedTuple):
    what: str
    ours: str
    other: str
    """The figure it is compared with."""

    reached: str
    required: str
    met: bool


def bars(ledger: Ledger) -> Iterator[Bar]:
    """Yield the targets for which the run has figures."""
    for judge in (_rates, _batches, _sequential, _latency, _memory, _workers):
        yield from judge(ledger)


def _rates(ledger: Ledger) -> Iterator[Bar]:
    for name, times, against in (
        ("drain", 40, PEERS),
        ("results", 30, PEERS),
        ("bulk", 18, ("streaq",)),
        ("concurrent", 6, PEERS),
        ("events", 50, ("faststream",)),
        ("publish", 12, ("faststream",)),
        ("ordered", 18, ("faststream",)),
        ("ordered-200", 10, ("faststream",)),
    ):
        row = ROWS[name]
        ours, best = ledger.median(name, US), ledger.ranked(row, against)
        if ours is None or not best:
            continue
        theirs = ledger.median(name, best[0]) or 0.0
        other = f"{ledger.title(best[0])} {theirs:,.0f}/s"
        reached, required = f"{ours / theirs:.1f} ×", f"at least {times} ×"
        yield Bar(row.title, f"{ours:,.0f}/s", other, reached, required, ours >= times * theirs)


def _batches(ledger: Ledger) -> Iterator[Bar]:
    """Compare with FastStream's batches, and with its handler of one event at a time."""
    ours = ledger.median("batches", US)
    for row, words in (("batches", "FastStream's batches"), ("events", "FastStream's handler of one event")):
        theirs = ledger.median(row, "faststream")
        if ours is not None and theirs is not None:
            reached = f"{ours / theirs:.1f} ×"
            met = ours >= 40 * theirs
            yield Bar(ROWS["batches"].title, f"{ours:,.0f}/s", f"{words} {theirs:,.0f}/s", reached, "at least 40 ×", met)


def _sequential(ledger: Ledger) -> Iterator[Bar]:
    ours, plain = ledger.median("sequential", US), ledger.median("sequential", "xadd")
    if ours is not None and plain is not None:
        ratio = ours / plain
        other = f"redis-py's `xadd` {plain:,.0f}/s"
        yield Bar("Sequential single enqueues", f"{ours:,.0f}/s", other, f"{ratio:.2f} ×", "at least 0.85 ×", ratio >= 0.85)


def _latency(ledger: Ledger) -> Iterator[Bar]:
    for figure, words in (("value", "p50"), ("p99", "p99")):
        ours = ledger.median("latency", US, figure)
        theirs = {name: ledger.median("latency", name, figure) for name in PEERS}
        known = {name: latency for name, latency in theirs.items() if latency is not None}
        if ours is None or not known:
            continue
        best = min(known, key=lambda name: known[name])
        other = f"{ledger.title(best)} {known[best]:.2f} ms"
        reached = f"{ours / known[best]:.2f} ×"
        yield Bar(f"Idle enqueue to start, {words}", f"{ours:.2f} ms", other, reached, "below every peer", ours < known[best])


def _memory(ledger: Ledger) -> Iterator[Bar]:
    for row, figure, what, unit, most in (
        ("bytes", "value", "Server bytes per queued tiny job, index included", "bytes", 120),
        ("rss", "value", "Idle worker child, resident", "MB", 40),
        ("rss", "others", "Supervisor, resident", "MB", 35),
    ):
        ours = ledger.median(row, US, figure)
        if ours is not None:
            yield Bar(what, f"{ours:.0f} {unit}", "", f"{ours:.1f}", f"at most {most}", ours <= most)


def _workers(ledger: Ledger) -> Iterator[Bar]:
    ten, forty = ledger.median("workers-10", US), ledger.median("workers-40", US)
    if ten is not None and forty is not None:
        what = "40 worker processes on one queue"
        other = f"10 of them {ten:,.0f}/s"
        yield Bar(what, f"{forty:,.0f}/s", other, f"{forty / ten:.2f} ×", "at least 0.95 ×", forty >= 0.95 * ten)
