"""Opening: what an app declares is made known on the server before it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from millstream.broker import Broker
from millstream.broker.values import LogPosition
from millstream.errors import ShardsChanged
from millstream.model.address import Address
from millstream.model.settings import QueueSettings, TopicSettings


class Declared(Protocol):
    """A group as an app declares it."""

    @property
    def start(self) -> LogPosition: ...


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
    def start(self) -> LogPosition: ...


class Opening:
    """What of an app's declarations one broker has been told."""

    def __init__(
        self,
        queues: Mapping[str, QueueSettings],
        topics: Mapping[str, TopicDeclaration],
        prefixes: Mapping[Address, PrefixDeclaration],
    ) -> None:
        self._declared = queues
        self._topics = topics
        self._prefixes = prefixes
        self._opened: dict[str, int] = {}
        """How many groups and broadcasts each topic had when it was opened."""
        self._opened_prefixes: set[str] = set()
        self.queues: set[Address] = set()
        """Queues and shards that were made known."""
        self._checked: set[Address] = set()
        """Queues whose number of shards is as it is declared."""

    def begin_anew(self) -> None:
        """For another broker."""
        self._opened.clear()
        self._opened_prefixes.clear()
        self._checked.clear()

    def forget(self, address: Address) -> None:
        """The number of shards of a queue, or of a topic by its address, has changed."""
        if address.is_queue:
            self._checked.discard(address)
            self.queues -= {queue for queue in self.queues if queue.base == address}
        else:
            self._opened.pop(address.name, None)

    def declares(self, queue: Address) -> bool:
        """Whether the app declares this queue, and so knows how many shards it has."""
        return queue in self._declared

    def declared_shards(self, address: Address) -> int:
        """How many shards the app declares of a queue, or of a topic by its address; 0: none."""
        if address.is_queue:
            queue = self._declared.get(address)
            return 0 if queue is None else queue.shards
        topic = self._topics.get(address.name)
        return 0 if topic is None else topic.settings.shards

    async def declarations(self, broker: Broker) -> None:
        """Open all topics, groups and prefixes that are declared by now, but for topics whose number of shards is another: who
        publishes to these or serves them is told, others are not kept from their work."""
        # Lists: more may be declared meanwhile. Topics first: where a group of one begins is its own to say, not a prefix's.
        for topic in list(self._topics.values()):
            try:
                await self.topic(broker, topic)
            except ShardsChanged:
                continue
        for address, prefix in list(self._prefixes.items()):
            if address not in self._opened_prefixes:
                await broker.open_prefix(prefix.prefix, prefix.group, prefix.start)
                self._opened_prefixes.add(address)

    async def to_serve(self, broker: Broker, addresses: Sequence[Address]) -> None:
        """``declarations``; ShardsChanged if one of these has another number of shards than is declared."""
        await self.declarations(broker)
        for name in dict.fromkeys(address.base for address in addresses):
            if name.is_queue:
                await self._check(broker, name)
            elif name.name in self._topics:
                await self.topic(broker, self._topics[name.name])

    async def note(self, broker: Broker, address: Address) -> None:
        """Make known how many shards a queue, or a topic by its address, has, if the app declares some and none are known."""
        declared = self.declared_shards(address)
        if declared:
            with suppress(ShardsChanged):  # it has others, and whoever looks after it means these
                await (self._check(broker, address) if address.is_queue else self.topic(broker, self._topics[address.name]))
                await broker.note_shards(address, declared)  # all may have been flushed since

    async def queue(self, broker: Broker, queue: Address) -> None:
        """Make a queue known, or a shard of one. ShardsChanged."""
        await self._check(broker, queue.base)
        await broker.declare(queue)
        self.queues.add(queue)

    async def topic(self, broker: Broker, topic: TopicDeclaration) -> None:
        """Open a topic, and each of its shards, unless it is as it was when it was opened last. ShardsChanged."""
        settings, followed = topic.settings, len(topic.broadcasts)
        declared = len(topic.subscriptions) + followed
        if self._opened.get(settings.name) == declared:
            return
        starts = {name: subscription.start for name, subscription in topic.subscriptions.items()}
        await open_topic(broker, settings, starts, followed=followed > 0)
        self._opened[settings.name] = declared

    async def _check(self, broker: Broker, queue: Address) -> None:
        if queue not in self._checked:
            await check_shards(broker, queue, self.declared_shards(queue))
            self._checked.add(queue)


async def open_topic(
    broker: Broker, settings: TopicSettings, starts: Mapping[str, LogPosition], *, followed: bool = False
) -> None:
    """Make a topic known with these groups, or each of its shards. ShardsChanged if it has another number of them."""
    address = Address.of_topic(settings.name)
    await check_shards(broker, address, settings.shards)
    for shard in address.shards(settings.shards):
        count = share(settings.keep_count, settings.shards)
        await broker.open_topic(shard.log, starts, keep=settings.keep, keep_count=count, followed=followed)


async def check_shards(broker: Broker, address: Address, declared: int) -> None:
    """ShardsChanged unless a queue, or a topic by its address, has so many shards; what has none and is empty gets them."""
    noted = await broker.inspector.shards(address)
    if noted == declared:
        return
    if not noted:
        held = await broker.what_holds(address, lasts=False)
        if held:
            raise shards_changed(address, 0, declared, f" and {held} in what it is without them")
        noted = await broker.note_shards(address, declared)
    if noted != declared:
        raise shards_changed(address, noted, declared)


def shards_changed(address: Address, noted: int, declared: int, held: str = "") -> ShardsChanged:
    """What there is, what is declared, and the way out."""
    noun, name = "queues" if address.is_queue else "topics", address.name
    return ShardsChanged(
        f"{noun[:-1]} {name!r} has {noted or 'no'} shards{held}, and this app declares {declared or 'none'}: with these, keys "
        f"would change their shards and lose their order. Declare it as it is, or change it when nothing is on its way: "
        f"millstream {noun} reshard {name} {declared}"
    )


def share(most: int | None, shards: int) -> int | None:
    """A shard's part of a number that holds for the whole."""
    return -(-most // shards) if most and shards else most
