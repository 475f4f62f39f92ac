"""The options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Where the queues are; else $MILLSTREAM_URL, [tool.millstream] url, embedded://."
    ),
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="Else $MILLSTREAM_NAMESPACE, [tool.millstream] namespace, millstream."),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
App: TypeAlias = Annotated[
    str | None,
    typer.Option("--app", "-A", metavar="APP", help="As module:attribute; else $MILLSTREAM_APP, [tool.millstream] app."),
]
Factory: TypeAlias = Annotated[bool, typer.Option("--factory", help="The app is what this function returns.")]
Header: TypeAlias = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Repeat for more.")]
QueueName: TypeAlias = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)]
InQueue: TypeAlias = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="Only this queue. Default: all.")
]
OfTask: TypeAlias = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only this task.")]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")]
JobId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
JobIds: TypeAlias = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of jobs.", show_default=False)]
