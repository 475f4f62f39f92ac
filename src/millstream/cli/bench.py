"""``millstream bench``."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream._version import __version__
from millstream.cli.options import Json
from millstream.cli.output import note, print_list, progress, say
from millstream.cli.table import Column
from millstream.cli.text import json_text
from millstream.errors import UsageError
from millstream.worker import codes

if TYPE_CHECKING:
    from millstream.bench.rows import Row
    from millstream.bench.run import Found

COLUMNS = (
    Column("row"),
    Column("figure", number=True),
    Column("unit"),
    Column("jobs", number=True),
    Column("exact"),
    Column("what", give="wrap"),
)

MORE = {"latency": ("p99",), "rss": ("supervisor",)}
"""Additional figures that get their own line, by row."""

DIGITS = {"ms": 2, "MB": 1}
"""Decimal places, by unit."""


def bench(
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="ROW,…",
            help="Rows to run, separated by commas: drain, results, io, sync, bulk, concurrent, sequential, latency, bytes, "
            "rss, events, batches, publish. Default: all.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, metavar="S", help="Approximate duration of each row.")] = 3.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="Number of rounds. Figures are medians.")] = 1,
    json: Json = False,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Server URL. Default: an embedded server for this run only.")
    ] = None,
) -> None:
    """Measure the performance of Millstream on this machine.

    Starts real worker processes and uses a namespace of its own, which is deleted afterwards. Every row checks that each job
    was handled exactly once.

    Exit codes: 0 every row ran and was exact; 1 a row failed or was not exact; 3 the server is unreachable or refuses access.
    """
    from millstream.bench.judge import Judge
    from millstream.bench.machine import machine
    from millstream.bench.rows import ROWS, select
    from millstream.bench.run import measure
    from millstream.cli.interrupts import signals_as_interrupts
    from millstream.cli.target import away_is_told, quiet

    chosen = list(ROWS) if rows is None else select(rows)
    with quiet(), signals_as_interrupts() as received:
        try:
            with _server(url) as server, ExitStack() as last_things:
                with away_is_told():
                    judge = last_things.enter_context(Judge(server))
                with progress("measuring", rounds * len(chosen), slow=True) as advance:
                    found = measure(judge, chosen, rounds=rounds, seconds=seconds, told=advance)
        except KeyboardInterrupt:
            raise typer.Exit(128 + (received[0] if received else signal.SIGINT)) from None
    place = {
        "millstream": __version__,
        "uvloop": find_spec("uvloop") is not None,
        "server": judge.server,
        "embedded": url is None,
        "machine": machine(),
    }
    if json:
        print(json_text({**place, "rounds": rounds, "seconds": seconds, "rows": [_document(each) for each in found]}))
    else:
        say(f"{_headline(place)}\n")
        print_list([line for each in found for line in _lines(each)], COLUMNS, json=False, empty="")
    wrong = [f"{each.row.name}: {why}" for each in found for why in each.wrong]
    for line in wrong:
        note(line)
    if wrong:
        raise typer.Exit(codes.FAILED)


@contextmanager
def _server(url: str | None) -> Generator[str]:
    """Yield the URL of a running server. Without ``url``, start an embedded server for this run and stop it afterwards."""
    from millstream.backends.embedded import ensure_server, stop_server
    from millstream.url import parse_url

    if url is None:
        with tempfile.TemporaryDirectory(prefix="millstream-bench-", ignore_cleanup_errors=True) as folder:
            try:
                yield ensure_server(folder)
            finally:
                stop_server(folder)
        return
    where = parse_url(url)
    if where.scheme == "memory":
        raise UsageError(
            "memory:// exists only within one process, but bench measures separate worker processes: change or omit --url"
        )
    yield ensure_server(where.path or None) if where.scheme == "embedded" else url


def _headline(place: dict[str, Any]) -> str:
    """Return the lines above the table: versions, server and machine."""
    machine = place["machine"]
    loop = "uvloop" if place["uvloop"] else "asyncio's event loop (for the faster uvloop: pip install 'millstream[fast]')"
    where = "embedded" if place["embedded"] else "from --url"
    return (
        f"Millstream {place['millstream']}, Python {machine['python']}, {loop}\n"
        f"{place['server']}, {where}\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}"
    )


def _lines(found: Found) -> list[dict[str, Any]]:
    """Return the table lines of a row: its main figure, then its additional figures."""
    row = found.row
    first = {
        "row": row.name if row.way != "latency" else f"{row.name} p50",
        "figure": _rounded(found.median(), row),
        "unit": row.unit,
        "jobs": found.rounds[-1].jobs if found.rounds else None,
        "exact": not found.wrong,
        "what": row.title,
    }
    more = [
        {"row": f"{row.name} {name}", "figure": _rounded(found.median(name), row), "unit": row.unit}
        for name in MORE.get(row.name, ())
    ]
    return [first, *({**dict.fromkeys(first), **line} for line in more)]


def _document(found: Found) -> dict[str, Any]:
    row = found.row
    return {
        "row": row.name,
        "what": row.title,
        "unit": row.unit,
        "figure": found.median(),
        **{name: found.median(name) for name in (found.rounds[0].more if found.rounds else ())},
        "lowest": min(found.values(), default=None),
        "highest": max(found.values(), default=None),
        "jobs": [each.jobs for each in found.rounds],
        "exact": not found.wrong,
        "wrong": found.wrong,
    }


def _rounded(value: float | None, row: Row) -> float | None:
    return None if value is None else round(value, DIGITS.get(row.unit))
