"""``millstream queues``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from millstream.cli.noun import noun
from millstream.cli.options import Json, Namespace, QueueName, Url, Yes
from millstream.cli.output import confirm, note, print_details, print_list, progress, say
from millstream.cli.table import Column
from millstream.cli.text import moment

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.broker import Broker, Listed

COLUMNS = (
    Column("queue"),
    Column("ready", number=True),
    Column("running", number=True),
    Column("scheduled", number=True),
    Column("dead", number=True),
    Column("paused"),
    Column("workers", number=True),
)

AT_ONCE = 50
"""Queues asked about at a time."""

PAGE = 200
"""Jobs cancelled at a time."""

queues = noun("queues", "Queues: what waits, runs and died in them.")


@queues.command("ls")
def list_queues(json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """List every queue with its numbers."""
    from millstream.cli.target import at

    rows = at(url, namespace, _rows)
    print_list(rows, COLUMNS, json=json, empty="there are no queues yet")


@queues.command("show")
def show_queue(queue: QueueName, json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """Show one queue: numbers, workers, what is next, totals."""
    from millstream.cli.target import at

    print_details(at(url, namespace, lambda app: _details(app, queue)), {}, json=json)


@queues.command("pause")
def pause_queue(queue: QueueName, url: Url = None, namespace: Namespace = None) -> None:
    """Start no job of a queue until it is resumed. What runs goes on; enqueueing too."""
    from millstream.cli.target import at, queues_of

    async def pause(app: Millstream) -> None:
        await queues_of(app, queue)
        await (await app.broker()).pause(queue)

    at(url, namespace, pause)
    say(f"queue {queue} is paused")


@queues.command("resume")
def resume_queue(queue: QueueName, url: Url = None, namespace: Namespace = None) -> None:
    """Undo pause."""
    from millstream.cli.target import at, queues_of

    async def resume(app: Millstream) -> None:
        await queues_of(app, queue)
        await (await app.broker()).resume(queue)

    at(url, namespace, resume)
    say(f"queue {queue} is resumed")


@queues.command("purge")
def purge_queue(queue: QueueName, yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Cancel every ready and scheduled job of a queue.

    What runs goes on, and dead letters stay: for those there is millstream dead purge. How they ended, cancelled, is kept for
    ten minutes.
    """
    from millstream.cli.target import at

    count = at(url, namespace, lambda app: _purge(app, queue, yes))
    say(f"{count} job{'' if count == 1 else 's'} of queue {queue} cancelled")


async def _rows(app: Millstream) -> list[dict[str, Any]]:
    names = await app.inspector.queues()
    served = [queue for worker in await app.inspector.workers() for queue in worker.queues]
    rows: list[dict[str, Any]] = []
    for start in range(0, len(names), AT_ONCE):
        for state in await asyncio.gather(*map(app.inspector.queue, names[start : start + AT_ONCE])):
            row = {column.field: getattr(state, column.field) for column in COLUMNS[:-1]}
            rows.append({**row, "workers": served.count(state.queue)})
    return rows


async def _details(app: Millstream, queue: str) -> dict[str, Any]:
    from millstream.cli.target import queues_of

    await queues_of(app, queue)
    inspector = app.inspector
    state = await inspector.queue(queue)
    workers = [worker.id for worker in await inspector.workers() if queue in worker.queues]
    ready = [view.message for view in await inspector.jobs(queue, "ready", limit=1)]
    scheduled = await inspector.jobs(queue, "scheduled", limit=1)
    return {
        **{column.field: getattr(state, column.field) for column in COLUMNS[:-1]},
        "workers": workers,
        "next_ready_since": moment(ready[0].enqueued_ms / 1000) if ready and ready[0] else None,
        "next_due_at": moment(scheduled[0].due_at) if scheduled else None,
        "totals": state.totals,
    }


async def _purge(app: Millstream, queue: str, yes: bool) -> int:
    from millstream.cli.target import queues_of

    await queues_of(app, queue)
    state = await app.inspector.queue(queue)
    waiting = state.ready + state.scheduled
    if not waiting:
        return 0
    confirm(f"Cancel {state.ready:,} ready and {state.scheduled:,} scheduled jobs of queue {queue}?", yes)
    broker = await app.broker()
    cancelled = strange = 0
    states: tuple[Listed, ...] = ("scheduled", "ready")
    with progress(f"purging {queue}", waiting) as advance:
        for status in states:
            # Only so many as there are now: what producers add meanwhile would keep us here for ever.
            left: int = getattr(await broker.inspector.queue(queue), status)
            after = ""
            while left > 0 and (page := await broker.inspector.jobs(queue, status, after=after, limit=min(PAGE, left))):
                ids = [view.id for view in page if view.id]
                cancelled += await _cancel(broker, queue, ids)
                strange += len(page) - len(ids)
                left -= len(page)
                after = page[-1].cursor
                advance(len(page))
    if strange:
        note(f"{strange} entries that are no jobs of ours were left; a worker makes them dead letters (malformed)")
    return cancelled


async def _cancel(broker: Broker, queue: str, ids: list[str]) -> int:
    """Cancel jobs, all in flight together: each is one short call, so that nobody else waits for the whole."""
    from millstream.broker import Cancellation

    answers = await asyncio.gather(*(broker.cancel(queue, job_id) for job_id in ids))
    return answers.count(Cancellation.CANCELLED)
