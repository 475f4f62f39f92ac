"""The app of the trials about single calls: one of each kind of thing that a client can send to, ask about, or change."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from chaos.app import LEDGER, SETTINGS
from chaos.ledger import RunPen
from millstream import Delivery, Millstream, Reject, current_job

NOTES, NARROW, STRICT, SPREAD = "notes", "narrow", "strict", "spread"
"""Queues: a plain one, one that holds at most one job, one whose keys stop, one with shards."""

NEWS, ORDERS, GROUP, PREFIX = "news", "orders", "readers", "logs."
"""Topics: a plain one, and an ordered one with shards. Then their group, and a prefix that also has this group."""

SHARDS = 2


@cache
def _pen(folder: str) -> RunPen:
    return RunPen(Path(folder))


def _entry(folder: str, key: str, id: str, attempt: int, crashes: int) -> AbstractContextManager[None]:
    """Record a run. A worker in this process, which only prepares state, has no ledger."""
    return _pen(folder).run(key, id, attempt, crashes) if folder else nullcontext()


def _itself(key: str) -> str:
    return key


def make_app(**settings: Any) -> Millstream:
    """Return an app with all queues and topics."""
    app, folder = Millstream(**settings), os.environ.get(LEDGER, "")
    app.queue(NARROW, max_length=1)
    app.queue(SPREAD, shards=SHARDS)

    @app.task(queue=NOTES)
    async def note(key: str) -> str:
        job = current_job()
        with _entry(folder, key, job.id, job.attempt, job.crashes):
            return key

    @app.task(queue=NARROW)
    async def lonely(key: str) -> None: ...

    @app.task(queue=SPREAD, order_by=_itself)
    async def spread(key: str) -> None: ...

    @app.task(queue=STRICT, order_by=_itself, on_failure="stop", retry=0)
    async def strict(key: str) -> None:
        raise Reject(key)

    news = app.topic(NEWS, str, retention_count=100)
    app.topic(ORDERS, str, order_by=_itself, shards=SHARDS)

    @news.subscribe(GROUP)
    async def read(key: str, delivery: Delivery) -> None:
        with _entry(folder, key, delivery.id, delivery.attempt, delivery.crashes):
            if key.startswith("bad"):
                raise Reject(key)

    return app


app = make_app(**json.loads(os.environ.get(SETTINGS, "{}")))
