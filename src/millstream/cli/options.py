"""Options and arguments shared by several commands."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Server URL. Default: $MILLSTREAM_URL, then url in [tool.millstream], then embedded://.",
    ),
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="Namespace. Default: $MILLSTREAM_NAMESPACE, then namespace in [tool.millstream], then millstream.",
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
App: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--app",
        "-A",
        metavar="APP",
        help="The app, as module:attribute. Default: $MILLSTREAM_APP, then app in [tool.millstream].",
    ),
]
Factory: TypeAlias = Annotated[bool, typer.Option("--factory", help="The given app is a function that returns the app.")]
Header: TypeAlias = Annotated[
    list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Add a header. Repeat for several.")
]
QueueName: TypeAlias = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)]
InQueue: TypeAlias = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="Only this queue or topic/group. Default: all.")
]
OfTask: TypeAlias = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only this task.")]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="List at most N.")]
JobId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.", show_default=False)]
JobIds: TypeAlias = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of jobs.", show_default=False)]
