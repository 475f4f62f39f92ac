"""Compares two commits of Millstream, interleaved, in about two minutes: is one of them slower?

    make bench-quick                            HEAD~1 and the working tree
    make bench-quick ARGS="v0.1 main"           any two commits; "." is the working tree
    make bench-quick ARGS="--rows drain --rounds 8"

Each commit is checked out into a temporary folder and imported from there. The benchmark itself is that of this tree.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from contest.judge import Judge
from contest.roster import BENCH, US, Entry, describe
from contest.rows import ROWS
from contest.server import throwaway_server
from millstream.bench.figures import Measured
from millstream.bench.rows import Row, select
from millstream.bench.sizes import Sizes

TREE = BENCH.parent
HERE = "."
DEFAULT = "drain,results,bulk,concurrent,latency"


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yield the folder with the sources of a commit, or of the working tree as they are."""
    if commit == HERE:
        yield TREE / "src"
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        place = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(place), commit)
        try:
            yield place / "src"
        finally:
            _git("worktree", "remove", "--force", str(place))


def name_of(commit: str) -> str:
    return "working tree" if commit == HERE else _git("log", "-1", "--format=%h %s", commit)


def compare(judge: Judge, arms: tuple[Entry, Entry], rows: list[Row], rounds: int, seconds: float) -> bool:
    """Print the ratios. Return whether every row was exact."""
    sizes = Sizes(partial(judge.measure, arms[0]), seconds)
    jobs = {row.name: sizes.jobs(row) for row in rows}
    found: dict[str, list[tuple[Measured, Measured]]] = {row.name: [] for row in rows}
    for number in range(rounds):
        for row in rows:
            order = arms if number % 2 == 0 else arms[::-1]
            measured = {arm.name: judge.measure(arm, row, jobs=jobs[row.name], seconds=seconds) for arm in order}
            found[row.name].append((measured["A"], measured["B"]))
            print(".", end="", flush=True)
    print("\n")
    print(f"  {'':24} {'A':>12} {'B':>12}   {'B / A':>6}   lowest – highest of {rounds} rounds")
    for row in rows:
        for figure in ("value", "p99") if row.way == "latency" else ("value",):
            _print(row, figure, found[row.name])
    return all(each.exact for pairs in found.values() for pair in pairs for each in pair)


def _print(row: Row, figure: str, pairs: list[tuple[Measured, Measured]]) -> None:
    values = [tuple(each.value if figure == "value" else each.more[figure] for each in pair) for pair in pairs]
    ratios = [after / before for before, after in values]
    label = f"{row.name} {'p50' if figure == 'value' else figure}" if row.way == "latency" else row.name
    form = "{:12.2f}" if row.unit == "ms" else "{:12,.0f}"
    before, after = (form.format(median(each[side] for each in values)) for side in (0, 1))
    better = max(ratios) < 1.0 if not row.more_is_better else min(ratios) > 1.0
    worse = min(ratios) > 1.0 if not row.more_is_better else max(ratios) < 1.0
    verdict = "  better in every round" if better else "  worse in every round" if worse else ""
    span = f"{min(ratios):.2f} – {max(ratios):.2f}"
    print(f"  {label + ', ' + row.unit:24} {before} {after}   {median(ratios):6.2f}   {span}{verdict}")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(TREE), *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare two commits of Millstream, interleaved, in about two minutes.")
    parser.add_argument("a", nargs="?", default="HEAD~1", help="a commit (default: %(default)s)")
    parser.add_argument("b", nargs="?", default=HERE, help="a commit, or . for the working tree (default)")
    parser.add_argument("--rows", default=DEFAULT, metavar="ROW,…", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.5, help="approximate time per row (default: %(default)s)")
    options = parser.parse_args()
    print(f"A: {name_of(options.a)}\nB: {name_of(options.b)}", flush=True)
    with checked_out(options.a) as first, checked_out(options.b) as second, throwaway_server() as server:
        arms = (describe(US, source=first, label="A"), describe(US, source=second, label="B"))
        exact = compare(Judge(server), arms, select(options.rows, tuple(ROWS.values())), options.rounds, options.seconds)
    if not exact:
        print("\nNOT EXACT: a job was lost or handled twice", file=sys.stderr)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
