"""What commands print: lists, details and progress. Tables on a terminal, plain aligned text in a pipe, JSON when asked."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol

import typer

from millstream.cli.table import Column, fitted, untruncated
from millstream.cli.text import ago, cell, iso, json_text
from millstream.errors import MillstreamError, UsageError
from millstream.reporting.printable import block

Row = Mapping[str, Any]

MANY = 100
"""Fewer are done before a bar could be read."""

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


def print_list(rows: Sequence[Row], columns: Sequence[Column], *, json: bool, empty: str, where: str = "") -> None:
    """All rows: as JSON with every field, else the columns. On a terminal ``empty`` is said if there are none.

    ``where`` they are is the header of a terminal's table. What goes into a pipe is for programs, and stays the table alone.
    """
    if json:
        print(json_text(list(rows)))
    elif not sys.stdout.isatty():
        print("\n".join(aligned(rows, columns)))
    elif rows:
        if where:
            print(_dim(where))
        _print_table(rows, columns)
    else:
        note(f"{empty} (at {where})" if where else empty)


def aligned(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """A header and the rows, in columns two blanks apart; nothing is cut."""
    heads = [column.field.upper() for column in columns]
    return list(
        untruncated([heads, *([cell(row[column.field], friendly=False) for column in columns] for row in rows)], columns)
    )


def _print_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    beside = [column for column in columns if not column.below]
    below = {column.below: column for column in columns if column.below}
    heads = [column.field for column in beside]
    texts = [[_shown(row, column, below.get(column.field)) for column in beside] for row in rows]
    header, *lines = fitted([heads, *texts], beside, shutil.get_terminal_size().columns, _styled)
    print(_bold(header, True), *lines, sep="\n")


def _shown(row: Row, column: Column, below: Column | None) -> str:
    text = _friendly(row[column.field], column)
    if below is None or row[below.field] in (None, ""):
        return text
    return f"{text}\n→ {_friendly(row[below.field], below)}"


def _friendly(value: Any, column: Column) -> str:
    # a number that is a name, like a process id, is not grouped
    return cell(value, friendly=column.number or not isinstance(value, int))


def print_details(fields: Row, blocks: Mapping[str, str], *, json: bool) -> None:
    """One thing: its fields, then what takes many lines. As JSON the fields alone, which hold everything."""
    if json:
        print(json_text(fields))
        return
    friendly = sys.stdout.isatty()
    shown = {name: _detail(value, friendly) for name, value in fields.items() if name not in blocks and value not in (None, "")}
    width = max(map(len, shown), default=0)
    for name, text in shown.items():
        print(f"{_bold(name.ljust(width), friendly)}  {_styled(text, text) if friendly else text}")
    for title, text in blocks.items():
        print(f"\n{_bold(title, friendly)}\n{block(text).rstrip()}")


def _detail(value: Any, friendly: bool) -> str:
    if isinstance(value, datetime) and friendly:
        return f"{iso(value)} ({ago(value)})"
    return cell(value, friendly=friendly)


def _bold(text: str, friendly: bool) -> str:
    return typer.style(text, bold=True) if friendly and "NO_COLOR" not in os.environ else text


def _dim(text: str) -> str:
    return typer.style(block(text), dim=True) if "NO_COLOR" not in os.environ else block(text)


def _styled(shown: str, text: str) -> str:
    """What is shown of a text, in the colour of that word."""
    return typer.style(shown, fg=STYLES[text]) if text in STYLES and "NO_COLOR" not in os.environ else shown


def note(text: str) -> None:
    """Something for people, beside the output."""
    print(f"millstream: {block(text)}", file=sys.stderr)


def more_than(limit: int, filters: str) -> None:
    """A list is not all there is."""
    note(f"there are more than {limit:,}: --limit N for more, {filters} for fewer")


def say(text: str) -> None:
    """What was done."""
    print(block(text))


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
def progress(doing: str, total: int, *, slow: bool = False) -> Iterator[Advance]:
    """A bar on a terminal, for what may take long: many of something, or something slow."""
    if not sys.stderr.isatty() or (total < MANY and not slow):
        yield lambda count, doing=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda count, doing=None: bar.update(task, advance=count, description=doing)
