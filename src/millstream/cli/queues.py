"""``millstream queues``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from millstream.cli.noun import noun
from millstream.cli.options import Json, Namespace, QueueName, Url, Yes
from millstream.cli.order import (
    BLOCKED,
    SHARDS,
    STOPPED,
    KeyText,
    Number,
    Replay,
    clear,
    cleared,
    print_stopped,
    reshard,
    stopped_rows,
    with_order,
)
from millstream.cli.output import confirm, note, print_details, print_list, progress, say
from millstream.cli.table import Column
from millstream.cli.text import counted, moment
from millstream.model.address import Address

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.broker import Broker, Listed
    from millstream.cli.output import Advance

COLUMNS = (
    Column("queue"),
    Column("ready", number=True),
    Column("running", number=True),
    Column("scheduled", number=True),
    Column("dead", number=True),
    Column("paused"),
    Column("workers", number=True),
)

_OF_ORDER = ("shards", "blocked", "stopped")

AT_ONCE = 50
"""Number of queues queried at the same time."""

PAGE = 1000
"""Jobs listed per call."""

CANCELLED_AT_ONCE = 100
"""Jobs cancelled per call."""

queues = noun("queues", "List, inspect, pause, purge and reshard queues.")


@queues.command("ls")
def list_queues(json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """List queues with their counts."""
    from millstream.cli.target import at, where

    rows = at(url, namespace, _rows)
    columns = with_order(COLUMNS, rows, SHARDS, BLOCKED, STOPPED, before="dead")
    print_list(rows, columns, json=json, empty="there are no queues yet", where=where(url, namespace))


@queues.command("show")
def show_queue(queue: QueueName, json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """Show one queue.

    Prints its counts, workers, next job, totals and stopped keys.
    """
    from millstream.cli.target import at

    details = at(url, namespace, lambda app: _details(app, queue))
    if json:
        print_details(details, {}, json=True)
        return
    stopped = details.pop("stopped_keys")
    print_details({name: value for name, value in details.items() if value or name not in _OF_ORDER}, {}, json=False)
    print_stopped(stopped)


@queues.command("clear")
def clear_key(queue: QueueName, key: KeyText, replay: Replay = True, url: Url = None, namespace: Namespace = None) -> None:
    """Resume a stopped ordering key of a queue."""
    from millstream.cli.target import at, queues_of

    what = f"queue {queue}"

    async def clear_it(app: Millstream) -> int:
        return await clear(app, await queues_of(app, queue), what, key, replay)

    cleared(what, key, at(url, namespace, clear_it), replay)


@queues.command("reshard")
def reshard_queue(queue: QueueName, shards: Number, yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Change the number of shards of a queue.

    The queue must have no ready, running, scheduled or blocked job, no stopped key, and no dead letter in a shard that is
    removed. Afterwards every app must declare the new number; apps that declare another are refused.
    """
    from millstream.cli.target import at, queues_of

    async def change(app: Millstream) -> None:
        await queues_of(app, queue)
        await reshard(app, Address(queue), app.queue(queue), shards, yes)

    at(url, namespace, change)
    say(f"queue {queue} has {counted(shards, 'shard') if shards else 'no shards'}")


@queues.command("pause")
def pause_queue(queue: QueueName, url: Url = None, namespace: Namespace = None) -> None:
    """Pause a queue: no further job starts. Running jobs finish, and enqueueing continues."""
    from millstream.cli.target import at, queues_of

    async def pause(app: Millstream) -> None:
        await queues_of(app, queue)
        await app.queue(queue).pause()

    at(url, namespace, pause)
    say(f"queue {queue} is paused")


@queues.command("resume")
def resume_queue(queue: QueueName, url: Url = None, namespace: Namespace = None) -> None:
    """Resume a paused queue."""
    from millstream.cli.target import at, queues_of

    async def resume(app: Millstream) -> None:
        await queues_of(app, queue)
        await app.queue(queue).resume()

    at(url, namespace, resume)
    say(f"queue {queue} is resumed")


