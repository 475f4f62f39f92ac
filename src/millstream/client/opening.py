"""Opening: registers an app's declared queues, topics, groups and prefixes on the server before they are used."""

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
    """A group of all topics whose names begin with a prefix, as an app declares it."""

    @property
    def prefix(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def start(self) -> LogPosition: ...


class Opening:
    """Tracks which of an app's declarations have been opened on one broker."""

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
        """Number of groups and broadcasts that each topic had when it was opened."""
        self._opened_prefixes: set[str] = set()
        self.queues: set[Address] = set()
        """Queues and shards registered on the server."""
        self._checked: set[Address] = set()
        """Queues whose number of shards on the server matches the declaration."""

    def restart(self) -> None:
        """Forget everything that was opened, because there is a new broker."""
        self._opened.clear()
        self._opened_prefixes.clear()
        self._checked.clear()

    def forget(self, address: Address) -> None:
        """Forget what was opened of a queue or topic, because its number of shards has changed."""
        if address.is_queue:
            self._checked.discard(address)
            self.queues -= {queue for queue in self.queues if queue.base == address}
        else:
            self._opened.pop(address.name, None)

    def declares(self, queue: Address) -> bool:
        """Return whether the app declares this queue, and with it the number of shards."""
        return queue in self._declared

    def declared_shards(self, address: Address) -> int:
        """Return the declared number of shards of a queue or topic. 0 means not sharded."""
        if address.is_queue:
            queue = self._declared.get(address)
            return 0 if queue is None else queue.shards
        topic = self._topics.get(address.name)
        return 0 if topic is None else topic.settings.shards

    async def declarations(self, broker: Broker) -> None:
        """Open all topics, groups and prefixes declared so far.

        Topics with a different number of shards on the server are skipped. Only callers that publish to such a topic or serve
        it get an error.
        """
        # Copies, because more may be declared during an await. Topics come first: the start of a group is decided by its own
        # declaration, not by a prefix.
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
        """Open all declarations. Raises ShardsChanged if one of these addresses has another number of shards than declared."""
        await self.declarations(broker)
        for name in dict.fromkeys(address.base for address in addresses):
            if name.is_queue:
                await self._check(broker, name)
            elif name.name in self._topics:
                await self.topic(broker, self._topics[name.name])

    async def note(self, broker: Broker, address: Address) -> None:
        """Store the declared number of shards of a queue or topic on the server, unless the server has a number."""
        declared = self.declared_shards(address)
        if declared:
            with suppress(ShardsChanged):  # the server has another number: that one is used
                await (self._check(broker, address) if address.is_queue else self.topic(broker, self._topics[address.name]))
                await broker.note_shards(address, declared)  # a flush may have deleted it

    async def queue(self, broker: Broker, queue: Address) -> None:
        """Register a queue or shard on the server. Raises ShardsChanged."""
        await self._check(broker, queue.base)
        await broker.declare(queue)
        self.queues.add(queue)

    async def topic(self, broker: Broker, topic: TopicDeclaration) -> None:
        """Open a topic or each of its shards, unless it is unchanged since the last call. Raises ShardsChanged."""
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
    """Create a topic, or each of its shards, with these groups. Raises ShardsChanged if the server has another number of
    shards."""
    address = Address.of_topic(settings.name)
    await check_shards(broker, address, settings.shards)
    for shard in address.shards(settings.shards):
        count = share(settings.keep_count, settings.shards)
        await broker.open_topic(shard.log, starts, keep=settings.keep, keep_count=count, followed=followed)


async def check_shards(broker: Broker, address: Address, declared: int) -> None:
    """Raise ShardsChanged unless a queue or topic has the declared number of shards. If it is empty and unsharded, store the
    declared number."""
    noted = await broker.inspector.shards(address)
    if noted == declared:
        return
    if not noted:
        held = await broker.what_holds(address, lasts=False)
        if held:
            raise shards_changed(address, 0, declared, f" and is not empty ({held})")
        noted = await broker.note_shards(address, declared)
    if noted != declared:
        raise shards_changed(address, noted, declared)


def shards_changed(address: Address, noted: int, declared: int, held: str = "") -> ShardsChanged:
    """Return an error with the number of shards on the server, the declared number, and the fix."""
    noun, name = "queues" if address.is_queue else "topics", address.name
    return ShardsChanged(
        f"{noun[:-1]} {name!r} has {noted or 'no'} shards{held}, but this app declares {declared or 'none'}, which would move "
        f"keys to other shards and break their order. Declare {noted or 'no'} shards, or empty the {noun[:-1]} and run: "
        f"millstream {noun} reshard {name} {declared}"
    )


def share(most: int | None, shards: int) -> int | None:
    """Return one shard's share of a limit of the base queue or topic, rounded up."""
    return -(-most // shards) if most and shards else most
