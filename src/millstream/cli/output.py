"""Output of commands: lists, details and progress. Tables on a terminal, aligned plain text in a pipe, JSON with ``--json``."""

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
"""Minimum number of steps for a progress bar. Fewer steps end before anyone could read the bar."""

STYLES = {
    "dead": "red",
    "running": "cyan",
    "scheduled": "yellow",
    "done": "green",
    "ok": "green",
    "warn": "yellow",
    "bad": "red",
}
"""Colours of words that appear in several tables."""


def print_list(rows: Sequence[Row], columns: Sequence[Column], *, json: bool, empty: str, where: str = "") -> None:
    """Print all rows: with ``json`` every field, else the columns. Without rows, a terminal shows ``empty``.

    A terminal also shows ``where``, the server, above the table. Output to a pipe is for programs: the table only.
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
    """Return the lines of a table, header first, in columns two spaces apart, without truncating any text."""
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
    # An integer that identifies something, such as a process id, gets no thousands separators.
    return cell(value, friendly=column.number or not isinstance(value, int))


def print_details(fields: Row, blocks: Mapping[str, str], *, json: bool) -> None:
    """Print one object: its fields, then its multi-line texts. As JSON only the fields, which contain everything."""
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
    """Return ``shown``, a part of a cell's ``text``, in the colour of that text."""
    return typer.style(shown, fg=STYLES[text]) if text in STYLES and "NO_COLOR" not in os.environ else shown


def note(text: str) -> None:
    """Print a message for people to stderr, separate from the output."""
    print(f"millstream: {block(text)}", file=sys.stderr)


def more_than(limit: int, filters: str) -> None:
    """Print that a list is incomplete, and how to get the rest."""
    note(f"only the first {limit:,} are listed: use --limit N to list more, or filter with {filters}")


def say(text: str) -> None:
    """Print a line of output."""
    print(block(text))


def confirm(question: str, yes: bool) -> None:
    """Return if ``yes`` is set or the user confirms. Raises MillstreamError if the user declines, UsageError without a
    terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal for an answer: confirm with --yes")
    if not typer.confirm(question, err=True):
        raise MillstreamError("not confirmed: nothing was changed")


class Advance(Protocol):
    """Reports the number of steps done since the last call and, if it changes, a new description."""

    def __call__(self, count: int, doing: str | None = None) -> None: ...


@contextmanager
def progress(doing: str, total: int, *, slow: bool = False) -> Iterator[Advance]:
    """Show a progress bar on a terminal if there are many steps, or if they are ``slow``."""
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
