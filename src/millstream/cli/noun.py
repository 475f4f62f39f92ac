"""A noun of the command line: its verbs, and the list that it is without one."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class Noun(TyperGroup):
    """Verbs of one thing. Without a verb: ``ls``, with its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["ls", *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The verbs, then the options of the list that the noun is without one."""
        super().format_options(ctx, formatter)
        verb: Any = self.commands["ls"]
        inner = type(ctx)(verb, info_name="ls", parent=ctx)
        records = [record for param in verb.params if (record := param.get_help_record(inner)) is not None]
        with formatter.section("Options without a verb (those of ls)"):
            formatter.write_dl(records)


def noun(name: str, help: str) -> typer.Typer:
    """A noun without verbs yet."""
    return typer.Typer(name=name, help=f"{help} Without a verb: ls.", cls=Noun, add_completion=False, rich_markup_mode=None)
