"""A client: one broker on one event loop, and everything an app's users ask of it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from millstream.address import split_address
from millstream.backoff import pauses
from millstream.broker import Broker, Post, Receipt
from millstream.broker.contract import Place
from millstream.client.outbox import PATIENCE_SECONDS, Outbox
from millstream.client.template import Template
from millstream.errors import BrokerError, BrokerUnavailable, IdConflict, QueueFull, TopicFull
from millstream.observers import Observers
from millstream.reporter import Reporter
from millstream.settings import QueueSettings, TopicSettings

log = logging.getLogger("millstream")

T = TypeVar("T")

SENDER_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
SENDER_LENGTH = 11
"""57 random bits: of a million clients of a queue a day, two are alike once in 260,000 days. An id is stored twice per job."""


class Declared(Protocol):
    """A group as an app declares it."""

    @property
    def start(self) -> Place: ...


class TopicDeclaration(Protocol):
    """A topic as an app declares it."""

    @property
    def settings(self) -> TopicSettings: ...
    @property
    def subscriptions(self) -> Mapping[str, Declared]: ...
    @property
    def broadcasts(self) -> Sequence[object]: ...


class PrefixDeclaration(Protocol):
    """A group of topics by the beginnings of their names, as an app declares it."""

    @property
    def prefix(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def start(self) -> Place: ...


class Room(Protocol):
    """Where an app's queues are."""

    async def connect(self) -> Broker:
        """A broker for the running loop, open. Raises what ``Broker.open`` raises."""
        ...


def new_sender() -> str:
    """An incarnation nobody else has."""
    return "".join(secrets.choice(SENDER_ALPHABET) for _ in range(SENDER_LENGTH))


