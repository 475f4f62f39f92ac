"""Every client method that sends or changes something: its correct answer, and the correct state afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from chaos.stage import until
from chaos.verbs import GROUP, NARROW, NEWS, NOTES, ORDERS, PREFIX, SHARDS, SPREAD, STRICT
from millstream import Millstream

KEY = "ann"
"""The ordering key of ordered jobs."""

READERS = f"{NEWS}/{GROUP}"

Act = Callable[[Millstream], Awaitable[object]]


async def _nothing(app: Millstream) -> None:
    del app


@dataclass(frozen=True)
class Verb:
    """A client method: its answer and the state afterwards must be correct, whatever call is lost."""

    name: str
    act: Act
    answer: object
    look: Act
    state: object
    prepare: Act = _nothing


# -- reading state ---------------------------------------------------------------------------------------------------------


def _counts(queue: str, *names: str) -> Act:
    """Return the named figures of a queue or group."""

    async def look(app: Millstream) -> object:
        state = await app.inspector.queue(queue)
        return tuple(state.totals[name[1:]] if name.startswith("+") else getattr(state, name) for name in names)

    return look


def _status(job_id: str) -> Act:
    return lambda app: app.tasks["note"].job(job_id).status()


async def _events(app: Millstream) -> object:
    state = await app.inspector.topic(NEWS)
    return state.length, state.delayed, *(group.name for group in state.groups)


async def _shards_of_queue(app: Millstream) -> object:
    return (await app.inspector.queue(SPREAD)).shards


async def _shards_of_topic(app: Millstream) -> object:
    return (await app.inspector.topic(ORDERS)).shards


# -- preparing state -------------------------------------------------------------------------------------------------------


async def _send_own(app: Millstream) -> None:
    await app.tasks["note"].options(id="own").enqueue("a")


async def _schedule_own(app: Millstream) -> None:
    await app.tasks["note"].options(id="own", delay=3600).enqueue("a")


async def _cancel_own(app: Millstream) -> None:
    await _send_own(app)
    await app.tasks["note"].job("own").cancel()


async def _stop_key(app: Millstream) -> None:
    """Create two dead letters of one key, which is stopped."""
    for number in range(2):
        await app.tasks["strict"].options(id=f"dead-{number}").enqueue(KEY)
    await _until_dead(app, STRICT, 2)


async def _kill_two(app: Millstream) -> None:
    """Create two dead letters whose key is not stopped."""
    await _stop_key(app)
    await app.queue(STRICT).clear(KEY, replay=False)


async def _publish_three(app: Millstream) -> None:
    await app.topics[NEWS].publish_many(["a", "b", "c"])


async def _read_three(app: Millstream) -> None:
    await _publish_three(app)
    async with app.worker([READERS]):
        await _until(app, _counts(READERS, "+done"), (3,))


async def _kill_event(app: Millstream) -> None:
    await app.topics[NEWS].publish("bad", id="bad")
    await _until_dead(app, READERS, 1)


async def _pause_queue(app: Millstream) -> None:
    await app.queue(NOTES).pause()


async def _pause_group(app: Millstream) -> None:
    await app.group(NEWS, GROUP).pause()


async def _open_orders(app: Millstream) -> None:
    await app.inspector.topic(ORDERS)


async def _declare_prefix(app: Millstream) -> None:
    @app.subscribe_prefix(PREFIX, GROUP, type=str)
    async def handle(event: str) -> None: ...

    async with app.worker([NOTES]):  # a worker registers the declared subscriptions
        pass


async def _until_dead(app: Millstream, address: str, count: int) -> None:
    async with app.worker([address]):
        await _until(app, _counts(address, "dead"), (count,))


async def _until(app: Millstream, look: Act, wanted: object) -> None:
    async def is_so() -> bool:
        return await look(app) == wanted

    await until(is_so, f"{wanted}")


# -- methods ---------------------------------------------------------------------------------------------------------------


def _enqueue(task: str, key: str = "a", **options: Any) -> Act:
    """Enqueue a job. Its answer: whether the job is new."""

    async def act(app: Millstream) -> object:
        return (await app.tasks[task].options(**options).enqueue(key)).created

    return act


def _enqueue_many(*ids: str | None) -> Act:
    async def act(app: Millstream) -> object:
        note = app.tasks["note"]
        calls = [(note if id is None else note.options(id=id)).bind(f"{number}") for number, id in enumerate(ids)]
        return [job.created for job in await app.enqueue_many(calls)]

    return act


def _publish(**options: Any) -> Act:
    async def act(app: Millstream) -> object:
        return bool(await app.topics[NEWS].publish("a", **options))

    return act


async def _publish_many(app: Millstream) -> object:
    return len(await app.topics[NEWS].publish_many(["a", "b", "c"]))


def _cancel(app: Millstream) -> Awaitable[object]:
    return app.tasks["note"].job("own").cancel()


VERBS = (
    Verb("`enqueue`", _enqueue("note"), True, _counts(NOTES, "ready", "+published"), (1, 1)),
    Verb("`enqueue`, delayed", _enqueue("note", delay=3600), True, _counts(NOTES, "scheduled", "+published"), (1, 1)),
    Verb("`enqueue(id=…)`, new", _enqueue("note", id="own"), True, _counts(NOTES, "ready", "+published"), (1, 1)),
    Verb("`enqueue(id=…)`, known", _enqueue("note", id="own"), False, _counts(NOTES, "ready"), (1,), _send_own),
    Verb("`enqueue` of the last job that fits", _enqueue("lonely"), True, _counts(NARROW, "ready"), (1,)),
    Verb("`enqueue(id=…)` of the last job that fits", _enqueue("lonely", id="own"), True, _counts(NARROW, "ready"), (1,)),
    Verb("`enqueue` to a shard", _enqueue("spread", KEY), True, _counts(SPREAD, "ready"), (1,)),
    Verb("`enqueue_many`", _enqueue_many(None, None, None), [True] * 3, _counts(NOTES, "ready"), (3,)),
    Verb("`enqueue_many` with ids", _enqueue_many("x", "y", "z"), [True] * 3, _counts(NOTES, "ready"), (3,)),
    Verb(
        "`enqueue_many` with new and known ids",
        _enqueue_many("own", None, "new"),
        [False, True, True],
        _counts(NOTES, "ready"),
        (3,),
        _send_own,
    ),
    Verb("`publish`", _publish(), True, _events, (1, 0, GROUP)),
    Verb("`publish(id=…)`", _publish(id="own"), True, _events, (1, 0, GROUP)),
    Verb("`publish`, delayed", _publish(delay=3600), True, _events, (0, 1, GROUP)),
    Verb("`publish_many`", _publish_many, 3, _events, (3, 0, GROUP)),
    Verb("`cancel` of a ready job", _cancel, True, _status("own"), "cancelled", _send_own),
    Verb("`cancel` of a scheduled job", _cancel, True, _status("own"), "cancelled", _schedule_own),
    Verb("`cancel` of a cancelled job", _cancel, False, _status("own"), "cancelled", _cancel_own),
    Verb("`status`", lambda app: app.tasks["note"].job("own").status(), "ready", _status("own"), "ready", _send_own),
    Verb("`queue.pause`", lambda app: app.queue(NOTES).pause(), None, _counts(NOTES, "paused"), (True,)),
    Verb("`queue.resume`", lambda app: app.queue(NOTES).resume(), None, _counts(NOTES, "paused"), (False,), _pause_queue),
    Verb(
        "`queue.clear`",
        lambda app: app.queue(STRICT).clear(KEY),
        2,
        _counts(STRICT, "stopped", "dead", "ready", "blocked"),
        (0, 0, 1, 1),
        _stop_key,
    ),
    Verb(
        "`queue.clear(replay=False)`",
        lambda app: app.queue(STRICT).clear(KEY, replay=False),
        0,
        _counts(STRICT, "stopped", "dead", "ready"),
        (0, 2, 0),
        _stop_key,
    ),
    Verb(
        "`queue.clear` of a key that is not stopped",
        lambda app: app.queue(STRICT).clear(KEY),
        "UsageError",
        _counts(STRICT, "stopped", "dead", "ready"),
        (0, 2, 0),
        _kill_two,
    ),
    Verb(
        "`dead.replay(id)`",
        lambda app: app.dead.replay("dead-0", queue=STRICT),
        ["dead-0"],
        _counts(STRICT, "dead", "ready"),
        (1, 1),
        _kill_two,
    ),
    Verb(
        "`dead.replay(queue=…)`",
        lambda app: app.dead.replay(queue=STRICT),
        ["dead-0", "dead-1"],
        _counts(STRICT, "dead"),
        (0,),
        _kill_two,
    ),
    Verb(
        "`dead.purge(id)`",
        lambda app: app.dead.purge("dead-0", queue=STRICT),
        ["dead-0"],
        _counts(STRICT, "dead", "ready"),
        (1, 0),
        _kill_two,
    ),
    Verb(
        "`dead.purge(queue=…)`",
        lambda app: app.dead.purge(queue=STRICT),
        ["dead-0", "dead-1"],
        _counts(STRICT, "dead", "ready"),
        (0, 0),
        _kill_two,
    ),
    Verb(
        "`group.dead.replay`",
        lambda app: app.group(NEWS, GROUP).dead.replay("bad"),
        ["bad"],
        _counts(READERS, "dead"),
        (0,),
        _kill_event,
    ),
    Verb(
        "`group.rewind`",
        lambda app: app.group(NEWS, GROUP).rewind(),
        None,
        _counts(READERS, "ready"),
        (3,),
        _read_three,
    ),
    Verb(
        "`group.skip`",
        lambda app: app.group(NEWS, GROUP).skip(),
        None,
        _counts(READERS, "ready"),
        (0,),
        _publish_three,
    ),
    Verb("`group.pause`", lambda app: app.group(NEWS, GROUP).pause(), None, _counts(READERS, "paused"), (True,)),
    Verb(
        "`group.resume`",
        lambda app: app.group(NEWS, GROUP).resume(),
        None,
        _counts(READERS, "paused"),
        (False,),
        _pause_group,
    ),
    Verb("`group.remove`", lambda app: app.group(NEWS, GROUP).remove(), None, _events, (3, 0), _publish_three),
    Verb("`remove_prefix`", lambda app: app.remove_prefix(PREFIX, GROUP), None, _counts(NOTES, "ready"), (0,), _declare_prefix),
    Verb("`queue.reshard`", lambda app: app.queue(SPREAD, shards=SHARDS).reshard(4), None, _shards_of_queue, 4),
    Verb("`topic.reshard`", lambda app: app.topics[ORDERS].reshard(4), None, _shards_of_topic, 4, _open_orders),
)
"""Every method that sends or changes something, and its correct answer."""
