"""Dead letters: jobs and events that failed for good, stored with their reason until they are replayed, purged or too old."""

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
"""Dead letters per call, so that no call blocks the server for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unhandled:
    """Why the ``on_dead`` handler of a group gave up on a dead letter. The letter stays in the list."""

    reason: DeadReason
    """Why the handler gave up."""
    error_type: str
    """The name of the exception's class in the last attempt."""
    error: str
    """The exception's message."""
    traceback: str
    """The formatted traceback; empty if the handler did not raise."""
    attempts: int
    """How often the handler was called, including the last attempt."""
    crashes: int
    """How often a worker died while it was running the handler."""
    failures: tuple[Attempt, ...] = ()
    """The last ten failed attempts of the handler, oldest first."""

    @classmethod
    def open(cls, letter: DeadLetter) -> Unhandled:
        """Return the readable form of a stored record."""
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
    """A dead letter: a dead job or event, with the reason and the last error."""

    id: str
    """The id of the job or event."""
    task: str
    """The name of the task. For an event: the name of the topic."""
    queue: str
    """The name of the queue. For an event: ``topic/group``."""
    reason: DeadReason
    """Why it is dead, for example ``"exhausted"`` or ``"timeout"``."""
    error_type: str
    """The name of the exception's class."""
    error: str
    """The exception's message."""
    traceback: str
    """The formatted traceback of the last attempt; empty if it did not raise."""
    attempts: int
    """Number of attempts, including the last one."""
    crashes: int
    """How often a worker died while it was running this job or event."""
    enqueued_at: datetime | None
    """When it was enqueued or published, by the clock of that machine. ``None`` if the entry is not a Millstream message."""
    died_at: datetime
    """When it became a dead letter, by the server's clock."""
    entry: str = ""
    """The id of its stream entry."""
    order_key: bytes | None = None
    """Its ordering key, or ``None``."""
    shard: int | None = None
    """The index of its shard, or ``None`` if the queue or topic is not sharded."""
    failures: tuple[Attempt, ...] = ()
    """Its last ten failed attempts, oldest first."""
    unhandled: Unhandled | None = None
    """Why the ``on_dead`` handler gave up on it. ``None`` if it did not, or if there is no such handler."""

    @classmethod
    def open(cls, letter: DeadLetter) -> DeadJob:
        """Return the readable form of a stored dead letter."""
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
    """Replays or purges dead letters of one queue. Returns the ids of those that it found."""

    def __call__(self, broker: Broker, queue: Address, ids: Ids, request: str) -> Awaitable[Ids]: ...


class DeadLetters:
    """Lists, shows, replays and purges dead letters.

    ``app.dead`` covers all queues and groups, ``group.dead`` one group.
    """

    def __init__(self, clients: Clients, *, queue: str | None = None) -> None:
        """``queue``: limit everything to this queue or group."""
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
        """Return the dead letters that match every filter, oldest first.

        Args:
            queue: Name of a queue, or ``topic/group``.
            reason: Why they are dead, for example ``"timeout"``.
            task: Name of the task. For events: of the topic.
            limit: Maximum number of dead letters; 100 by default. ``None`` means no limit.

        Raises:
            UsageError: ``reason`` is not one of the known reasons.
        """
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
        """Return one dead letter by id, or ``None``. ``queue`` limits the search to one queue or ``topic/group``."""
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
        """Make dead jobs and events ready again and return their ids. They keep their ids; their attempts start again at 1.

        At least one argument is required. Dead letters that match all arguments are replayed.

        Args:
            ids: One id or several.
            queue: Name of a queue, or ``topic/group``.
            reason: Why they are dead, for example ``"timeout"``.
            task: Name of the task. For events: of the topic.

        Raises:
            UsageError: No argument is given, or ``reason`` is not one of the known reasons.
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
        """Delete dead letters and return their ids. The arguments are those of ``replay``."""
        return await self._move("purge", _purge, ids, queue, reason, task)

    list_sync = sync_version(list)
    show_sync = sync_version(show)
    replay_sync = sync_version(replay)
    purge_sync = sync_version(purge)

    async def _queues(self, queue: str | None) -> Addresses:
        """Return the addresses to search, with every shard of a sharded queue or topic."""
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
            raise UsageError(f"{verb}() needs to know which dead letters: pass ids, or filter by queue, reason or task")
        client = self._clients.here()
        moved: Ids = []
        for name in await self._queues(queue):
            # Choose all before moving the first: a replayed job may die again and reappear at the end of the list.
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
        raise UsageError(f"reason={reason!r} is unknown; the reasons are {', '.join(get_args(DeadReason))}")


def _ids(ids: str | Iterable[str]) -> Ids:
    wanted = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
    for each in wanted:
        if not isinstance(each, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"ids must be text, not {each!r}")
    return wanted
