"""``millstream dead``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from millstream.broker.why import key_text
from millstream.cli.jobs import failure_rows, show
from millstream.cli.noun import noun
from millstream.cli.options import InQueue, JobId, Json, Limit, Namespace, OfTask, Url, Yes
from millstream.cli.order import with_order
from millstream.cli.output import confirm, more_than, print_list, progress, say
from millstream.cli.table import Column
from millstream.cli.text import counted, natural
from millstream.errors import MillstreamError, UsageError
from millstream.model.address import Address
from millstream.model.types import DeadReason

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.broker.explaining import Facts
    from millstream.cli.output import Advance
    from millstream.jobs.dead import DeadJob
    from millstream.model.dead_letter import DeadLetter

COLUMNS = (
    Column("id"),
    Column("task", give="cut"),
    Column("queue"),
    Column("reason"),
    Column("attempts", number=True),
    Column("died_at"),
    Column("error", give="cut"),
)

PAGE = 200
"""Maximum number of dead letters read or moved per call, so that no call blocks the server for long."""

dead = noun("dead", "List, inspect, replay and purge dead letters.")

OfReason = Annotated[
    str | None, typer.Option("--reason", metavar="REASON", help=f"Only with this reason: {', '.join(get_args(DeadReason))}.")
]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of dead letters.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="Select all dead letters.")]


@dataclass(frozen=True)
class Choice:
    """The dead letters that the options select. Raises UsageError if there is neither an id nor a filter nor ``--all``."""

    ids: Sequence[str]
    every: bool
    queue: str | None
    reason: str | None
    task: str | None

    def __post_init__(self) -> None:
        if not (self.ids or self.every or self.queue or self.reason or self.task):
            raise UsageError("no dead letter selected: give ids, a filter (--queue, --reason, --task), or --all")

    async def find(self, app: Millstream) -> dict[Address, list[str]]:
        """Return the ids of the selected dead letters, by queue or shard.

        All are found before the first is moved, because a replayed job may die again. Raises MillstreamError if a given id has
        no dead letter.
        """
        from millstream.cli.target import queues_of

        names = [at for name in await queues_of(app, self.queue) for at in map(Address, await app.inspector.spread(name))]
        if self.ids:
            chosen = {name: await self._given(app, name) for name in names}
        else:
            total = sum([(await app.inspector.queue(name)).dead for name in names])
            with progress("looking", total) as advance:
                chosen = {name: await self._all(app, name, advance) for name in names}
        missing = set(self.ids).difference(*chosen.values())
        if missing:
            raise MillstreamError(f"no dead letter found for {', '.join(sorted(missing, key=natural))}. Nothing was changed")
        return chosen

    async def _given(self, app: Millstream, queue: str) -> list[str]:
        letters = [await app.inspector.dead_letter(queue, job_id) for job_id in dict.fromkeys(self.ids)]
        return [letter.id for letter in letters if letter is not None and self._fits(letter)]

    async def _all(self, app: Millstream, queue: str, advance: Advance) -> list[str]:
        found: list[str] = []
        after = ""
        while page := await app.inspector.dead_letters(queue, after=after, limit=PAGE):
            found += [letter.id for letter in page if self._fits(letter)]
            after = page[-1].cursor
            advance(len(page))
        return found

    def _fits(self, letter: DeadLetter) -> bool:
        return self.reason in (None, letter.reason) and self.task in (None, letter.task)


@dead.command("ls")
def list_dead(
    queue: InQueue = None,
    reason: OfReason = None,
    task: OfTask = None,
    limit: Limit = 100,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """List dead letters, oldest first."""
    from millstream.cli.target import at, queues_of, where

    wanted = _reason(reason)

    async def find(app: Millstream) -> Sequence[DeadJob]:
        await queues_of(app, queue)
        return await app.dead.list(queue=queue, reason=wanted, task=task, limit=limit + 1)

    found = at(url, namespace, find)
    rows = [_row(letter) for letter in found[:limit]]
    columns = with_order(COLUMNS, rows, Column("key", give="cut"), before="reason")
    columns = with_order(columns, rows, Column("unhandled", give="cut"), before="error")
    print_list(rows, columns, json=json, empty="no dead letters found", where=where(url, namespace))
    if len(found) > limit and not json:
        more_than(limit, "--queue, --reason, --task")


@dead.command("show")
def show_dead(job_id: JobId, queue: InQueue = None, json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """Show one dead letter.

    Prints its reason, failed attempts, traceback and arguments.
    """
    from millstream.broker import JobView
    from millstream.cli.target import at, queues_of

    async def look(app: Millstream) -> tuple[JobView, Facts]:
        for name in await queues_of(app, queue):
            if letter := await app.inspector.dead_letter(name, job_id):
                return JobView.of_letter(letter), await app.inspector.facts(name, job_id)
        raise MillstreamError(
            f"job {job_id!r} has no dead letter at {app.where}: to see its status, run millstream jobs show {job_id}"
        )

    show(*at(url, namespace, look), json=json)


@dead.command("replay")
def replay_dead(
    ids: Ids = None,
    every: All = False,
    queue: InQueue = None,
    reason: OfReason = None,
    task: OfTask = None,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Make dead jobs and events ready again.

    They keep their ids and restart at their first attempt. Select them by ids, by a filter, or with --all.
    """
    from millstream.cli.target import at

    choice = Choice(ids or (), every, queue, _reason(reason), task)

    async def replay(app: Millstream) -> int:
        chosen = await choice.find(app)
        return await _move(chosen, "replaying", (await app.broker()).replay)

    count = at(url, namespace, replay)
    say(f"{counted(count, 'dead letter')} replayed")


