"""The app of the busy-survivors trial: one queue or group of each kind that has a limit (a lane), with long handlers."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from chaos.app import LEDGER, SETTINGS
from chaos.ledger import RunPen
from millstream import Batch, Delivery, Millstream, current_job
from millstream.model.address import Address

QUEUE, TASK = Address("long"), "long"

GROUP = "busy"

LIMITED, BATCHED, MANUAL, CONSUMED = "limited", "batched", "manual", "consumed"
"""Topics, each with one group that handles one event, or one batch, at a time."""

HURRY = "hurry"
"""A file in the ledger's folder. Once it exists, handlers end immediately."""

BATCH = Batch(2, wait=0.1)

LANES = {
    "a queue, at the worker's `concurrency`": QUEUE,
    "a group, at its `concurrency`": Address.of_group(LIMITED, GROUP),
    "a group with `batch`": Address.of_group(BATCHED, GROUP),
    'a group with `ack="manual"`': Address.of_group(MANUAL, GROUP),
    "`topic.consume`": Address.of_group(CONSUMED, GROUP),
}
"""The address of each kind of lane."""

POLL_SECONDS = 0.05


@cache
def pen(folder: str) -> RunPen:
    return RunPen(Path(folder))


async def work(folder: str, keys: list[str], seconds: float, ids: list[str], crashes: int) -> None:
    """Take ``seconds``, or end immediately if this is a second run, which only has to begin."""
    with ExitStack() as stack:
        for key, id in zip(keys, ids, strict=True):
            stack.enter_context(pen(folder).run(key, id, 1, crashes))
        until = time.monotonic() + (0.0 if crashes else seconds)
        while time.monotonic() < until and not (Path(folder) / HURRY).exists():
            await asyncio.sleep(POLL_SECONDS)


def make_app(**settings: Any) -> Millstream:
    """Return an app with all lanes."""
    app, folder = Millstream(**settings), os.environ.get(LEDGER, "")

    @app.task(name=TASK, queue=QUEUE)
    async def long(key: str, seconds: float) -> None:
        job = current_job()
        await work(folder, [key], seconds, [job.id], job.crashes)

    limited, batched, manual, consumed = (app.topic(name, tuple[str, float]) for name in (LIMITED, BATCHED, MANUAL, CONSUMED))

    @limited.subscribe(GROUP, concurrency=1)
    async def handle_one(event: tuple[str, float], delivery: Delivery) -> None:
        await work(folder, [event[0]], event[1], [delivery.id], delivery.crashes)

    @batched.subscribe(GROUP, batch=BATCH, concurrency=1)
    async def handle_batch(events: list[tuple[str, float]], deliveries: list[Delivery]) -> None:
        keys, ids = [key for key, _ in events], [delivery.id for delivery in deliveries]
        await work(folder, keys, events[0][1], ids, deliveries[0].crashes)

    @manual.subscribe(GROUP, ack="manual", concurrency=1)
    async def handle_by_hand(event: tuple[str, float], delivery: Delivery) -> None:
        await work(folder, [event[0]], event[1], [delivery.id], delivery.crashes)
        delivery.ack()

    @consumed.subscribe(GROUP, concurrency=1)
    async def handle_consumed(event: tuple[str, float], delivery: Delivery) -> None:
        await work(folder, [event[0]], event[1], [delivery.id], delivery.crashes)

    return app


app = make_app(**json.loads(os.environ.get(SETTINGS, "{}")))
