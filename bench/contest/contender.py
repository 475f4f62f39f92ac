"""A contender, as its own file describes it, and the commands by which the judge runs that file.

    python on_<name>.py describe              what it is, as JSON
    python on_<name>.py fill FIRST JOBS       enqueue jobs in bulk, not timed
    python on_<name>.py bulk SECONDS          enqueue in bulk for so long
    python on_<name>.py concurrent SECONDS    100 callers at once, one job per call
    python on_<name>.py sequential SECONDS    one job per call, one after the other
    python on_<name>.py latency SECONDS       one job at a time through a waiting worker
    python on_<name>.py publish SECONDS       publish events for so long, in bulk where that is one call
    python on_<name>.py pipelined SECONDS     as publish, in pipelines where there is no such call

Each prints one line of JSON. The server's address and the tally are in the environment (see ``told``). Worker processes import
this as well, and their memory is measured: what only commands need, they import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple

Command = Sequence[str]
"""A server command whose reply is a count, or a list that begins with one."""

PROCESSES = (1, 10, 40)
"""The numbers of worker processes that are measured."""

JOBS = ("noop", "io", "sync", "stamped", "gated")
ORDERED = ("ordered", "ordered-200")
EVENTS = ("event", "batch", "publish", *ORDERED)
"""The kinds of handlers of jobs, and of those that libraries with consumer groups have besides. "publish": there is none.
ORDERED: where events can have keys, those of each are handled one at a time and in order."""


class Client(NamedTuple):
    """One process's way to enqueue. ``send`` is a coroutine function of asyncio libraries, a plain one of the others."""

    send: Callable[[int], Any]
    send_many: Callable[[Iterable[int]], Any] | None = None
    """One call for many jobs; without it, a library's bulk is its single call, concurrent where that is faster."""

    chunk: int = 1_000
    """Jobs per bulk call: what the library is fastest with."""


class Contender(NamedTuple):
    title: str
    distributions: tuple[str, ...]
    """What is installed for it; versions are printed."""

    settings: str
    """How it is set up, in words, for the report."""

    client: Callable[[], AbstractContextManager[Client] | AbstractAsyncContextManager[Client]]
    queued: Sequence[Command]
    """Together: how many jobs wait."""

    left: Sequence[Command] = ()
    """Together: what the server still holds of jobs that have been handled; 0 once all are settled."""

    results: Sequence[Command] = ()
    """Together: how many results are kept. Empty: it keeps no results."""

    worker: Callable[[str, int], list[list[str]]] | None = None
    """The commands that run workers: kind of handler and number of processes in."""

    handlers: Sequence[str] = JOBS


def program(name: str) -> str:
    """A program that was installed beside this interpreter."""
    return os.path.join(os.path.dirname(sys.executable), name)


def main(contender: Contender) -> None:
    import json

    command, *arguments = sys.argv[1:]
    if command == "describe":
        print(json.dumps(_describe(contender)))
        return
    from contest.callers import Coroutines, Threads

    session = contender.client()
    if isinstance(session, AbstractContextManager):
        with session as client:
            done = getattr(Threads(client), command)(*arguments)
    else:
        done = _run(lambda client: getattr(Coroutines(client), command)(*arguments), session)
    print(json.dumps(done))


def _run(call: Callable[[Client], Any], session: AbstractAsyncContextManager[Client]) -> Any:
    import asyncio

    import uvloop

    async def inside() -> Any:
        async with session as client:
            return await call(client)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(inside())


def _describe(contender: Contender) -> dict[str, Any]:
    from importlib.metadata import version

    worker = contender.worker
    return {
        "title": contender.title,
        "versions": {name: version(name) for name in contender.distributions},
        "settings": contender.settings,
        "queued": contender.queued,
        "left": contender.left,
        "results": contender.results,
        "workers": {kind: {n: worker(kind, n) for n in PROCESSES} for kind in contender.handlers} if worker else {},
    }
