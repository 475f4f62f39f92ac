"""``millstream doctor``."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millstream.cli.options import Json, Namespace, Url
from millstream.cli.output import print_list, say
from millstream.cli.table import Column
from millstream.cli.text import counted
from millstream.errors import UsageError
from millstream.worker import codes

if TYPE_CHECKING:
    from millstream.broker import Finding

COLUMNS = (Column("health"), Column("check"), Column("found", give="wrap"), Column("way_out", below="found"))


def doctor(
    acl: Annotated[
        str | None,
        typer.Option("--acl", metavar="USER", help="Only print the ACL command that gives this user the least rights."),
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Check the server and the queues for problems.

    Prints each problem or risk and how to fix it. Changes nothing. With --acl, it prints a command for the operator of the
    server instead, and makes no connection.

    Exit codes: 0 no check is bad (there may be warnings); 1 a check is bad; 3 the server is unreachable or refuses access.
    """
    if acl is not None:
        _print_acl(acl, json, url, namespace)
        return
    from millstream.cli.target import at, where

    findings = at(url, namespace, lambda app: app.inspector.examine())
    print_list([_row(finding) for finding in findings], COLUMNS, json=json, empty="", where=where(url, namespace))
    counts = Counter(finding.health for finding in findings)
    if not json:
        say(f"\n{counts['ok']} ok, {counted(counts['warn'], 'warning')}, {counts['bad']} bad")
    if counts["bad"]:
        raise typer.Exit(codes.FAILED)


def _print_acl(user: str, json: bool, url: str | None, namespace: str | None) -> None:
    from millstream.backends.redis.rights import acl
    from millstream.config import discover_namespace, discover_url
    from millstream.url import parse_url

    if not re.fullmatch(r"[^\s]+", user):
        raise UsageError(f"--acl takes the name of a user without blanks, not {user!r}")
    command = acl(parse_url(discover_url(url)), discover_namespace(namespace), user)
    say(msgspec.json.encode({"acl": command}).decode() if json else command)


def _row(finding: Finding) -> dict[str, Any]:
    return {"check": finding.check, "health": finding.health, "found": finding.found, "way_out": finding.way_out or None}
