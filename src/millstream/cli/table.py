"""Tables. In a pipe, columns are as wide as their texts; on a terminal, they are fitted to its width."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

GAP = "  "

LEAST_WIDTH = {"wrap": 20, "cut": 10}
"""Minimum width in characters of a column that may shrink, by how it shrinks."""


@dataclass(frozen=True)
class Column:
    """One field of the rows in a table."""

    field: str
    number: bool = False
    """Right-aligned."""
    give: Literal["", "wrap", "cut"] = ""
    """How the column shrinks on a narrow terminal: by wrapping or by cutting its text. Other columns never shrink."""
    below: str = ""
    """On a terminal, show this field below the text of the named column instead of in a column of its own."""


def untruncated(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> Iterator[str]:
    """Yield the lines of a table without truncating any text."""
    widths = _natural(rows, columns)
    for row in rows:
        yield _line([_pad(text, width, column) for text, width, column in zip(row, widths, columns, strict=True)])


def fitted(
    rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int, style: Callable[[str, str], str]
) -> Iterator[str]:
    """Yield the lines of a table fitted to ``width`` characters. It is wider if the columns that may shrink cannot shrink
    enough: an id is never cut.

    ``style`` receives a line of a cell and the whole text of that cell. It is not applied to the first row, the header.
    """
    widths = _fit(_natural(rows, columns), columns, width)
    for place, row in enumerate(rows):
        cells = [_lines(text, width, column) for text, width, column in zip(row, widths, columns, strict=True)]
        for lines in zip_longest(*cells, fillvalue=""):
            padded = [_pad(line, width, column) for line, width, column in zip(lines, widths, columns, strict=True)]
            yield _line([style(line, text) for line, text in zip(padded, row, strict=True)] if place else padded)


def _natural(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[int]:
    """Return the width of the longest text of each column."""
    return [max(_width(row[i]) for row in rows) for i in range(len(columns))]


def _fit(natural: Sequence[int], columns: Sequence[Column], width: int) -> list[int]:
    """Return the widths of the columns. Columns that may shrink start at their minimum and share the remaining width.
    Columns that need the least extra width get it first."""
    widths = [min(LEAST_WIDTH.get(column.give, longest), longest) for longest, column in zip(natural, columns, strict=True)]
    left = max(0, width - len(GAP) * (len(columns) - 1) - sum(widths))
    lacking = sorted((i for i in range(len(columns)) if widths[i] < natural[i]), key=lambda i: natural[i] - widths[i])
    for place, i in enumerate(lacking):
        more = min(natural[i] - widths[i], left // (len(lacking) - place))
        widths[i] += more
        left -= more
    return widths


def _lines(text: str, width: int, column: Column) -> list[str]:
    """Return the lines of one cell."""
    if column.give == "cut" and _width(text) > width:
        return [f"{text[: width - 1]}…"]
    return [line for part in text.split("\n") for line in (textwrap.wrap(part, width) if _width(part) > width else [part])]


def _pad(text: str, width: int, column: Column) -> str:
    blanks = " " * (width - _width(text))
    return blanks + text if column.number else text + blanks


def _line(cells: Sequence[str]) -> str:
    return GAP.join(cells).rstrip()


def _width(text: str) -> int:
    """Return how many terminal columns a text takes."""
    if "\n" in text:
        return max(map(_width, text.split("\n")))
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
