"""Asking a supervisor for another number of processes, from another process, through the broker's control channel."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable

import msgspec

from millstream.broker import Broker, ControlChannel, WorkerInfo
from millstream.errors import BrokerError, UsageError

HOLD_SECONDS = 300.0
"""For how long a number that was set by hand holds against the strategy."""

HOLD_MOST = 366 * 86_400.0
PROCESSES_MOST = 10_000
"""More of either is a slip of the hand."""

LOOK_SECONDS = 0.45
"""How often a supervisor looks for messages."""

ANSWER_SECONDS = 10.0
"""How long an answer is waited for: a supervisor may be giving up the leases of a dead child to a server that is slow."""

POLL_SECONDS = 0.05


class Request(msgspec.Struct, frozen=True):
    """Please have so many processes."""

    id: str
    processes: int
    hold: float


class Answer(msgspec.Struct, frozen=True):
    """What was done, or why not."""

    done: bool
    text: str
    processes: int


def unlikely(processes: int, hold: float) -> str:
    """Why nobody can mean these; empty: somebody may."""
    if not 0 <= processes <= PROCESSES_MOST:
        return f"processes must be a whole number from 0 to {PROCESSES_MOST:,}"
    if not 0 <= hold <= HOLD_MOST:
        return f"hold must be a number of seconds from 0 to {HOLD_MOST:,.0f}, a year, not {hold:g}"
    return ""


async def scale(broker: Broker, processes: int, worker: str | None, hold: float) -> str:
    """Have a supervisor keep so many processes; what it says of it. UsageError: why not."""
    if why := unlikely(processes, hold):
        raise UsageError(why)
    if not broker.capabilities.shared:
        raise UsageError("memory:// is inside one process: no supervisor is there that could be scaled")
    to = _choose(await broker.inspector.supervisors(), await broker.inspector.workers(), worker)
    request = Request(secrets.token_hex(8), processes, hold)
    await broker.control.send(to, msgspec.msgpack.encode(request), ANSWER_SECONDS)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            while not (found := await broker.control.receive(request.id)):
                await asyncio.sleep(POLL_SECONDS)
            answer = msgspec.msgpack.decode(found[0], type=Answer)
            if not answer.done:
                raise UsageError(f"worker {to} refuses: {answer.text}")
            return f"worker {to}: {answer.text}"
    raise UsageError(f"worker {to} did not answer within {ANSWER_SECONDS:g} s: it has just ended, or stands still")


def _choose(supervisors: list[WorkerInfo], workers: list[WorkerInfo], name: str | None) -> str:
    known = ", ".join(info.id for info in supervisors) or "none"
    if name is None:
        if len(supervisors) == 1:
            return supervisors[0].id
        if supervisors:
            raise UsageError(f"there are several workers: name one of {known}")
        raise UsageError("there is no worker that could be scaled: start one with millstream worker --processes 1..4")
    found = [info.id for info in supervisors if info.id == name] or [i.id for i in supervisors if i.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} may be {' or '.join(found)}: say more of it")
    of = next((info for info in workers if info.id == name), None)
    if of is not None:
        whose = f"it is a process of worker {of.supervisor}: scale that" if of.supervisor else "it runs inside a program"
        raise UsageError(f"{name!r} has no processes of its own: {whose}")
    raise UsageError(f"there is no worker {name!r}; those that can be scaled: {known}")


async def answer_requests(channel: ControlChannel, own: str, scale: Callable[[int, float], Awaitable[Answer]]) -> None:
    """In a supervisor, for ever: do what is asked, and say so."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with contextlib.suppress(BrokerError):  # whoever asked is told by the silence
            for message in await channel.receive(own):
                request = msgspec.msgpack.decode(message, type=Request)
                answer = await scale(request.processes, request.hold)
                await channel.send(request.id, msgspec.msgpack.encode(answer), ANSWER_SECONDS)
