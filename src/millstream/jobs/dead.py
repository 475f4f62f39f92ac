"""Dead letters: jobs that ended without success, kept with their reason until they are replayed, purged or too old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, get_args

from millstream.broker import Broker
from millstream.client import ClientInspector, Clients, new_request, sync_version
from millstream.errors import UsageError
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter
from millstream.model.message import Attempt
from millstream.model.settings import integer
from millstream.model.types import DeadReason

PAGE = 200
"""Letters read or moved per call, so that no call holds the server long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unhandled:
    """Why a dead letter stays although its group has an ``on_dead`` handler: how the last attempt to handle it ended."""

    reason: DeadReason
    error_type: str
    error: str
    traceback: str
    attempts: int
    """How often the handler was called, the last attempt included."""
    crashes: int
    failures: tuple[Attempt, ...] = ()
    """The last ten failed attempts of the handler, oldest first."""

    @classmethod
    def open(cls, letter: DeadLetter) -> Unhandled:
        """What is stored of it."""
        error = letter.error
        return cls(
            reason=letter.reason,
            error_type=error.type,
            error=error.message,
            traceback=error.traceback,
            attempts=letter.attempts,
            crashes=letter.crashes,
            failures=letter.failures,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJob:
    """A dead job, its letter opened."""

    id: str
    task: str
    queue: str
    reason: DeadReason
    error_type: str
    error: str
    traceback: str
    attempts: int
    crashes: int
    enqueued_at: datetime | None
    """By the clock of whoever enqueued it; None for what was never a job of ours."""
    died_at: datetime
    """By the server's clock."""
    entry: str = ""
    """The entry it was, as the server names it."""
    order_key: bytes | None = None
    """Its key, if it was in an order."""
    shard: int | None = None
    """Of its queue or topic, if that has any."""
    failures: tuple[Attempt, ...] = ()
    """Its last ten failed attempts, oldest first."""
    unhandled: Unhandled | None = None
    """Why its ``on_dead`` handler gave up; ``None`` if it did not, or if there is no such handler."""

    @classmethod
    def open(cls, letter: DeadLetter) -> DeadJob:
        """What a stored letter says."""
        return cls(
            id=letter.id,
            task=letter.task,
            queue=str(Address(letter.queue).base),
            reason=letter.reason,
            error_type=letter.error.type,
            error=letter.error.message,
            traceback=letter.error.traceback,
            attempts=letter.attempts,
            crashes=letter.crashes,
            enqueued_at=datetime.fromtimestamp(letter.enqueued_ms / 1000, UTC) if letter.enqueued_ms else None,
            died_at=datetime.fromtimestamp(letter.died_at, UTC),
            entry=letter.source,
            order_key=letter.key,
            shard=Address(letter.queue).shard,
            failures=letter.failures,
            unhandled=None if letter.unhandled is None else Unhandled.open(letter.unhandled),
        )


DeadJobs = list[DeadJob]
Letters = list[DeadLetter]
Ids = list[str]
Addresses = list[Address]


class Move(Protocol):
    """Moves dead letters of one queue; returns the ids of those it moved."""

    def __call__(self, broker: Broker, queue: Address, ids: Ids, request: str) -> Awaitable[Ids]: ...


class DeadLetters:
    """``app.dead``: the dead letters of every queue and of every group, or of one."""

    def __init__(self, clients: Clients, *, queue: str | None = None) -> None:
        """``queue``: of that one only."""
        self._clients = clients
        self._only = None if queue is None else Address(queue)
        self._inspector = ClientInspector(clients)

    async def list(
        self,
        *,
        queue: str | None = None,
        reason: DeadReason | None = None,
        task: str | None = None,
        limit: int | None = 100,
    ) -> DeadJobs:
        """Dead jobs that fit every filter, oldest first; at most ``limit``, None: all."""
        if limit is not None:
            integer(limit, "limit", minimum=1)
        _check_reason(reason)
        found: DeadJobs = []
        for name in await self._queues(queue):
            mine = 0
            async for letter in self._matching(name, reason, task):
                found.append(DeadJob.open(letter))
                mine += 1
                if mine == limit:
                    break
        found.sort(key=lambda dead: dead.died_at)
        return found[:limit]

    async def show(self, id: str, *, queue: str | None = None) -> DeadJob | None:
        """One dead job, or None if there is none of that id."""
        for name in await self._queues(queue):
            letter = await self._letter(name, id)
            if letter is not None:
                return DeadJob.open(letter)
        return None

    async def replay(
        self,
        ids: str | Iterable[str] | None = None,
        *,
        queue: str | None = None,
        reason: DeadReason | None = None,
        task: str | None = None,
    ) -> Ids:
        """Make dead jobs ready again under their old ids, attempts reset; returns the ids of those that now are.

        Say which: one id, several, or a filter; those that fit all of what is said.
        """
        return await self._move("replay", _replay, ids, queue, reason, task)

    async def purge(
        self,
        ids: str | Iterable[str] | None = None,
        *,
        queue: str | None = None,
        reason: DeadReason | None = None,
        task: str | None = None,
    ) -> Ids:
        """Delete dead letters; returns the ids of those that are gone. Which: as for ``replay``."""
        return await self._move("purge", _purge, ids, queue, reason, task)

    list_sync = sync_version(list)
    show_sync = sync_version(show)
    replay_sync = sync_version(replay)
    purge_sync = sync_version(purge)

    async def _queues(self, queue: str | None) -> Addresses:
        """Where they are: each shard of what has some."""
        if self._only is not None:
            names = [self._only]
        else:
            texts = await self._inspector.addresses() if queue is None else [queue]
            names = [Address(text).owner for text in texts]
        client = self._clients.here()
        return [address for each in await asyncio.gather(*map(client.addresses, names)) for address in each]

    async def _letter(self, address: Address, id: str) -> DeadLetter | None:
        return await self._clients.here().ask(lambda broker: broker.inspector.dead_letter(address, id))

    async def _matching(self, queue: Address, reason: DeadReason | None, task: str | None) -> AsyncIterator[DeadLetter]:
        after = ""
        while letters := await self._clients.here().ask(partial(_page, queue=queue, after=after)):
            for letter in letters:
                if _fits(letter, reason, task):
                    yield letter
            after = letters[-1].cursor

    async def _move(
        self,
        verb: str,
        move: Move,
        ids: str | Iterable[str] | None,
        queue: str | None,
        reason: DeadReason | None,
        task: str | None,
    ) -> Ids:
        _check_reason(reason)
        wanted = None if ids is None else _ids(ids)
        if wanted is None and queue is None and self._only is None and reason is None and task is None:
            raise UsageError(f"{verb}() must say which: an id, several, or a filter by queue, reason or task")
        client = self._clients.here()
        moved: Ids = []
        for name in await self._queues(queue):
            # All are chosen before the first is moved: one that is replayed may die again and stand at the end of the list.
            chosen = await self._choose(name, wanted, reason, task)
            for start in range(0, len(chosen), PAGE):
                page = chosen[start : start + PAGE]
                moved += await client.ask(partial(move, queue=name, ids=page, request=new_request()))
        return moved

    async def _choose(self, queue: Address, wanted: Ids | None, reason: DeadReason | None, task: str | None) -> Ids:
        if wanted is None:
            return [letter.id async for letter in self._matching(queue, reason, task)]
        if reason is None and task is None:
            return wanted
        letters = [await self._letter(queue, id) for id in wanted]
        return [letter.id for letter in letters if letter is not None and _fits(letter, reason, task)]


def _page(broker: Broker, *, queue: Address, after: str) -> Awaitable[Letters]:
    return broker.inspector.dead_letters(queue, after=after, limit=PAGE)


def _replay(broker: Broker, queue: Address, ids: Ids, request: str) -> Awaitable[Ids]:
    return broker.replay(queue, ids, request=request)


def _purge(broker: Broker, queue: Address, ids: Ids, request: str) -> Awaitable[Ids]:
    return broker.purge(queue, ids, request=request)


def _fits(letter: DeadLetter, reason: DeadReason | None, task: str | None) -> bool:
    return (reason is None or letter.reason == reason) and (task is None or letter.task == task)


def _check_reason(reason: str | None) -> None:
    if reason is not None and reason not in get_args(DeadReason):
        raise UsageError(f"reason={reason!r} is no reason; the reasons are {', '.join(get_args(DeadReason))}")


def _ids(ids: str | Iterable[str]) -> Ids:
    wanted = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
    for each in wanted:
        if not isinstance(each, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"ids must be text, not {each!r}")
    return wanted
