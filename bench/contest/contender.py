"""A contender, as its own file describes it, and the commands by which the judge runs that file.

    python on_<name>.py describe              print its description as JSON
    python on_<name>.py fill FIRST JOBS       enqueue jobs in bulk, not timed
    python on_<name>.py bulk SECONDS          enqueue in bulk for this time
    python on_<name>.py concurrent SECONDS    100 concurrent callers, one job per call
    python on_<name>.py sequential SECONDS    one job per call, one after the other
    python on_<name>.py latency SECONDS       one job at a time through an idle worker
    python on_<name>.py publish SECONDS       publish events for this time, in bulk if the library has a call for it
    python on_<name>.py pipelined SECONDS     like publish, but in pipelines if the library has no such call

Each command prints one line of JSON. The server's address and the tally are in the environment (see ``told``). Worker processes
import this module too, and their memory is measured, so imports that only commands need are inside those commands.
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
"""The measured numbers of worker processes."""

JOBS = ("noop", "io", "sync", "stamped", "gated")
ORDERED = ("ordered", "ordered-200")
EVENTS = ("event", "batch", "publish", *ORDERED)
"""The kinds of job handlers (JOBS) and event handlers (EVENTS, for libraries with consumer groups). "publish" has no handler.
ORDERED: if the library supports keys, the events of each key are handled one at a time and in order."""


class Client(NamedTuple):
    """How one process enqueues. ``send`` is a coroutine function for asyncio libraries, otherwise a plain function."""

    send: Callable[[int], Any]
    send_many: Callable[[Iterable[int]], Any] | None = None
    """One call for many jobs. Without it, bulk means single calls, concurrent if that is faster."""

    chunk: int = 1_000
    """Jobs per bulk call: the number with which the library is fastest."""


class Contender(NamedTuple):
    title: str
    distributions: tuple[str, ...]
    """The installed distributions, whose versions are reported."""

    settings: str
    """A description of its settings for the report."""

    client: Callable[[], AbstractContextManager[Client] | AbstractAsyncContextManager[Client]]
    queued: Sequence[Command]
    """Commands whose sum is the number of waiting jobs."""

    left: Sequence[Command] = ()
    """Commands whose sum is what the server still holds of handled jobs; 0 once all are settled."""

    results: Sequence[Command] = ()
    """Commands whose sum is the number of stored results. Empty: it stores no results."""

    worker: Callable[[str, int], list[list[str]]] | None = None
    """Return the worker commands for a kind of handler and a number of processes."""

    handlers: Sequence[str] = JOBS


def program(name: str) -> str:
    """Return the path of a program that was installed beside this interpreter."""
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
