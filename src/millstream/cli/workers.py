"""``millstream workers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.noun import noun
from millstream.cli.options import Json, Namespace, Url
from millstream.cli.output import note, print_list, say
from millstream.cli.table import Column
from millstream.cli.text import moment
from millstream.errors import UsageError
from millstream.worker.scaling.requests import HOLD_SECONDS
from millstream.worker.scaling.spec import DEFAULT, parse_spec

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.broker import WorkerInfo

COLUMNS = (
    Column("id"),
    Column("host"),
    Column("pid"),
    Column("version"),
    Column("processes", number=True),
    Column("of"),
    Column("started_at"),
    Column("running"),
    Column("done", number=True),
    Column("retried", number=True),
    Column("dead", number=True),
    Column("queues", give="wrap"),
)

WANTED = (
    Column("address"),
    Column("wanted", number=True),
    Column("processes", number=True),
    Column("ready", number=True),
    Column("due", number=True),
    Column("running", number=True),
    Column("rate", number=True),
    Column("throughput", number=True),
    Column("paused"),
)

workers = noun("workers", "List workers and set their number of processes.")


@workers.command("ls")
def list_workers(json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """List running workers.

    Each supervisor is followed by its worker processes; worker processes without a supervisor come last. A worker that stops
    reporting disappears from the list after a few seconds.
    """
    from millstream.cli.target import at, where

    found = at(url, namespace, _found)
    empty = "no worker is running; start one with: millstream worker module:app"
    print_list([_row(worker) for worker in found], COLUMNS, json=json, empty=empty, where=where(url, namespace))


@workers.command("scale")
def scale_worker(
    processes: Annotated[
        str,
        typer.Argument(metavar="[WORKER] N", help="The worker's id or the start of its id, then the number of processes."),
    ],
    number: Annotated[str | None, typer.Argument(hidden=True)] = None,
    hold: Annotated[
        float,
        typer.Option("--hold", min=0, metavar="SECONDS", help="Time during which the strategy does not change this number."),
    ] = HOLD_SECONDS,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Set the number of processes of a worker, within its MIN..MAX.

    WORKER may be omitted if only one worker is running. A busy process is not stopped until it is idle.
    """
    from millstream.cli.target import at

    worker, wanted = (None, processes) if number is None else (processes, number)
    if not wanted.isdecimal() or len(wanted) > 9:
        raise UsageError(f"the number of processes must be an integer, not {wanted!r:.50}")
    say(at(url, namespace, lambda app: app.scale(int(wanted), worker=worker, hold=hold)))


@workers.command("wanted")
def wanted_processes(
    strategy: Annotated[
        str, typer.Option("--strategy", metavar="NAME[,KEY=N]", help="Scaling strategy, for example backlog,target=5.")
    ] = DEFAULT,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Number of jobs that one process runs at the same time.")
    ] = 32,
    window: Annotated[float, typer.Option("--window", min=0, metavar="SECONDS", help="Time for measuring rates.")] = 2.0,
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="HOST:PORT", help="Keep running and serve the numbers over HTTP: / and /metrics."),
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Print how many worker processes each queue and group needs.

    For external autoscalers such as KEDA or an HPA. No worker has to be running.
    """
    from millstream.cli.target import at, where
    from millstream.worker.scaling.http import serve_wanted
    from millstream.worker.scaling.wanted import Forecast, wanted

    spec = parse_spec(strategy)
    if spec.own:
        raise UsageError(f"strategy {strategy!r} belongs to an app, and this command loads no app: use backlog or threshold")
    if serve is not None:
        host, _, port = serve.rpartition(":")
        if not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
            raise UsageError(f"--serve must be HOST:PORT, not {serve!r}")

        async def answer(app: Millstream) -> None:
            forecast = Forecast(app.inspector, spec.strategy(), concurrency=concurrency)
            await serve_wanted(forecast, host.strip("[]") or "0.0.0.0", int(port), note)

        at(url, namespace, answer)
        return
    found = at(url, namespace, lambda app: wanted(app.inspector, spec.strategy(), concurrency=concurrency, window=window))
    rows = [{field: getattr(each, field) for field in each.__struct_fields__} for each in found]
    print_list(rows, WANTED, json=json, empty="there are no queues yet", where=where(url, namespace))


async def _found(app: Millstream) -> list[WorkerInfo]:
    processes = await app.inspector.workers()
    supervisors = await app.inspector.supervisors()
    known = {supervisor.id for supervisor in supervisors}
    found: list[WorkerInfo] = []
    for supervisor in supervisors:
        found += [supervisor, *(process for process in processes if process.supervisor == supervisor.id)]
    return [*found, *(process for process in processes if process.supervisor not in known)]


def _row(worker: WorkerInfo) -> dict[str, Any]:
    team = worker.team
    fixed = team is None or team.minimum == team.maximum
    return {
        "id": worker.id,
        "supervisor": worker.supervisor or None,
        "processes": None if team is None else team.processes,
        "of": None if team is None or fixed else f"{team.minimum}..{team.maximum}",
        "minimum": None if team is None else team.minimum,
        "maximum": None if team is None else team.maximum,
        "strategy": None if team is None else team.strategy or None,
        "decisions": None if team is None else team.decisions,
        "last_decision": None if team is None else team.last or None,
        "by_hand_until": None if team is None or not team.by_hand_until else moment(team.by_hand_until),
        "rates": None if team is None else team.rates,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "queues": worker.queues,
        "started_at": moment(worker.started),
        "running": f"{sum(worker.running)}/{sum(worker.slots)}" if sum(worker.slots) else None,
        "coroutines": {"running": worker.running[0], "slots": worker.slots[0]} if sum(worker.slots) else None,
        "threads": {"running": worker.running[1], "slots": worker.slots[1]} if sum(worker.slots) else None,
        "full": worker.full or None,
        "tasks": None if worker.tasks is None else sorted(worker.tasks),
        **{total: worker.totals.get(total, 0) for total in ("done", "retried", "dead", "refused")},
    }
