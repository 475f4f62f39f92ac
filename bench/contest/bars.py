"""The bars that Millstream set itself, and whether a run met them."""

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
    """What it is held against."""

    reached: str
    required: str
    met: bool


def bars(ledger: Ledger) -> Iterator[Bar]:
    """Those for which the run has the figures."""
    for judge in (_rates, _batches, _sequential, _latency, _memory, _workers):
        yield from judge(ledger)


def _rates(ledger: Ledger) -> Iterator[Bar]:
    for name, times, aim, against in (
        ("drain", 25, "40", PEERS),
        ("results", 18, "", PEERS),
        ("bulk", 12, "", ("streaq",)),
        ("concurrent", 4, "6", PEERS),
        ("events", 20, "", ("faststream",)),
        ("publish", 12, "", ("faststream",)),
        ("ordered", 10, "", ("faststream",)),
        ("ordered-200", 10, "", ("faststream",)),
    ):
        row = ROWS[name]
        ours, best = ledger.median(name, US), ledger.ranked(row, against)
        if ours is None or not best:
            continue
        theirs = ledger.median(name, best[0]) or 0.0
        required = f"at least {times} ×" + (f", aimed at {aim} ×" if aim else "")
        other = f"{ledger.title(best[0])} {theirs:,.0f}/s"
        yield Bar(row.title, f"{ours:,.0f}/s", other, f"{ours / theirs:.1f} ×", required, ours >= times * theirs)
    ours = ledger.median("bulk", US)
    if ours is not None:
        reached = f"{ours / 220_000:.2f} of it"
        yield Bar(
            "Bulk enqueue, the aim", f"{ours:,.0f}/s", "twice ChasquiMQ's 110,000/s", reached, "aimed at", ours >= 220_000
        )


def _batches(ledger: Ledger) -> Iterator[Bar]:
    """Beside FastStream's batches, and beside its handler of one event at a time."""
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
        slower = plain / ours - 1
        reached = f"{slower:.0%} slower" if slower > 0 else f"{-slower:.0%} faster"
        other = f"redis-py's `xadd` {plain:,.0f}/s"
        yield Bar("Sequential single enqueues", f"{ours:,.0f}/s", other, reached, "at most 25% slower", slower <= 0.25)


def _latency(ledger: Ledger) -> Iterator[Bar]:
    for figure, words in (("value", "p50"), ("p99", "p99")):
        ours = ledger.median("latency", US, figure)
        theirs = {name: ledger.median("latency", name, figure) for name in PEERS}
        known = {name: latency for name, latency in theirs.items() if latency is not None}
        if ours is None or not known:
            continue
        best = min(known, key=lambda name: known[name])
        other = f"{ledger.title(best)} {known[best]:.2f} ms"
        reached = f"{ours / known[best]:.2f} of it"
        yield Bar(
            f"Idle enqueue to start, {words}", f"{ours:.2f} ms", other, reached, "at most the best peer's", ours <= known[best]
        )


def _memory(ledger: Ledger) -> Iterator[Bar]:
    for row, figure, what, unit, most in (
        ("bytes", "value", "Server bytes per queued tiny job, index included", "bytes", 160),
        ("rss", "value", "Idle worker child, resident", "MB", 45),
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
        yield Bar(what, f"{forty:,.0f}/s", other, f"{forty / ten:.2f} of it", "at least 0.90 of it", forty >= 0.9 * ten)
