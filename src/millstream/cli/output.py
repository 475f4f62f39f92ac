"""What commands print: lists, details and progress. Tables on a terminal, plain aligned text in a pipe, JSON when asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

import typer

from millstream.cli.text import ago, block, cell, iso, json_text
from millstream.errors import MillstreamError, UsageError

if TYPE_CHECKING:
    from rich.console import JustifyMethod

Row = Mapping[str, Any]

STYLES = {
    "dead": "red",
    "running": "cyan",
    "scheduled": "yellow",
    "done": "green",
    "ok": "green",
    "warn": "yellow",
    "bad": "red",
}
"""Words that are the same everywhere look the same everywhere."""

LEAST_WIDTH = {"wrap": 20, "cut": 10}
"""Characters that a column which gives has at least."""


@dataclass(frozen=True)
class Column:
    """One field of the rows in a table."""

    field: str
    number: bool = False
    """Right-aligned."""
    give: Literal["", "wrap", "cut"] = ""
    """How it makes do on a narrow terminal: with several lines, or with its beginning. The others are always whole."""


def print_list(rows: Sequence[Row], columns: Sequence[Column], *, json: bool, empty: str) -> None:
    """All rows, every field of them as JSON, else the columns; ``empty`` is said on a terminal if there is none."""
    if json:
        print(json_text(list(rows)))
    elif not sys.stdout.isatty():
        print("\n".join(aligned(rows, columns)))
    elif rows:
        _print_table(rows, columns)
    else:
        note(empty)


def aligned(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """A header and the rows, in columns two blanks apart; nothing is cut."""
    lines = [[column.field.upper() for column in columns]]
    lines += [[cell(row[column.field], friendly=False) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return [
        "  ".join(
            text.rjust(width) if column.number else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]


def _print_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    lines = [[_friendly(row[column.field], column) for column in columns] for row in rows]
    longest = [max(len(column.field), *(len(line[i]) for line in lines)) for i, column in enumerate(columns)]
    least = [min(LEAST_WIDTH.get(column.give, width), width) for column, width in zip(columns, longest, strict=True)]
    # Wider than a narrow terminal rather than without the end of an id.
    spare = max(0, console.width - sum(least) - 2 * len(columns))
    console.width = max(console.width, sum(least) + 2 * len(columns))
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column, width in zip(columns, least, strict=True):
        justify: JustifyMethod = "right" if column.number else "left"
        table.add_column(column.field, justify=justify, no_wrap=column.give != "wrap", overflow="fold", min_width=width)
    for line in lines:
        cells = zip(line, least, columns, strict=True)
        shown = [_cut(text, width + spare) if column.give == "cut" else text for text, width, column in cells]
        table.add_row(*[Text(text, style=STYLES.get(text, "")) for text in shown])
    console.print(table)


def _friendly(value: Any, column: Column) -> str:
    # a number that is a name, like a process id, is not grouped
    return cell(value, friendly=column.number or not isinstance(value, int))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def print_details(fields: Row, blocks: Mapping[str, str], *, json: bool) -> None:
    """One thing: its fields, then what takes many lines. As JSON the fields alone, which hold everything."""
    if json:
        print(json_text(fields))
        return
    friendly = sys.stdout.isatty()
    shown = {name: _detail(value, friendly) for name, value in fields.items() if name not in blocks and value not in (None, "")}
    width = max(map(len, shown), default=0)
    for name, text in shown.items():
        print(f"{_bold(name.ljust(width), friendly)}  {_styled(text, friendly)}")
    for title, text in blocks.items():
        print(f"\n{_bold(title, friendly)}\n{block(text).rstrip()}")


def _detail(value: Any, friendly: bool) -> str:
    if isinstance(value, datetime) and friendly:
        return f"{iso(value)} ({ago(value)})"
    return cell(value, friendly=friendly)


def _bold(text: str, friendly: bool) -> str:
    return typer.style(text, bold=True) if friendly else text


def _styled(text: str, friendly: bool) -> str:
    return typer.style(text, fg=STYLES[text]) if friendly and text in STYLES else text


def note(text: str) -> None:
    """Something for people, beside the output."""
    print(f"millstream: {text}", file=sys.stderr)


def say(text: str) -> None:
    """What was done."""
    print(text)


def confirm(question: str, yes: bool) -> None:
    """Go on only if it is meant: by --yes, or by an answer. UsageError where nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask: say --yes if it is meant")
    if not typer.confirm(question, err=True):
        raise MillstreamError("nothing was done")


class Advance(Protocol):
    """How much was done since the last call, and what is being done from now on, if that is something else."""

    def __call__(self, count: int, doing: str | None = None) -> None: ...


@contextmanager
def progress(doing: str, total: int) -> Iterator[Advance]:
    """A bar on a terminal, for what may take long."""
    if not sys.stderr.isatty():
        yield lambda count, doing=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda count, doing=None: bar.update(task, advance=count, description=doing)
