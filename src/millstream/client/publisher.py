"""A publisher: what one client sends to one queue or topic. It chooses the shard, gathers, opens and sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol
from zlib import crc32

from millstream.broker import Broker, Post, Receipt
from millstream.client.opening import Opening, TopicDeclaration, shards_changed, share
from millstream.client.outbox import Outbox
from millstream.client.template import Template
from millstream.errors import BrokerError, BrokerUnavailable, IdConflict, QueueFull, ShardsChanged, TopicFull
from millstream.model.address import Address
from millstream.model.settings import QueueSettings, TopicSettings
from millstream.reporting.reporter import Reporter


class Connection(Protocol):
    """The way to the server."""

    @property
    def where(self) -> str:
        """The server in words, for messages."""
        ...

    @property
    def reporter(self) -> Reporter: ...
    async def broker(self) -> Broker:
        """The broker, open."""
        ...

    def why_silent(self, seconds: float) -> str:
        """Where the server is, and why a call got no answer within this time."""
        ...


class Publisher:
    """Publishes to one queue, or to one topic by its address, in the name of one client."""

    def __init__(
        self,
        address: Address,
        queues: Mapping[str, QueueSettings],
        topics: Mapping[str, TopicDeclaration],
        opening: Opening,
        connection: Connection,
        new_sender: Callable[[], str],
    ) -> None:
        self.address = address
        self._queues = queues
        self._topics = topics
        self._opening = opening
        self._connection = connection
        self._new_sender = new_sender
        self._outboxes: dict[Address, Outbox] = {}
        self._shards: Sequence[Address] = ()
        self._turns: Iterator[int] | None = None
        """Which shard is next for what has no key; they do not all begin with the first."""

    @property
    def shards(self) -> Sequence[Address]:
        """The addresses of the shards that the app declares; empty: none, but a queue may be declared again, with some."""
        if not self._shards:
            settings = self._settings
            if settings is not None and settings.shards:
                self._shards = self.address.shards(settings.shards)
        return self._shards

    def choose(self, template: Template, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes | None, Outbox]:
        """The key of what is sent, and the outbox that it goes into. TypeError if the user's function has no key for it."""
        shards = self._shards or self.shards
        key = None if template.key is None else template.key(args, kwargs)
        if not shards:
            return key, self._outboxes.get(self.address) or self.outbox(self.address)
        if self._turns is None:
            self._turns = count(crc32(self._new_sender().encode()))
        return key, self.outbox(shards[template.shard(key, len(shards), self._turns)])

    def outbox(self, shard: Address) -> Outbox:
        """The one outbox of a shard; without shards, of the address itself."""
        outbox = self._outboxes.get(shard)
        if outbox is None:
            outbox = Outbox(
                shard,
                self._new_sender(),
                partial(self._publish, shard),
                partial(self._failed, shard),
                self._connection.why_silent,
            )
            self._outboxes[shard] = outbox
        return outbox

    def created(self, shard: Address, post: Post, receipt: Receipt) -> bool:
        """Whether a message is new; raises what refused it."""
        if receipt is Receipt.CREATED:
            return True
        if receipt is Receipt.EXISTS:
            # A generated id that exists is this very message: a reply was lost, and it was sent again.
            return post.serial > 0
        if receipt is Receipt.CONFLICT:
            raise IdConflict(f"id {post.id!r} in queue {shard!r} is that of a job of another task than {post.task!r}")
        most, part = self._max_length, "" if shard.shard is None else f", its share, in shard {shard.shard}"
        if not shard.is_queue:
            raise TopicFull(
                f"topic {shard.name!r} keeps max_length={most} events{part} that are not all handled; nothing was written"
            )
        raise QueueFull(f"queue {shard.name!r} holds max_length={most} jobs{part}; nothing was written")

    async def flush(self) -> None:
        """Wait until everything put in so far has its answer."""
        for outbox in list(self._outboxes.values()):
            await outbox.flush()

    @property
    def _settings(self) -> QueueSettings | TopicSettings | None:
        if self.address.is_queue:
            return self._queues.get(self.address)
        topic = self._topics.get(self.address.name)
        return None if topic is None else topic.settings

    @property
    def _max_length(self) -> int | None:
        """The bound that the app declares; of a shard its part of that."""
        settings = self._settings
        return None if settings is None else share(settings.max_length, settings.shards)

    async def _publish(self, shard: Address, posts: list[Post], sender: str) -> list[Receipt]:
        reporter = self._connection.reporter
        try:
            receipts = await self._send(await self._connection.broker(), shard, posts, sender)
        except BrokerError as error:
            self._failed(shard, error)
            raise
        if reporter.troubled:
            reporter.heal("publish", shard)
        return receipts

    def _failed(self, shard: Address, error: BrokerError) -> None:
        """Callers are told by what is raised when their patience ends; this is for those who watch."""
        self._connection.reporter.fail("publish", shard, error, "publishing to %r failed: %s", shard, error)

    async def _send(self, broker: Broker, shard: Address, posts: list[Post], sender: str) -> list[Receipt]:
        shards, most = 0 if shard.shard is None else len(self._shards), self._max_length
        if not shard.is_queue:
            await self._opening.topic(broker, self._topics[shard.name])
        elif shard not in self._opening.queues:
            await self._opening.queue(broker, shard)
        try:
            if shard.is_queue:
                return await broker.publish(shard, posts, sender=sender, max_length=most, shards=shards)
            return await broker.emit(shard.log, posts, sender=sender, max_length=most, shards=shards)
        except ShardsChanged:
            noted = await broker.inspector.shards(self.address)
            if noted == shards:  # somebody looks whether it can be changed: that ends
                raise BrokerUnavailable(
                    f"the number of shards of {self.address!r} at {self._connection.where} is being changed, so nothing was "
                    "written. Publish again when the change is complete"
                ) from None
            raise shards_changed(self.address, noted, shards) from None
