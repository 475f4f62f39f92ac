"""RESULTS.md: the ledger as tables and text, with rows that Millstream does not win shown in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median

from contest import told
from contest.bars import bars
from contest.judge import BYTES_JOBS, HEAD_GATED
from contest.ledger import Ledger
from contest.roster import US, YARDSTICKS
from millstream.bench.drain import HEAD
from millstream.bench.rows import Row

HOW = {
    "drain": "No-op coroutines (plain functions if the library has no coroutines). The queue is full before the worker starts.",
    "results": "As above, with every result stored on the server. FastStream stores none.",
    "io": "Handlers wait 10 ms, 100 at a time: 10,000/s is the maximum for one process.",
    "sync": "The library's own way to run a plain `def`. arq has none: `run_in_executor`, as its documentation shows.",
    "bulk": "The library's call for many jobs. If it has none, the closest alternative (see Settings).",
    "concurrent": "100 coroutines (100 threads if the library is synchronous) that each enqueue one job after the other.",
    "sequential": "One caller, one job per call. The two `xadd` lines are not queues but redis-py's plain call.",
    "latency": "One job at a time, 5 to 25 ms apart, from before the enqueue call to the first line of the handler.",
    "bytes": f"Growth of `used_memory` per job over {BYTES_JOBS:,} jobs with a small integer argument, after the first 1,000.",
    "rss": "The process that runs handlers, after its first job, and the other processes of the worker command.",
    "events": "A topic with one group, and a stream with a consumer group; both acknowledge each event after its handler.",
    "batches": f"As above, with a handler that receives up to {told.BATCH} events per call.",
    "publish": "`publish_many`, and 100 concurrent `publish` calls: for streams, FastStream has no call for many events.",
    "pipelined": "As above, with FastStream's `publish` in redis-py pipelines of 1,000, as its documentation shows.",
    "ordered": "A topic with `order_by` and 8 shards, one event per key at a time, compared with FastStream's stream, which "
    "keeps no order. Consecutive events have random keys.",
    "ordered-200": "As above. At any time, most events wait for another event of their key.",
    "workers-10": "Millstream and the two fastest peers. All processes have started and hold a job at a closed gate before the "
    "clock starts.",
    "workers-40": "As above with 40 processes. A queue should not become slower because many workers share it.",
}


def render(ledger: Ledger) -> str:
    """Return the whole document."""
    return "\n\n".join([_head(ledger), *_tables(ledger), *_footer(ledger)]) + "\n"


def summary(ledger: Ledger) -> str:
    """Return the tables of the document."""
    return "\n\n".join(_tables(ledger))


def _tables(ledger: Ledger) -> Iterator[str]:
    yield from _bars(ledger)
    yield from (_row(ledger, row) for row in ledger.rows)
    yield from _wrong(ledger)


def _head(ledger: Ledger) -> str:
    document = ledger.document
    machine = document["machine"]
    loads = document["loads"]
    rounds = "1 round" if document["rounds"] == 1 else f"{document['rounds']} interleaved rounds"
    return (
        "# Results\n\n"
        f"Measured {document['begun']}, {rounds} in {document['minutes']:.0f} minutes, "
        f"about {document['seconds']:g} s per row, contender and round. Each figure is the median of the rounds, with the "
        f"lowest and the highest. The best contender of each row is bold.\n\n"
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gb']} GB, {machine['system']}, Python "
        f"{machine['python']}. {document['server']} ran on the same machine, in memory only, over TCP on loopback. Load "
        f"average before: {loads[0]}; during the run: {median(loads):.1f} (median of {len(loads)}, {min(loads)} to "
        f"{max(loads)}).\n\n"
        "![Chart of the results](results.svg)"
    )


def _bars(ledger: Ledger) -> Iterator[str]:
    found = list(bars(ledger))
    if found:
        rows = ([bar.what, bar.ours, bar.other, bar.reached, bar.required, "met" if bar.met else "**missed**"] for bar in found)
        yield "## Targets\n\n" + _table(["", "Millstream", "compared with", "reached", "required", ""], rows, left=(0, 2, 4, 5))


def _row(ledger: Ledger, row: Row) -> str:
    columns = _COLUMNS.get(row.way, _rate_columns)
    heads, cells = columns(ledger, row)
    lines = [
        [_name(ledger, row, name, best=position == 0), *cells(name), _delivery(ledger, row, name)]
        for position, name in enumerate(_order(ledger, row))
    ]
    missing = [
        f"{ledger.title(name)}: could not run this row" for name in ledger.document["failures"].get(row.name, {})
        if not ledger.rounds(row.name, name)
    ]  # fmt: skip
    parts = [f"## {row.title}", HOW[row.name], _table(["", *heads, "exact"], lines, left=(0,)), *missing]
    return "\n\n".join(parts)


def _order(ledger: Ledger, row: Row) -> list[str]:
    """Return the contenders, the best first. Baselines come last, without a rank."""
    ranked = ledger.ranked(row)
    return [name for name in ranked if name not in YARDSTICKS] + [name for name in ranked if name in YARDSTICKS]


def _name(ledger: Ledger, row: Row, name: str, *, best: bool) -> str:
    title = ledger.title(name)
    return f"**{title}**" if best else title


Cells = Callable[[str], list[str]]


def _rate_columns(ledger: Ledger, row: Row) -> tuple[list[str], Cells]:
    ours = ledger.median(row.name, US)

    def cells(name: str) -> list[str]:
        values = ledger.values(row.name, name)
        jobs = max(each["jobs"] for each in ledger.rounds(row.name, name))
        return [f"{median(values):,.0f}", _span(values, "{:,.0f}"), _times(ours, median(values), name), f"{jobs:,}"]

    return [f"{row.unit}", "lowest – highest", "Millstream is", "jobs a round"], cells


def _latency_columns(ledger: Ledger, row: Row) -> tuple[list[str], Cells]:
    def cells(name: str) -> list[str]:
        found: list[str] = []
        for figure in ("value", "p99"):
            values = ledger.values(row.name, name, figure)
            found += [f"{median(values):.2f}", _span(values, "{:.2f}")]
        return [*found, f"{sum(ledger.values(row.name, name, 'samples')):,.0f}"]

    return ["p50, ms", "lowest – highest", "p99, ms", "lowest – highest", "samples"], cells


def _bytes_columns(ledger: Ledger, row: Row) -> tuple[list[str], Cells]:
    def cells(name: str) -> list[str]:
        values = ledger.values(row.name, name)
        return [f"{median(values):.0f}", _span(values, "{:.0f}")]

    return ["bytes per job", "lowest – highest"], cells


def _rss_columns(ledger: Ledger, row: Row) -> tuple[list[str], Cells]:
    def cells(name: str) -> list[str]:
        values = ledger.values(row.name, name)
        others = ledger.median(row.name, name, "others") or 0.0
        processes = ledger.median(row.name, name, "processes") or 1.0
        beside = f"{others:.0f} in {processes - 1:.0f}" if processes > 1 else "none"
        return [f"{median(values):.0f}", _span(values, "{:.0f}"), beside]

    return ["MB", "lowest – highest", "other processes, MB"], cells


_COLUMNS = {"latency": _latency_columns, "bytes": _bytes_columns, "rss": _rss_columns}


def _delivery(ledger: Ledger, row: Row, name: str) -> str:
    rounds = ledger.rounds(row.name, name)
    exact = sum(each["exact"] for each in rounds)
    return "yes" if exact == len(rounds) else f"**{exact} of {len(rounds)} rounds**"


def _wrong(ledger: Ledger) -> Iterator[str]:
    lines = [f"- {ledger.title(name)}, {row}: {note or 'not exact'}" for row, name, note in ledger.inexact()]
    lines += [
        f"- {ledger.title(name)}, {row}: {why.splitlines()[0][:200]}"
        for row, by_name in ledger.document["failures"].items()
        for name, reasons in by_name.items()
        for why in reasons
    ]
    if lines:
        yield "## Inexact and failed rounds\n\n" + "\n".join(lines)


def _footer(ledger: Ledger) -> Iterator[str]:
    contenders = ledger.document["contenders"]
    settings = (
        [each["title"], ", ".join(f"{name} {number}" for name, number in each["versions"].items()), each["settings"]]
        for each in contenders.values()
    )
    yield (
        "## Settings\n\nEach peer uses the settings that its own documentation recommends for throughput, with uvloop if it "
        "runs on asyncio and hiredis if it uses redis-py. Where several options were possible, the fastest here was chosen. "
        "All enqueue the same integer and run the same handlers.\n\n"
        + _table(["", "versions", "settings"], settings, left=(0, 1, 2))
    )
    commands = [
        f"- {each['title']}: `{command}`" + (f" ({kind})" if len(set(each["workers"].values())) > 1 else "")
        for each in contenders.values()
        for kind, command in _distinct(each["workers"])
    ]
    if commands:
        yield "The workers:\n\n" + "\n".join(commands)
    yield (
        "## How it is measured\n\n"
        "- One contender runs at a time, on an emptied server. Each round begins with a different contender. Workers run from "
        "the library's own command line, and clients in their own process.\n"
        f"- Draining: the queue is filled, then the worker starts. The clock runs from when {HEAD:.0%} of the jobs are "
        f"handled ({HEAD_GATED:.0%} with many processes) to the last job. Short test runs determine the number of jobs."
        f"\n"
        "- Exact: every handler marks its job in memory that all processes share. A row is exact if each job was handled "
        "once, the server holds none of them afterwards, and all results are stored where they are kept. An enqueueing row is "
        "exact if the number of waiting jobs equals the number of accepted jobs.\n"
        "- The raw figures of every round are in `results.json`.\n\n"
        "To repeat this on your machine: `make bench` (everything, under 45 minutes), "
        '`make bench ARGS="--rows drain,bulk --only millstream,faststream --rounds 1"` (a part), '
        "`make bench ARGS=--smoke` (a quick check that it runs). "
        "Do not use the machine during the run: with few cores, other work affects every figure."
    )


def _distinct(workers: dict[str, str]) -> list[tuple[str, str]]:
    """Return the worker command lines by kind of handler, without duplicates."""
    return [
        (kind, line) for kind, line in workers.items() if kind in ("noop", "io") and (kind == "noop" or line != workers["noop"])
    ]


def _times(ours: float | None, theirs: float, name: str) -> str:
    if ours is None or name == US:
        return ""
    return f"{ours / theirs:.1f} ×" if ours / theirs >= 0.95 else f"{ours / theirs:.2f} ×"


def _span(values: list[float], form: str) -> str:
    return f"{form.format(min(values))} – {form.format(max(values))}"


def _table(heads: list[str], rows: Iterable[list[str]], *, left: tuple[int, ...]) -> str:
    rule = ["---" if column in left else "---:" for column in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))
