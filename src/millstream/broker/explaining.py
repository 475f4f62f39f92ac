"""Decides from stored values why a job is not running. No I/O and no clock."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from millstream.broker.why import Standing, Trouble, Why, WhyCode, key_text
from millstream.model.address import Address

if TYPE_CHECKING:
    from millstream.broker.inspector import JobView, QueueState, WorkerInfo
    from millstream.model.message import ErrorNote, Message

STOPS_ALL: tuple[WhyCode, ...] = ("read_only", "full", "paused", "no_worker")
"""Causes that hold up every job at an address. They are reported in addition to a job's own cause."""

ERROR_CHARACTERS = 200
"""Maximum number of characters of an error's text in an explanation."""

NAMES = 5
"""Maximum number of workers, queues or tasks named in an explanation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The values that an explanation is based on, as they were read."""

    address: Address
    view: JobView | None
    """The job, or ``None`` if the server does not know it."""
    standing: Standing
    state: QueueState
    workers: Sequence[WorkerInfo] = ()
    """All registered workers, whatever they serve."""
    trouble: Trouble | None = None
    ahead: JobView | None = None
    """The job that has the turn of this job's key."""
    serving: list[WorkerInfo] = field(init=False)
    """The workers that serve the job's address."""

    def __post_init__(self) -> None:
        serving = [worker for worker in self.workers if self.address.base in worker.queues]
        object.__setattr__(self, "serving", serving)


def explain(facts: Facts) -> Why:
    """Return why a job is not running: the most specific cause, and causes that hold up every job at its address."""
    view = facts.view
    if view is None:
        return _unknown(facts)
    if view.status == "running":
        return _running(facts, view)
    if view.status == "dead":
        return _dead(facts, view)
    if view.status == "done":
        return Why(code="done", text="it is done")
    if view.status == "cancelled":
        return Why(code="cancelled", text="it was cancelled before it started, or before a retry started")
    if view.status == "expired":
        return Why(code="expired", text="it expired before it started, or before a retry started")
    message = view.message
    first, *others = [
        *_server(facts),
        *_put_off(facts, view, message),
        *_not_due(facts, view, message),
        *_ordered(facts, view),
        *_unserved(facts),
        *_unknown_task(facts, message),
        *_alone(view),
        *_busy(facts, message),
        _ready(facts),
    ]
    also = [other for other in others if other.code in STOPS_ALL]
    if not also:
        return first
    text = "; ".join([first.text, *(f"also, {other.text}" for other in also)])
    return msgspec.structs.replace(first, text=text, also=tuple(other.code for other in also))


# -- jobs that do not wait -----------------------------------------------------------------------------------------------------


def _unknown(facts: Facts) -> Why:
    text = "the server does not know this job: it ended without a stored result, or its id or queue is wrong"
    if facts.trouble is not None:
        text += f"; also, {facts.trouble.text}"
    return Why(code="unknown", text=text, also=() if facts.trouble is None else (facts.trouble.code,))


def _running(facts: Facts, view: JobView) -> Why:
    worker = view.worker
    text = f"it is running on worker {worker}" + ("" if view.since is None else f" since {_moment(view.since)}")
    if all(each.id != worker for each in facts.workers):
        text += "; that worker is no longer registered (it died or is unreachable): another takes over when its lease lapses"
    return Why(code="running", text=text, at=view.since, workers=(worker,))


def _dead(facts: Facts, view: JobView) -> Why:
    letter, died_at = view.why_dead, view.ended_at if view.letter is None else view.letter.died_at
    if letter is None:
        return Why(code="dead", text="it is dead, and its dead letter was purged", at=died_at)
    if letter.reason == "stopped" and facts.standing.stopped_by:
        return msgspec.structs.replace(_stopped(facts), at=died_at)
    error = _error(letter.error)
    text = f"it is dead ({letter.reason}): {error}"
    if view.letter is not None and view.letter.unhandled is not None:
        text += f"; its on_dead handler gave up: {_error(view.letter.unhandled.error)}"
    return Why(code="dead", text=text, at=died_at, error=error)


# -- jobs that wait, the most specific cause first ---------------------------------------------------------------------------


def _server(facts: Facts) -> list[Why]:
    trouble = facts.trouble
    return [] if trouble is None or trouble.claims else [Why(code=trouble.code, text=trouble.text)]


def _put_off(facts: Facts, view: JobView, message: Message | None) -> list[Why]:
    """Explain a job that was postponed by a worker that does not know its task."""
    if view.status != "scheduled" or message is None or not message.unknown_since_ms:
        return []
    if facts.serving and (unknown := _unknown_task(facts, message)):
        return unknown
    when = "" if view.due_at is None else f" until {_when(view.due_at, facts.standing.now)}"
    text = f"a worker that does not know task {message.task!r} postponed it{when}"
    return [Why(code="unknown_task", text=text, at=view.due_at)]


def _not_due(facts: Facts, view: JobView, message: Message | None) -> list[Why]:
    due = view.due_at
    if view.status != "scheduled" or due is None or due <= facts.standing.now:
        return []
    when = _when(due, facts.standing.now)
    if message is not None and message.last_error is not None:
        error = _error(message.last_error)
        text = f"it failed and waits for attempt {message.attempt}, due {when}: {error}"
        return [Why(code="retry", text=text, at=due, error=error)]
    if message is not None and message.first_received_ms:
        return [Why(code="scheduled", text=f"its handler snoozed it; it is due {when}", at=due)]
    return [Why(code="scheduled", text=f"it is scheduled and due {when}", at=due)]


