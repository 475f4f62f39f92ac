"""A command group such as ``millstream queues``. Without a subcommand it runs ``ls``."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class Noun(TyperGroup):
    """The subcommands for one kind of object. Without a subcommand, ``ls`` runs with the given options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["ls", *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the subcommands, then the options of ``ls``, which also work without a subcommand."""
        super().format_options(ctx, formatter)
        verb: Any = self.commands["ls"]
        inner = type(ctx)(verb, info_name="ls", parent=ctx)
        records = [record for param in verb.params if (record := param.get_help_record(inner)) is not None]
        with formatter.section("Options of ls, the default command"):
            formatter.write_dl(records)


def noun(name: str, help: str) -> typer.Typer:
    """Return a command group without subcommands."""
    return typer.Typer(
        name=name, help=f"{help} The default command is ls.", cls=Noun, add_completion=False, rich_markup_mode=None
    )
