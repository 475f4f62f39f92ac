"""``millstream tasks``: the only list that imports the app."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.options import App, Factory, Json
from millstream.cli.output import print_list
from millstream.cli.table import Column

if TYPE_CHECKING:
    from millstream.jobs.task import Task

COLUMNS = (
    Column("task"),
    Column("queue"),
    Column("kind"),
    Column("retries", number=True),
    Column("timeout", number=True),
    Column("signature", give="wrap"),
)


def list_tasks(
    app: Annotated[str | None, typer.Argument(metavar="APP", help="Same as --app.", show_default=False)] = None,
    app_option: App = None,
    factory: Factory = False,
    json: Json = False,
) -> None:
    """List the tasks of an app.

    Imports the app. Durations are in seconds; a dash means no limit.
    """
    from millstream.cli.source import load_app

    tasks = dict.fromkeys(load_app(app or app_option, factory=factory).tasks.values())
    print_list([_row(task) for task in tasks], COLUMNS, json=json, empty="the app has no tasks")


def _row(task: Task[..., Any]) -> dict[str, Any]:
    settings = task.settings
    return {
        "task": task.name,
        "queue": settings.queue,
        "kind": "async" if task.is_async else "sync",
        "signature": str(inspect.signature(task.fn)),
        "aliases": list(settings.aliases),
        "retries": settings.retry.max_retries,
        "timeout": settings.timeout or None,
        "result_ttl": settings.result_ttl or None,
        "max_crashes": settings.max_crashes,
    }
