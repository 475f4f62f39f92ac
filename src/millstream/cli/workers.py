"""``millstream workers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.cli.noun import noun
from millstream.cli.options import Json, Namespace, Url
from millstream.cli.output import print_list
from millstream.cli.table import Column
from millstream.cli.text import moment

if TYPE_CHECKING:
    from millstream.broker import WorkerInfo

COLUMNS = (
    Column("id"),
    Column("host"),
    Column("pid"),
    Column("version"),
    Column("started_at"),
    Column("done", number=True),
    Column("retried", number=True),
    Column("dead", number=True),
    Column("queues", give="wrap"),
)

workers = noun("workers", "Worker processes that serve queues now.")


@workers.command("ls")
def list_workers(json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """List the worker processes that were heard of in the last seconds."""
    from millstream.cli.target import at

    found = at(url, namespace, lambda app: app.inspector.workers())
    empty = "no worker is registered; start one: millstream worker module:app"
    print_list([_row(worker) for worker in found], COLUMNS, json=json, empty=empty)


def _row(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "queues": worker.queues,
        "started_at": moment(worker.started),
        **{total: worker.totals.get(total, 0) for total in ("done", "retried", "dead", "refused")},
    }
