"""``millstream enqueue``."""

from __future__ import annotations

import difflib
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millstream.cli.options import App, Factory, Header, Json, Namespace, Url
from millstream.cli.order import given_key
from millstream.cli.output import note, say
from millstream.cli.text import json_text
from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.jobs.job import Job
    from millstream.jobs.task import Task
    from millstream.options import CallOptions

POSITIONS = ""
"""The key of positional arguments in a JSON object of keyword arguments, as ``jobs show`` prints them."""


def enqueue(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of the task.", show_default=False)],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Arguments: an array (positional) or an object (by keyword).")
    ] = "[]",
    app: App = None,
    factory: Factory = False,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", metavar="QUEUE", help='Queue. Default: the task\'s, or "default" without an app.'),
    ] = None,
    delay: Annotated[float | None, typer.Option("--delay", metavar="SECONDS", help="Run the job after this delay.")] = None,
    job_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the job. If a job with this id exists, nothing is sent.")
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option("--expires", metavar="SECONDS", help="The job expires if it has not started within this time."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Maximum duration of an attempt. Default: the task's.")
    ] = None,
    retry: Annotated[
        int | None, typer.Option("--retry", metavar="N", help="Maximum number of retries. Default: the task's.")
    ] = None,
    header: Header = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Ordering key. Only without an app; an app computes the key.")
    ] = None,
    wait: Annotated[
        float | None, typer.Option("--wait", metavar="SECONDS", help="Wait up to this long for the result and print it.")
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Enqueue a job.

    Prints the id of the job, or with --wait its result as JSON. If an app is given, it is imported, the arguments are checked
    against the task's signature, and the task computes the ordering key. Without an app the job is sent unchecked.
    """
    from millstream.cli.target import run

    args, kwargs = _parse(arguments)
    given = {"queue": queue, "delay": delay, "id": job_id, "expires": expires, "timeout": timeout, "retry": retry}
    options: Any = {name: value for name, value in given.items() if value is not None}
    if header:
        options["headers"] = parse_headers(header)
    sender, checked = sender_app(app, factory, url, namespace)
    with sender.override(url) if checked and url is not None else nullcontext():
        if checked and key is not None:
            raise UsageError(f"--key {key} works only without an app: the app computes the ordering keys of its jobs")
        known = _known(sender, task) if checked else None

        async def send(app: Millstream) -> None:
            chosen = known or await _unchecked(app, task, options.pop("queue", "default"), key)
            await _send(chosen, options, args, kwargs, wait, json)

        run(sender, send)


def _parse(arguments: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        value = msgspec.json.decode(arguments)
    except (UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise UsageError(f"the arguments are not JSON: {error}. Write them as '[1, \"a\"]' or '{{\"name\": 1}}'") from None
    if isinstance(value, dict):
        kwargs: dict[str, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
        args = kwargs.pop(POSITIONS, [])
    else:
        args, kwargs = value, {}
    if not isinstance(args, list):
        raise UsageError(f"the arguments must be a JSON array or object, not {arguments}: write one argument as [{arguments}]")
    return args, kwargs  # pyright: ignore[reportUnknownVariableType]


def parse_headers(said: list[str]) -> dict[str, str]:
    """Parse the values of ``--header NAME=VALUE``. Raises UsageError."""
    pairs = [each.partition("=") for each in said]
    for name, mark, _ in pairs:
        if not mark or not name:
            raise UsageError(f"--header {name} must have the form NAME=VALUE")
    return {name: value for name, _, value in pairs}


def sender_app(app: str | None, factory: bool, url: str | None, namespace: str | None) -> tuple[Millstream, bool]:
    """Return the app to send with, and whether it is the user's. If no app is given, create one without tasks."""
    from millstream.app import Millstream
    from millstream.cli.source import load_app
    from millstream.cli.target import check_reach
    from millstream.config import discover_app

    try:
        discover_app(app)
    except UsageError:
        sender, checked = Millstream(url, namespace=namespace), False
    else:
        sender, checked = load_app(app, factory=factory), True
        if namespace not in (None, sender.settings.namespace):
            raise UsageError(f"--namespace {namespace} differs from the app's, {sender.settings.namespace}: omit it")
    if not checked or url is None:
        check_reach(sender)
    return sender, checked


def _known(app: Millstream, task: str) -> Task[..., Any]:
    if task not in app.tasks:
        near = difflib.get_close_matches(task, app.tasks, n=1)
        hint = f"did you mean {near[0]}?" if near else f"its tasks are: {', '.join(app.tasks) or 'none'}"
        raise UsageError(f"the app has no task {task!r}; {hint}")
    return app.tasks[task]


async def _unchecked(app: Millstream, task: str, queue: str, key: str | None) -> Task[..., Any]:
    """Declare a task that accepts any arguments, on the queue with its current number of shards."""

    async def anything(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("this task is only enqueued here, never run")

    if shards := await app.inspector.shards(queue):
        app.queue(queue, shards=shards)

    def order_by(*args: Any, **kwargs: Any) -> bytes:
        return given_key(key or "")

    declared: Task[..., Any] = app.task(name=task, queue=queue, order_by=None if key is None else order_by)(anything)
    return declared


async def _send(
    task: Task[..., Any], options: CallOptions, args: list[Any], kwargs: dict[str, Any], wait: float | None, json: bool
) -> None:
    try:
        job: Job[Any] = await task.options(**options).enqueue(*args, **kwargs)
    except TypeError as error:
        raise UsageError(str(error)) from error
    if not job.created:
        note(f"job {job.id} already exists; nothing was sent")
    if wait is None:
        fields = {"id": job.id, "task": job.task, "queue": job.queue, "created": job.created}
        say(
            json_text(fields)
            if json
            else f"enqueued {job.task} as {job.id} in queue {job.queue}"
            if sys.stdout.isatty()
            else job.id
        )
        return
    if sys.stderr.isatty():
        note(f"enqueued {job.task} as {job.id} in queue {job.queue}; waiting for its result")
    say(json_text(await job.result(timeout=wait)))