def _ordered(facts: Facts, view: JobView) -> list[Why]:
    standing, ahead = facts.standing, facts.ahead
    if standing.stopped_by:
        return [_stopped(facts)]
    if view.status != "blocked" and standing.turn in ("", view.id):
        return []
    state = "" if ahead is None else f", which is {ahead.status}"
    if ahead is not None and ahead.status == "running":
        state += f" on worker {ahead.worker}"
    if ahead is not None and ahead.due_at is not None:
        state += f" and due {_when(ahead.due_at, standing.now)}"
    who = f"job {standing.turn!r} with the same key{state}" if standing.turn else "another job with the same key"
    text = (
        f"it is blocked behind {who}" if standing.key is None else f"it is blocked behind {who} (key {key_text(standing.key)})"
    )
    return [Why(code="blocked", text=text, job=standing.turn, key=standing.key)]


def _unserved(facts: Facts) -> list[Why]:
    found: list[Why] = []
    address = facts.address.base
    if facts.state.paused:
        noun = "queues" if address.is_queue else "groups"
        command = f"millstream {noun} resume {shlex.quote(address)}"
        found.append(Why(code="paused", text=f"{named(address)} is paused; resume it: {command}"))
    if not facts.state.consumers or not facts.serving:
        served = sorted({queue for worker in facts.workers for queue in worker.queues})
        others = f"registered workers serve {_some(served)}" if served else "no worker is registered"
        found.append(Why(code="no_worker", text=f"no worker serves {named(address)} ({others})"))
    return found


def _unknown_task(facts: Facts, message: Message | None) -> list[Why]:
    if message is None or not facts.address.is_queue or not facts.serving:
        return []
    if any(worker.tasks is None or message.task in worker.tasks for worker in facts.serving):
        return []
    theirs = [f"{worker.id} knows {_some(sorted(worker.tasks or ()))}" for worker in facts.serving[:NAMES]]
    more = f" and {_count(len(facts.serving) - NAMES, 'more worker')}" if len(facts.serving) > NAMES else ""
    text = f"no worker of {named(facts.address.base)} knows task {message.task!r}: {'; '.join(theirs)}{more}"
    return [Why(code="unknown_task", text=text, workers=_ids(facts.serving))]


def _alone(view: JobView) -> list[Why]:
    if not view.alone:
        return []
    text = f"it waits to run alone, because {_count(view.crashes, 'worker')} died while running it"
    return [Why(code="suspect", text=text)]


def _busy(facts: Facts, message: Message | None) -> list[Why]:
    task = "" if message is None or not facts.address.is_queue else message.task
    able = [worker for worker in facts.serving if not task or worker.tasks is None or task in worker.tasks]
    if not able or not all(_at_limit(worker, facts.address.base, task) for worker in able):
        return []
    uses = ", ".join(f"{worker.id} runs {_in_use(worker, task)}" for worker in able[:NAMES])
    more = f" and {len(able) - NAMES} more" if len(able) > NAMES else ""
    text = f"every worker of {named(facts.address.base)} that can run it is at its limit: {uses}{more}"
    return [Why(code="busy", text=text, workers=_ids(able))]


def _at_limit(worker: WorkerInfo, address: Address, task: str) -> bool:
    if address in worker.full:
        return True
    in_thread = (worker.tasks or {}).get(task)
    return in_thread is not None and 0 < worker.slots[in_thread] <= worker.running[in_thread]


def _in_use(worker: WorkerInfo, task: str) -> str:
    """Return the used slots of the kind that the task needs, or of both kinds if that is not known."""
    kinds = [f"{worker.running[kind]} of {worker.slots[kind]} {name}" for kind, name in enumerate(("coroutines", "threads"))]
    in_thread = (worker.tasks or {}).get(task)
    return " and ".join(kinds) if in_thread is None else kinds[in_thread]


def _ready(facts: Facts) -> Why:
    text = (
        f"it is ready and waits for a worker: {facts.state.ready:,} ready in {named(facts.address.base)}, "
        f"{_count(len(facts.serving), 'worker')}"
    )
    return Why(code="ready", text=text, workers=_ids(facts.serving))


def _stopped(facts: Facts) -> Why:
    standing, address = facts.standing, facts.address
    key = key_text(standing.key or b"")
    of = f"{'queues' if address.is_queue else 'topics'} clear {shlex.quote(address.name)}"
    group = "" if address.is_queue else f" --group {shlex.quote(address.group)}"
    text = (
        f"an earlier message with its key failed ({standing.stopped_by}), which stopped the key; "
        f"clear it: millstream {of} {shlex.quote(key)}{group}"
    )
    return Why(code="stopped_key", text=text, job=standing.stopped_by, key=standing.key)


# -- wording -----------------------------------------------------------------------------------------------------------------


def named(address: Address) -> str:
    """Name a queue, or a topic's group, in a sentence."""
    place = "" if address.shard is None else f" (shard {address.shard})"
    if address.is_queue:
        return f"queue {address.name!r}{place}"
    return f"group {address.group!r} of topic {address.name!r}{place}"


def _error(note: ErrorNote) -> str:
    text = " ".join(note.message.split())
    return f"{note.type}: {text[:ERROR_CHARACTERS]}{'…' if len(text) > ERROR_CHARACTERS else ''}"


def _when(at: float, now: float) -> str:
    left = at - now
    return f"at {_moment(at)}" + (f" (in {_duration(left)})" if left > 0 else "")


def _moment(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError):  # past the year 9999
        return f"{at:.0f} (epoch seconds)"


def _duration(seconds: float) -> str:
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _ids(workers: Sequence[WorkerInfo]) -> tuple[str, ...]:
    return tuple(worker.id for worker in workers)