@dead.command("purge")
def purge_dead(
    ids: Ids = None,
    every: All = False,
    queue: InQueue = None,
    reason: OfReason = None,
    task: OfTask = None,
    yes: Yes = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Delete dead letters permanently. Select them by ids, by a filter, or with --all."""
    from millstream.cli.target import at

    choice = Choice(ids or (), every, queue, _reason(reason), task)

    async def purge(app: Millstream) -> int:
        chosen = await choice.find(app)
        total = sum(map(len, chosen.values()))
        if total:
            confirm(f"Delete {counted(total, 'dead letter')} permanently?", yes)
        return await _move(chosen, "deleting", (await app.broker()).purge)

    count = at(url, namespace, purge)
    say(f"{counted(count, 'dead letter')} deleted")


async def _move(
    chosen: dict[Address, list[str]], doing: str, verb: Callable[[Address, Sequence[str]], Awaitable[list[str]]]
) -> int:
    """Apply ``verb`` to the selected dead letters, page by page. Return how many it moved."""
    moved = 0
    with progress(doing, sum(map(len, chosen.values()))) as advance:
        for queue, ids in chosen.items():
            for start in range(0, len(ids), PAGE):
                page = ids[start : start + PAGE]
                moved += len(await verb(queue, page))
                advance(len(page))
    return moved


def _reason(reason: str | None) -> DeadReason | None:
    if reason is not None and reason not in get_args(DeadReason):
        raise UsageError(f"--reason {reason} is unknown; the reasons are {', '.join(get_args(DeadReason))}")
    return cast(DeadReason | None, reason)


def _row(letter: DeadJob) -> dict[str, Any]:
    unhandled = letter.unhandled
    return {
        "id": letter.id,
        "task": letter.task,
        "queue": letter.queue,
        "group": Address(letter.queue).group or None,
        "reason": letter.reason,
        "error": f"{letter.error_type}: {letter.error}",
        "traceback": letter.traceback,
        "attempts": letter.attempts,
        "crashes": letter.crashes,
        "died_at": letter.died_at,
        "key": None if letter.order_key is None else key_text(letter.order_key),
        "failures": failure_rows(letter.failures),
        "unhandled": None if unhandled is None else f"{unhandled.error_type}: {unhandled.error}",
    }
