"""``millstream doctor``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from millstream.cli.options import Json, Namespace, Url
from millstream.cli.output import print_list, say
from millstream.cli.table import Column
from millstream.cli.text import counted
from millstream.worker import codes

if TYPE_CHECKING:
    from millstream.broker import Finding

COLUMNS = (Column("health"), Column("check"), Column("found", give="wrap"), Column("way_out", below="found"))


def doctor(json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """Check the server and the queues for problems.

    Prints each problem or risk and how to fix it. Changes nothing.

    Exit codes: 0 no check is bad (there may be warnings); 1 a check is bad; 3 the server is unreachable or refuses access.
    """
    from millstream.cli.target import at, where

    findings = at(url, namespace, lambda app: app.inspector.examine())
    print_list([_row(finding) for finding in findings], COLUMNS, json=json, empty="", where=where(url, namespace))
    counts = Counter(finding.health for finding in findings)
    if not json:
        say(f"\n{counts['ok']} ok, {counted(counts['warn'], 'warning')}, {counts['bad']} bad")
    if counts["bad"]:
        raise typer.Exit(codes.FAILED)


def _row(finding: Finding) -> dict[str, Any]:
    return {"check": finding.check, "health": finding.health, "found": finding.found, "way_out": finding.way_out or None}
