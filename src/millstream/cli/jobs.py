"""``millstream jobs``."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.broker.why import key_text
from millstream.cli.noun import noun
from millstream.cli.options import InQueue, JobId, JobIds, Json, Limit, Namespace, OfTask, Url, Yes
from millstream.cli.output import confirm, more_than, print_details, print_list, progress, say
from millstream.cli.table import Column
from millstream.cli.text import counted, iso, json_text, moment, natural, unpacked
from millstream.errors import BrokerError, JobNotFound, MillstreamError, UsageError
from millstream.model.address import Address
from millstream.reporting.printable import line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from millstream.app import Millstream
    from millstream.broker import Broker, JobView, Listed
    from millstream.broker.explaining import Facts
    from millstream.model.dead_letter import DeadLetter
    from millstream.model.message import Attempt

ENDED = ("done", "dead", "cancelled", "expired")

STATES: tuple[Listed, ...] = ("running", "ready", "blocked", "scheduled", "dead")
"""The states that can be listed, in the order of the list."""

COLUMNS = (
    Column("id"),
    Column("task", give="cut"),
    Column("queue"),
    Column("status"),
    Column("attempt", number=True),
    Column("enqueued_at"),
)

PAGE = 200
"""Maximum number of jobs read per call, so that no call blocks the server for long."""

jobs = noun("jobs", "List, inspect, cancel and retry jobs.")


@jobs.command("ls")
def list_jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", "-s", metavar="STATE", help=f"Only this state: {', '.join(STATES)}. Repeat for several. Default: all."
        ),
    ] = None,
    queue: InQueue = None,
    task: OfTask = None,
    limit: Limit = 100,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """List jobs.

    The order is: running jobs; ready jobs, next to be claimed first; blocked jobs, which wait behind another job of their
    ordering key; scheduled jobs by due time; dead jobs, oldest first.
    """
    from millstream.cli.target import at, where

    for each in state or ():
        if each not in STATES:
            raise UsageError(f"--state {each} cannot be listed; the states are {', '.join(STATES)}")
    states: list[Listed] = [each for each in STATES if not state or each in state]
    found = at(url, namespace, lambda app: _find(app, states, queue, task, limit + 1))
    rows = [_row(view) for view in _sorted(found[:limit])]
    print_list(rows, COLUMNS, json=json, empty="no jobs found", where=where(url, namespace))
    if len(found) > limit and not json:
        more_than(limit, "--state, --queue, --task")


@jobs.command("show")
def show_job(job_id: JobId, queue: InQueue = None, json: Json = False, url: Url = None, namespace: Namespace = None) -> None:
    """Show everything about a job.

    Prints its arguments, its state, why it is not running, its worker, its failed attempts, and how it ended.
    """
    from millstream.cli.target import at

    async def look(app: Millstream) -> tuple[JobView, Facts]:
        view = await _one(app, job_id, queue)
        facts = await app.inspector.facts(view.queue, job_id)
        return facts.view or view, facts

    show(*at(url, namespace, look), json=json)


@jobs.command("cancel")
def cancel_jobs(ids: JobIds, queue: InQueue = None, yes: Yes = False, url: Url = None, namespace: Namespace = None) -> None:
    """Cancel jobs that wait for their start or for a retry. They will not run."""
    from millstream.broker import Cancellation
    from millstream.cli.target import at

    async def cancel(broker: Broker, view: JobView) -> str:
        answer = await broker.cancel(Address(view.queue), view.id)
        if answer is Cancellation.CANCELLED:
            return f"job {view.id} is cancelled"
        why = "it is running" if answer is Cancellation.RUNNING else f"it has already ended ({view.status})"
        raise MillstreamError(f"job {view.id!r} cannot be cancelled: {why}")

    async def cancel_all(app: Millstream) -> None:
        views = await _given(app, ids, queue)
        confirm(f"Cancel {_these(views)}?", yes)
        await _each(app, "cancelling", views, cancel)

    at(url, namespace, cancel_all)


@jobs.command("retry")
def retry_jobs(ids: JobIds, queue: InQueue = None, url: Url = None, namespace: Namespace = None) -> None:
    """Make dead or scheduled jobs ready now.

    Dead jobs restart at their first attempt. Scheduled jobs no longer wait for their due time.
    """
    from millstream.cli.target import at

    async def retry(broker: Broker, view: JobView) -> str:
        verb = {"dead": broker.replay, "scheduled": broker.promote}.get(view.status)
        if verb is None or not await verb(Address(view.queue), [view.id]):
            raise MillstreamError(f"job {view.id!r} is {view.status}: only dead and scheduled jobs can be retried")
        return f"job {view.id} was {view.status} and is now ready"

    async def retry_all(app: Millstream) -> None:
        await _each(app, "retrying", await _given(app, ids, queue), retry)

    at(url, namespace, retry_all)


async def _given(app: Millstream, ids: Sequence[str], queue: str | None) -> list[JobView]:
    """Find all given jobs before the first is changed. Raises MillstreamError if one does not exist."""
    views: list[JobView] = []
    with progress("finding", len(ids)) as advance:
        for job_id in dict.fromkeys(ids):
            views.append(await _one(app, job_id, queue))
            advance(1)
    return views


async def _each(app: Millstream, doing: str, views: Sequence[JobView], do: Callable[[Broker, JobView], Awaitable[str]]) -> None:
    """Apply ``do`` to every job and print what it returns, even if it fails for others. Then raise MillstreamError if any
    failed."""
    broker = await app.broker()
    said: list[str] = []
    errors: list[MillstreamError] = []
    try:
        with progress(doing, len(views)) as advance:
            for view in views:
                try:
                    said.append(await do(broker, view))
                except BrokerError:
                    raise
                except MillstreamError as error:
                    errors.append(error)
                advance(1)
    finally:
        for line in said:
            say(line)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise MillstreamError(f"{errors[0]}. The command also failed for {len(errors) - 1:,} more of the {len(views):,} jobs")


async def _find(app: Millstream, states: Sequence[Listed], queue: str | None, task: str | None, limit: int) -> list[JobView]:
    """Return the first ``limit`` matching jobs, read page by page."""
    from millstream.cli.target import queues_of

    found: list[JobView] = []
    names = await queues_of(app, queue)
    for status in states:
        for name in names:
            after = ""
            while page := await app.inspector.jobs(name, status, after=after, limit=min(PAGE, limit), task=task):
                found += page
                if len(found) >= limit:
                    return found[:limit]
                after = page[-1].cursor
    return found


async def _one(app: Millstream, job_id: str, queue: str | None) -> JobView:
    """Return the job with this id. Raises JobNotFound, or UsageError if several queues have a job with this id."""
    from millstream.cli.target import queues_of

    views = [await app.inspector.job(name, job_id) for name in await queues_of(app, queue)]
    found = [view for view in views if view is not None]
    if not found:
        where = "" if queue is None else f" in queue {queue!r}"
        raise JobNotFound(
            f"there is no job {job_id!r}{where} at {app.where}: the id is wrong, or the job ended and its result is not stored",
            job_id,
        )
    if len(found) > 1:
        names = ", ".join(Address(view.queue).base for view in found)
        raise UsageError(f"there is a job {job_id!r} in queues {names}: choose one with --queue")
    return found[0]


def _these(views: Sequence[JobView]) -> str:
    return f"job {views[0].id} ({views[0].task or views[0].status})" if len(views) == 1 else counted(len(views), "job")


def _sorted(views: Sequence[JobView]) -> list[JobView]:
    """Sort jobs with the same due time in natural order. The server sorts them as text: job-10 before job-2."""
    found: list[JobView] = []
    for _, group in groupby(views, key=lambda view: (view.status, view.queue, view.due_at)):
        same = list(group)
        found += sorted(same, key=lambda view: natural(view.id)) if same[0].status == "scheduled" else same
    return found


def _row(view: JobView) -> dict[str, Any]:
    message, letter = view.message, view.why_dead
    return {
        "id": view.id or None,
        "task": view.task or None,
        "queue": str(Address(view.queue).base),
        "status": view.status,
        "attempt": letter.attempts if letter else message.attempt if message else None,
        "enqueued_at": moment(view.enqueued_ms / 1000) if view.enqueued_ms else None,
    }


def show(view: JobView, facts: Facts, *, json: bool) -> None:
    """Print everything that is known about a job."""
    fields, blocks = describe(view, facts)
    if not json:  # the other fields already explain a job that ended
        fields["why"] = None if fields["why"]["code"] in ENDED else fields["why"]["text"]
        fields["failures"] = fields["failures"] or None
        if unhandled := fields["unhandled"]:
            tried = counted(unhandled["attempts"], "attempt")
            fields["unhandled"] = f"the on_dead handler gave up after {tried} ({unhandled['reason']}): {unhandled['error']}"
    print_details(fields, blocks, json=json)


def describe(view: JobView, facts: Facts) -> tuple[dict[str, Any], dict[str, str]]:
    """Return everything that is known about a job: all fields, and the multi-line fields as text."""
    from millstream.broker.explaining import explain

    message, letter, ending, key, why = view.message, view.letter, view.ending, facts.standing.key, explain(facts)
    died_of = view.why_dead
    error = died_of.error if died_of else message.last_error if message else None
    overrides = message.overrides if message else None
    workers = [worker for worker in facts.workers if worker.id == view.worker]
    fields: dict[str, Any] = {
        **_row(view),
        "why": {"code": why.code, "text": why.text, "also": list(why.also)},
        "shard": Address(view.queue).shard,
        "key": None if key is None else key_text(key),
        "due_at": moment(view.due_at),
        "expires_at": moment(view.expires_at),
        "running_since": moment(view.since),
        "ended_at": moment(view.ended_at) if letter is None else None,
        "worker": view.worker or None,
        "runs_on": next((f"{worker.host}, process {worker.pid}" for worker in workers), None),
        "crashes": view.crashes,
        "timeout": overrides.timeout if overrides else None,
        "result_ttl": overrides.result_ttl if overrides else None,
        "reason": died_of.reason if died_of else None,
        "error": f"{error.type}: {error.message}" if error else None,
        "died_at": moment(letter.died_at) if letter else None,
        "source": letter.source if letter else None,
        "arguments": unpacked(message.args) if message else None,
        "result": unpacked(ending.value) if ending and ending.status == "done" else None,
        "failures": failure_rows(view.failures),
        "traceback": error.traceback or None if error else None,
        "unhandled": _unhandled(letter.unhandled) if letter and letter.unhandled else None,
    }
    blocks: dict[str, str] = {}
    if message:
        blocks["arguments"] = json_text(fields["arguments"])
    elif view.body:
        fields["arguments"] = {"bytes": view.body.hex()}
        blocks["arguments"] = f"not a Millstream message: {view.body!r}"
    if view.status == "done":
        blocks["result"] = json_text(fields["result"])
    if view.failures:
        blocks["failures"] = "\n".join(map(_failure, view.failures))
    if fields["traceback"]:
        blocks["traceback"] = fields["traceback"]
    if letter and letter.unhandled and letter.unhandled.error.traceback:
        blocks["traceback of the on_dead handler"] = letter.unhandled.error.traceback
    return fields, blocks


def _unhandled(letter: DeadLetter) -> dict[str, Any]:
    """Describe why the ``on_dead`` handler of a dead letter gave up."""
    return {
        "reason": letter.reason,
        "error": f"{letter.error.type}: {letter.error.message}",
        "attempts": letter.attempts,
        "failures": failure_rows(letter.failures),
        "traceback": letter.error.traceback or None,
    }


def failure_rows(failures: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return the rows of failed attempts, oldest first."""
    return [
        {
            "at": moment(failure.at),
            "attempt": failure.number,
            "error": f"{failure.error_type}: {failure.error}",
            "worker": failure.worker or None,
        }
        for failure in failures
    ]


def _failure(failure: Attempt) -> str:
    at = moment(failure.at)
    worker = f" on {failure.worker}" if failure.worker else ""
    error = line(f"{failure.error_type}: {failure.error}")
    return f"{'-' if at is None else iso(at)}  attempt {failure.number}{worker}  {error}"