class Client:
    """Belongs to the running loop; connects at first use and closes with the loop (``asyncio.run`` does so too)."""

    def __init__(
        self,
        room: Room,
        queues: Mapping[str, QueueSettings],
        topics: Mapping[str, TopicDeclaration],
        prefixes: Mapping[str, PrefixDeclaration],
        observers: Observers | None = None,
        *,
        clock: Callable[[], float] = time.time,
        new_sender: Callable[[], str] = new_sender,
    ) -> None:
        self.entered = 0
        """How many ``async with`` blocks are open."""
        self.loop = asyncio.get_running_loop()
        self.reporter = Reporter(observers, log)
        self._room = room
        self._queues = queues
        self._topics = topics
        self._prefixes = prefixes
        self._opened: dict[str, int] = {}
        """How many groups and broadcasts each topic had when it was opened."""
        self._opened_prefixes: set[str] = set()
        self._clock = clock
        self._new_sender = new_sender
        self._broker: Broker | None = None
        self._connecting = asyncio.Lock()
        self._outboxes: dict[str, Outbox] = {}
        self._declared: set[str] = set()
        self._until_shutdown: AsyncGenerator[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def broker(self) -> Broker:
        """The broker, open."""
        if self._broker is not None:
            return self._broker
        async with self._connecting:
            if self._broker is None:
                broker = await self._room.connect()
                broker.repaired = self._repaired
                self._opened.clear()
                self._opened_prefixes.clear()
                try:
                    await self._open_declared(broker)
                except BaseException:
                    await broker.close()
                    raise
                self._broker = broker
                # The loop's shutdown closes every async generator begun on it: ours closes the connections.
                self._until_shutdown = self._close_at_shutdown()
                await anext(self._until_shutdown)
            return self._broker

    async def open_declared(self) -> Broker:
        """The broker, open, with all topics, groups and prefixes that the app declares by now."""
        broker = await self.broker()
        await self._open_declared(broker)
        return broker

    async def _open_declared(self, broker: Broker) -> None:
        # Lists: more may be declared meanwhile. Topics first: where a group of one begins is its own to say, not a prefix's.
        for topic in list(self._topics.values()):
            await self._open(broker, topic)
        for address, prefix in list(self._prefixes.items()):
            if address not in self._opened_prefixes:
                await broker.open_prefix(prefix.prefix, prefix.group, prefix.start)
                self._opened_prefixes.add(address)

    def _repaired(self, address: str, what: str) -> None:
        self.reporter.tell("maintenance", address, BrokerError(what))

    async def ask(self, verb: Callable[[Broker], Awaitable[T]]) -> T:
        """Do one thing; while the server is away try again, at most PATIENCE_SECONDS. Every verb may be sent twice."""
        deadline = self.loop.time() + PATIENCE_SECONDS
        for pause in pauses():
            try:
                return await verb(await self.broker())
            except BrokerUnavailable:
                if self.loop.time() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("unreachable: pauses never end")

    # -- sending -----------------------------------------------------------------------------------------------------------

    async def send(self, template: Template, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, bool]:
        """Enqueue one job; its id, and whether this call created it. What goes wrong concerns this job alone."""
        payload = template.pack(args, kwargs)
        outbox = self._outboxes.get(template.queue) or self.outbox(template.queue)
        post = template.post(payload, outbox, self.now_ms())
        answer = await outbox.send(post)
        if isinstance(answer, Exception):
            raise answer
        return post.id, self.created(template.queue, post, answer[0])

    def created(self, queue: str, post: Post, receipt: Receipt) -> bool:
        """Whether the job is new; raises what refused it."""
        if receipt is Receipt.CREATED:
            return True
        if receipt is Receipt.EXISTS:
            # A generated id that exists is this very job: a reply was lost, and it was sent again.
            return post.serial > 0
        if receipt is Receipt.CONFLICT:
            raise IdConflict(f"id {post.id!r} in queue {queue!r} is that of a job of another task than {post.task!r}")
        parts = split_address(queue)
        if parts is not None:
            most = self._topics[parts[0]].settings.max_length
            raise TopicFull(f"topic {parts[0]!r} keeps max_length={most} events that are not all handled; nothing was written")
        raise QueueFull(f"queue {queue!r} holds max_length={self.max_length(queue)} jobs; nothing was written")

    def outbox(self, queue: str) -> Outbox:
        """This client's one outbox for a queue."""
        outbox = self._outboxes.get(queue)
        if outbox is None:
            outbox = Outbox(queue, self._new_sender(), partial(self._publish, queue), partial(self._unpublished, queue))
            self._outboxes[queue] = outbox
        return outbox

    def now_ms(self) -> int:
        """This machine's wall clock, shown to people."""
        return int(self._clock() * 1000)

    def max_length(self, queue: str) -> int | None:
        """The bound the app declared for a queue."""
        settings = self._queues.get(queue)
        return None if settings is None else settings.max_length

    async def _publish(self, queue: str, posts: list[Post], sender: str) -> list[Receipt]:
        try:
            broker = self._broker or await self.broker()
            parts = split_address(queue)
            if parts is not None:
                receipts = await self._emit(broker, parts[0], posts, sender)
            else:
                if queue not in self._declared:
                    await broker.declare(queue)
                    self._declared.add(queue)
                receipts = await broker.publish(queue, posts, sender=sender, max_length=self.max_length(queue))
        except BrokerError as error:
            self._unpublished(queue, error)
            raise
        if self.reporter.troubled:
            self.reporter.heal("publish", queue)
        return receipts

    def _unpublished(self, queue: str, error: BrokerError) -> None:
        """Callers are told by what is raised when their patience ends; this is for those who watch."""
        self.reporter.fail("publish", queue, error, "publishing to %r failed: %s", queue, error)

    async def _emit(self, broker: Broker, name: str, posts: list[Post], sender: str) -> list[Receipt]:
        topic = self._topics[name]
        await self._open(broker, topic)
        return await broker.emit(name, posts, sender=sender, max_length=topic.settings.max_length)

    async def _open(self, broker: Broker, topic: TopicDeclaration) -> None:
        """Unless it is as it was when it was opened last."""
        settings, followed = topic.settings, len(topic.broadcasts)
        declared = len(topic.subscriptions) + followed
        if self._opened.get(settings.name) == declared:
            return
        starts = {name: subscription.start for name, subscription in topic.subscriptions.items()}
        await broker.open_topic(
            settings.name, starts, keep=settings.keep, keep_count=settings.keep_count, followed=followed > 0
        )
        self._opened[settings.name] = declared

    # -- closing -----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for what is being sent, then let go of every connection. Idempotent."""
        for outbox in list(self._outboxes.values()):
            await outbox.flush()
        async with self._connecting:
            self.entered = 0
            broker, self._broker = self._broker, None
            if broker is not None:
                await broker.close()
        if self._until_shutdown is not None:
            guard, self._until_shutdown = self._until_shutdown, None
            await guard.aclose()

    def never_left(self) -> None:
        """It was entered, and its loop or its app is gone."""
        error = ResourceWarning("an app was entered (`async with app`) and never left")
        self.reporter.tell("unclosed", None, error)

    def close_soon(self) -> None:
        """Close from anywhere: another thread, or a finalizer."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._begin_to_close)

    def _begin_to_close(self) -> None:
        if self._broker is not None:
            self._closing = self.loop.create_task(self.close())

    async def _close_at_shutdown(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._until_shutdown = None
            await self.close()
