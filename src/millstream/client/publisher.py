"""A publisher: sends the messages of one client to one queue or topic. It chooses the shard, opens the address and sends."""

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
    """The connection to the server."""

    @property
    def where(self) -> str:
        """Description of the server for messages."""
        ...

    @property
    def reporter(self) -> Reporter: ...
    async def broker(self) -> Broker:
        """Return the broker, connected."""
        ...

    def why_silent(self, seconds: float) -> str:
        """Return the text of an error for a call without an answer within this time."""
        ...


class Publisher:
    """Publishes to one queue or topic on behalf of one client."""

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
        """The next shard for a message without a key (round robin, with a random start)."""

    @property
    def shards(self) -> Sequence[Address]:
        """The addresses of the declared shards, or empty if not sharded. A later declaration may add shards, so an empty list
        is looked up again."""
        if not self._shards:
            settings = self._settings
            if settings is not None and settings.shards:
                self._shards = self.address.shards(settings.shards)
        return self._shards

    def choose(self, template: Template, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes | None, Outbox]:
        """Return the ordering key of a message and the outbox for it. Raises TypeError if the user's function gives no key."""
        shards = self._shards or self.shards
        key = None if template.key is None else template.key(args, kwargs)
        if not shards:
            return key, self._outboxes.get(self.address) or self.outbox(self.address)
        if self._turns is None:
            self._turns = count(crc32(self._new_sender().encode()))
        return key, self.outbox(shards[template.shard(key, len(shards), self._turns)])

    def outbox(self, shard: Address) -> Outbox:
        """Return the outbox of a shard, or of the address itself if it is not sharded."""
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
        """Return whether a message is new. Raises IdConflict, QueueFull or TopicFull if it was refused."""
        if receipt is Receipt.CREATED:
            return True
        if receipt is Receipt.EXISTS:
            # A generated id that exists belongs to this message: it was resent after a lost reply.
            return post.serial > 0
        if receipt is Receipt.CONFLICT:
            raise IdConflict(
                f"id {post.id!r} in queue {shard!r} belongs to a job of another task than {post.task!r}: use another id"
            )
        most, part = self._max_length, "" if shard.shard is None else f" (its share) in shard {shard.shard}"
        if not shard.is_queue:
            raise TopicFull(
                f"topic {shard.name!r} is full: it holds max_length={most} events{part}, and not all groups have handled them. "
                "Nothing was published. Try again later, or raise max_length"
            )
        raise QueueFull(
            f"queue {shard.name!r} is full: it holds max_length={most} jobs{part}. Nothing was enqueued. Try again later, or "
            "raise max_length"
        )

    async def flush(self) -> None:
        """Wait until everything sent so far has its answer."""
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
        """The declared maximum length, or the share of one shard."""
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
        """Report a failed call to the log and the observers. Callers get an exception when they time out."""
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
            if noted == shards:  # a reshard is in progress and will end
                raise BrokerUnavailable(
                    f"the number of shards of {self.address!r} at {self._connection.where} is being changed. Nothing was "
                    "published. Publish again when the change is complete"
                ) from None
            raise shards_changed(self.address, noted, shards) from None
