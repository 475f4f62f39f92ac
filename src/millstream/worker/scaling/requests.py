"""Manual scaling: another process asks a supervisor for a number of processes, through the broker's control channel."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable

import msgspec

from millstream.broker import Broker, ControlChannel, WorkerInfo
from millstream.errors import BrokerError, UsageError

HOLD_SECONDS = 300.0
"""Default seconds for which a manual number of processes overrides the strategy."""

HOLD_MOST = 366 * 86_400.0
PROCESSES_MOST = 10_000
"""Upper limits that catch typing errors."""

LOOK_SECONDS = 0.45
"""Seconds between two checks of a supervisor for requests."""

ANSWER_SECONDS = 10.0
"""Maximum seconds to wait for an answer: a supervisor may be busy giving up the leases of a dead child on a slow server."""

POLL_SECONDS = 0.05


class Request(msgspec.Struct, frozen=True):
    """Asks for this number of processes."""

    id: str
    processes: int
    hold: float


class Answer(msgspec.Struct, frozen=True):
    """The result of a request, or why it was refused."""

    done: bool
    text: str
    processes: int


def unlikely(processes: int, hold: float) -> str:
    """Return why these values are invalid, or an empty string if they are valid."""
    if not 0 <= processes <= PROCESSES_MOST:
        return f"processes must be a whole number from 0 to {PROCESSES_MOST:,}"
    if not 0 <= hold <= HOLD_MOST:
        return f"hold must be a number of seconds from 0 to {HOLD_MOST:,.0f} (one year), not {hold:g}"
    return ""


async def scale(broker: Broker, processes: int, worker: str | None, hold: float) -> str:
    """Ask a supervisor for this number of processes, and return its answer. Raises UsageError if it refuses."""
    if why := unlikely(processes, hold):
        raise UsageError(why)
    if not broker.capabilities.shared:
        raise UsageError("memory:// exists only within one process, where no supervisor can be scaled: use another URL")
    to = _choose(await broker.inspector.supervisors(), await broker.inspector.workers(), worker)
    request = Request(secrets.token_hex(8), processes, hold)
    await broker.control.send(to, msgspec.msgpack.encode(request), ANSWER_SECONDS)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            while not (found := await broker.control.receive(request.id)):
                await asyncio.sleep(POLL_SECONDS)
            answer = msgspec.msgpack.decode(found[0], type=Answer)
            if not answer.done:
                raise UsageError(f"worker {to} refused: {answer.text}")
            return f"worker {to}: {answer.text}"
    raise UsageError(f"worker {to} did not answer within {ANSWER_SECONDS:g} s: it has just ended, or is suspended")


def _choose(supervisors: list[WorkerInfo], workers: list[WorkerInfo], name: str | None) -> str:
    known = ", ".join(info.id for info in supervisors) or "none"
    if name is None:
        if len(supervisors) == 1:
            return supervisors[0].id
        if supervisors:
            raise UsageError(f"several workers are running: name one of {known}")
        raise UsageError("no worker that can be scaled is running: start one with millstream worker --processes 1..4")
    found = [info.id for info in supervisors if info.id == name] or [i.id for i in supervisors if i.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} is ambiguous: it matches {' and '.join(found)}. Write more of the id")
    of = next((info for info in workers if info.id == name), None)
    if of is not None:
        whose = f"it is a process of worker {of.supervisor}: scale that" if of.supervisor else "it runs inside another program"
        raise UsageError(f"{name!r} cannot be scaled: {whose}")
    raise UsageError(f"there is no worker {name!r}; workers that can be scaled: {known}")


async def answer_requests(channel: ControlChannel, own: str, scale: Callable[[int, float], Awaitable[Answer]]) -> None:
    """Carry out and answer requests in a supervisor, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with contextlib.suppress(BrokerError):  # the caller's wait for an answer times out
            for message in await channel.receive(own):
                request = msgspec.msgpack.decode(message, type=Request)
                answer = await scale(request.processes, request.hold)
                await channel.send(request.id, msgspec.msgpack.encode(answer), ANSWER_SECONDS)