@queues.command("purge")
def purge_queue(queue: QueueName, yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Cancel every ready, scheduled and blocked job of a queue.

    Running jobs finish. Dead letters stay; to delete them use millstream dead purge. The status of the cancelled jobs is kept
    for ten minutes.
    """
    from millstream.cli.target import at

    count = at(url, namespace, lambda app: _purge(app, queue, yes))
    say(f"{counted(count, 'job')} of queue {queue} cancelled")


async def _rows(app: Millstream) -> list[dict[str, Any]]:
    names = await app.inspector.queues()
    served = [queue for worker in await app.inspector.workers() for queue in {Address(name).base for name in worker.queues}]
    rows: list[dict[str, Any]] = []
    for start in range(0, len(names), AT_ONCE):
        for state in await asyncio.gather(*map(app.inspector.queue, names[start : start + AT_ONCE])):
            row = {column.field: getattr(state, column.field) for column in COLUMNS[:-1]}
            order = {field: getattr(state, field) for field in _OF_ORDER}
            rows.append({**row, "workers": served.count(Address(state.queue)), **order})
    return rows


async def _details(app: Millstream, queue: str) -> dict[str, Any]:
    from millstream.cli.target import queues_of

    await queues_of(app, queue)
    inspector = app.inspector
    state = await inspector.queue(queue)
    workers = [
        worker.id for worker in await inspector.workers() if Address(queue) in (Address(name).base for name in worker.queues)
    ]
    ready = [view.message for view in await inspector.jobs(queue, "ready", limit=1)]
    scheduled = await inspector.jobs(queue, "scheduled", limit=1)
    return {
        **{column.field: getattr(state, column.field) for column in COLUMNS[:-1]},
        "workers": workers,
        **{field: getattr(state, field) for field in _OF_ORDER},
        "next_ready_since": moment(ready[0].enqueued_ms / 1000) if ready and ready[0] else None,
        "next_due_at": moment(scheduled[0].due_at) if scheduled else None,
        "totals": state.totals,
        "stopped_keys": await stopped_rows(app, [Address(queue)]),
    }


async def _purge(app: Millstream, queue: str, yes: bool) -> int:
    from millstream.cli.target import queues_of

    await queues_of(app, queue)
    state = await app.inspector.queue(queue)
    waiting = state.ready + state.scheduled + state.blocked
    if not waiting:
        return 0
    blocked = f", {state.blocked:,} blocked" if state.blocked else ""
    confirm(f"Cancel {state.ready:,} ready{blocked} and {state.scheduled:,} scheduled jobs of queue {queue}?", yes)
    broker = await app.broker()
    cancelled = strange = 0
    with progress(f"purging {queue}", waiting) as advance:
        for address in map(Address, await app.inspector.spread(queue)):
            done, left = await _purge_at(broker, address, advance)
            cancelled += done
            strange += left
    if strange:
        entries = "1 entry is not a Millstream job and was" if strange == 1 else f"{strange:,} entries are not jobs and were"
        note(f"{entries} not cancelled; a worker turns such entries into dead letters (reason malformed)")
    return cancelled


async def _purge_at(broker: Broker, queue: Address, advance: Advance) -> tuple[int, int]:
    """Purge a queue or one of its shards. Return how many jobs were cancelled and how many entries were not jobs."""
    cancelled = strange = 0
    states: tuple[Listed, ...] = ("blocked", "scheduled", "ready")  # blocked first: they become ready when others end
    for status in states:
        # Cancel only as many jobs as exist now. Otherwise a busy producer would keep this loop running without end.
        left: int = getattr(await broker.inspector.queue(queue), status)
        after = ""
        while left > 0 and (page := await broker.inspector.jobs(queue, status, after=after, limit=min(PAGE, left))):
            ids = [view.id for view in page if view.id]
            cancelled += await _cancel(broker, queue, ids)
            strange += len(page) - len(ids)
            left -= len(page)
            after = page[-1].cursor
            advance(len(page))
    return cancelled, strange


async def _cancel(broker: Broker, queue: Address, ids: list[str]) -> int:
    """Cancel jobs in several short concurrent calls, so that other callers of the server do not wait for one long call."""
    from millstream.broker import Cancellation

    chunks = [ids[start : start + CANCELLED_AT_ONCE] for start in range(0, len(ids), CANCELLED_AT_ONCE)]
    answers = await asyncio.gather(*(broker.cancel_many(queue, chunk) for chunk in chunks))
    return sum(answer.count(Cancellation.CANCELLED) for answer in answers)
