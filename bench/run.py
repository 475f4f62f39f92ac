"""Measures Millstream and nine other libraries on one throwaway server, in one run.

    make bench                                                       everything, under 45 minutes; writes RESULTS.md
    make bench ARGS="--rows drain,bulk --only millstream,faststream --rounds 1"
    make bench ARGS=--smoke                                          a quick check that everything runs; small counts
    make bench ARGS=--render                                         RESULTS.md and the chart again, from results.json

Rounds are interleaved, and each begins with a different contender. The server is emptied before every row, and every row checks
that each job was handled exactly once. A full run writes its results. Any other run only prints them, unless --output names a
folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from contest import chart, pages, report
from contest.judge import Judge
from contest.ledger import Ledger
from contest.roster import ALL, BENCH, PEERS, US, Entry, choose, describe, fastest
from contest.rows import ROWS
from contest.server import throwaway_server
from millstream.bench.figures import RowFailed
from millstream.bench.rows import Row, select
from millstream.bench.sizes import Sizes
from millstream.errors import UsageError

# number of peers that the rows with many worker processes include
FASTEST = 2
# failures after which a contender does not run a row again
FAILURES = 2
SMOKE_SECONDS, SMOKE_JOBS = 0.5, 400


class Run:
    """The rounds of a run."""

    def __init__(
        self, judge: Judge, entries: Sequence[Entry], rows: Sequence[Row], sizes: Mapping[str, Sizes], ledger: Ledger
    ) -> None:
        self._judge = judge
        self._entries = entries
        self._rows = rows
        self._sizes = sizes
        self._ledger = ledger
        self._failures: dict[tuple[str, str], int] = {}

    def round(self, number: int, rounds: int, seconds: float) -> None:
        first = number % len(self._entries)
        order = [*self._entries[first:], *self._entries[:first]]
        for row in self._rows:
            for entry in self._takers(row, order):
                print(f"  round {number + 1}/{rounds}  {row.name:11} {entry.name:11} ", end="", flush=True)
                print(self._measure(entry, row, seconds), flush=True)
            self._ledger.note_load()

    def _takers(self, row: Row, order: Iterable[Entry]) -> list[Entry]:
        takers = [entry for entry in order if entry.can(row.handler, row.results, row.name)]
        takers = [entry for entry in takers if self._failures.get((entry.name, row.name), 0) < FAILURES]
        if row.processes > 1:
            rates = {name: self._ledger.median("drain", name) for name in PEERS}
            known = [(name, rate) for name, rate in rates.items() if rate is not None]
            if known:
                takers = [entry for entry in takers if entry.name in {US, *fastest(known, FASTEST)}]
        return takers

    def _measure(self, entry: Entry, row: Row, seconds: float) -> str:
        began = time.monotonic()
        try:
            jobs = self._sizes[entry.name].jobs(row)
            measured = self._judge.measure(entry, row, jobs=jobs, seconds=seconds)
        except RowFailed as error:
            self._failures[entry.name, row.name] = self._failures.get((entry.name, row.name), 0) + 1
            self._ledger.fail(entry, row, str(error))
            return f"FAILED: {error}"
        self._sizes[entry.name].learn(row, measured)
        self._ledger.add(entry, row, measured)
        more = "".join(f", {name} {value:,.1f}" for name, value in measured.more.items())
        exact = "exact" if measured.exact else f"NOT EXACT: {measured.note}"
        figure = f"{measured.value:12,.1f} {row.unit}{more}"
        return f"{figure}  {measured.jobs:,} jobs in {measured.seconds:.1f} s, {exact} [{time.monotonic() - began:.0f} s]"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Millstream and its peers in one run on one machine.")
    parser.add_argument("--rows", default=",".join(ROWS), metavar="ROW,…", help=", ".join(ROWS))
    parser.add_argument("--only", default=",".join(ALL), metavar="NAME,…", help=", ".join(ALL))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.5, help="approximate time per row (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="run one round of small counts, to check that everything works")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write RESULTS.md, results.json and the chart there")
    parser.add_argument("--render", action="store_true", help="only write RESULTS.md and the chart again, from results.json")
    options = parser.parse_args()
    try:
        options.rows, options.only = select(options.rows, tuple(ROWS.values())), choose(options.only)
    except (UsageError, ValueError) as error:
        parser.error(str(error))
    if options.smoke:
        options.rounds, options.seconds = 1, SMOKE_SECONDS
    whole = len(options.rows) == len(ROWS) and len(options.only) == len(ALL) and options.rounds >= 3
    if options.output is None and (whole or options.render):
        options.output = BENCH
    return options


def main() -> int:
    options = arguments()
    if options.render:
        write(Ledger.read(options.output / "results.json"), options.output)
        return 0
    with throwaway_server() as server:
        judge = Judge(server)
        entries = [describe(name) for name in options.only]
        ledger = Ledger.begin(entries, server.version, rounds=options.rounds, seconds=options.seconds)
        fixed = SMOKE_JOBS if options.smoke else None
        sizes = {entry.name: Sizes(partial(judge.measure, entry), options.seconds, fixed=fixed) for entry in entries}
        run = Run(judge, entries, options.rows, sizes, ledger)
        began = time.monotonic()
        ledger.note_load()
        print(f"load average {ledger.document['loads'][0]} (other work on the machine affects every figure)", flush=True)
        raw = Path(tempfile.gettempdir()) / "millstream-bench-results.json"
        for number in range(options.rounds):
            run.round(number, options.rounds, options.seconds)
            ledger.document["minutes"] = round((time.monotonic() - began) / 60, 1)
            ledger.write(raw)  # in case a later round fails
    if options.smoke:
        print(f"{sum(len(each) for each in ledger.document['rows'].values())} rows ran, {len(ledger.inexact())} not exact")
    else:
        print(f"\n{report.summary(ledger)}")
    if options.output:
        write(ledger, options.output)
    return 1 if ledger.ours_failed() else 0


def write(ledger: Ledger, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ledger.write(folder / "results.json")
    (folder / "RESULTS.md").write_text(report.render(ledger))
    chart.draw(ledger, folder / "results.svg")
    if folder == BENCH:
        for page in (BENCH.parent / name for name in pages.PAGES):
            page.write_text(pages.updated(page.read_text(), ledger.document["rows"]))
    print(f"written: {', '.join(sorted(path.name for path in folder.glob('[rR][eE][sS][uU][lL][tT][sS].*')))}")


if __name__ == "__main__":
    sys.exit(main())
