"""Openings: create topics, groups and queues before they are used, and recreate them if another program deletes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from millstream.backends.redis import encoding
from millstream.backends.redis.calls import Calls
from millstream.backends.redis.keys import GROUP
from millstream.broker.values import BEGINNING, LogPosition
from millstream.model.address import Address
from millstream.reporting import logs

log = logs.logger("millstream.redis")

GONE = "was missing on the server, with all its data"


class Made(NamedTuple):
    """A group that is new, or had lost its position in the log."""

    group: str
    new: bool
    at: str
    """The entry after which the group continues."""
    left: int
    """Number of entries after that one, or -1 if it is unknown."""


@dataclass(slots=True)
class _Opened:
    """Everything this broker has requested for a topic.

    After a flush, the first broker that notices requests all of it again in one call. A group that is recreated later would
    miss the events that the other groups have settled by then.
    """

    life: str = ""
    """The life of the topic when it was last opened. A topic that is recreated has another life."""
    groups: set[str] = field(default_factory=set)
    keep_ms: int | str = "="
    keep_count: int | str = "="
    followed: bool = False


@dataclass(slots=True)
class _Read:
    """How far the list of topics was read for a prefix."""

    number: str = "0"
    """The number of the last topic that was read."""
    topics: set[str] = field(default_factory=set)
    """Topics whose names start with the prefix."""


class Openings:
    """Opens queues and topics for one broker, and recreates those that the server has lost."""

    def __init__(self, calls: Calls, repaired: Callable[[Address, str], None]) -> None:
        self._run = calls.run
        self._repaired = repaired
        """Called with the address and a description when something was recreated."""
        self._opened: dict[str, _Opened] = {}
        self._declared: set[str] = set()
        """Queues that were declared."""
        self._prefixes: dict[tuple[str, str], _Read] = {}
        """The topics that match each prefix, for every prefix and group opened so far."""

    async def declare(self, queue: Address) -> list[Made]:
        """Create a queue or group if it does not exist. If it is a group that is new or had lost its position, return it in a
        list."""
        if queue.is_queue:
            await self._run("declare", None, "queues", queue)
            self._declared.add(queue)
            return []
        made = await self._open_groups(queue.log, {queue.group: BEGINNING}, await self._prefixed(queue.log))
        return [each for each in made if each.group == queue.group]

    async def reopen(self, address: Address) -> None:
        """Recreate a queue or topic that was opened before, with all its groups and settings."""
        if address.is_queue and address in self._declared:
            await self.declare(address)
        elif not address.is_queue and address.log in self._opened:
            await self._open_groups(address.log, {}, await self._prefixed(address.log))

    async def open_topic(
        self,
        topic: str,
        groups: Mapping[str, LogPosition],
        *,
        keep: float | None = None,
        keep_count: int | None = None,
        followed: bool = False,
    ) -> list[str]:
        keep_ms = "=" if keep is None else max(1, encoding.ms(keep)) if keep else 0
        count = "=" if keep_count is None else keep_count
        made = await self._open_groups(topic, groups, await self._prefixed(topic), keep_ms, count, followed)
        return [each.group for each in made if each.new and each.group in groups]

    async def _prefixed(self, topic: str) -> dict[str, LogPosition]:
        """Add a topic to the list of topics. Return the groups whose prefixes match its name; they start at its beginning."""
        known = (name.decode().partition(">") for name in await self._run("declare", None, "topics", topic))
        return {group: BEGINNING for group, _, prefix in known if topic.startswith(prefix)}

    async def open_prefix(self, prefix: str, group: str, start: LogPosition, known: Collection[str] = ()) -> list[str]:
        before = self._prefixes.get((prefix, group))
        read = before or _Read()
        noted = await self._look("SISMEMBER", prefix, group, read)
        if not noted:
            if before is not None:  # The server was flushed, or the prefix was removed.
                read = _Read()
                await self._look("SISMEMBER", prefix, group, read)
            # Create the groups before the prefix is stored. Afterwards, a process that opens one of these topics creates the
            # group at the beginning.
            position = start if before is None else BEGINNING  # After a loss, the log has only newer events.
            for topic in read.topics.difference(known):
                await self._open_groups(topic, {group: position})
            await self._look("SADD", prefix, group, read)
        self._prefixes[prefix, group] = read
        if noted and len(read.topics) == len(known):  # The caller knows all of them, since topics are never removed.
            return []
        new = sorted(read.topics.difference(known))
        for topic in new:
            await self._open_groups(topic, {group: BEGINNING})
        return new

    async def remove_prefix(self, prefix: str, group: str, request: str = "") -> bool:
        read = _Read()
        known = await self._look("SISMEMBER", prefix, group, read)
        # The prefix is removed after its groups, so that this call can be repeated if it fails. Then the groups are removed a
        # second time, because a process that opened a topic in between still found the prefix.
        for topic in read.topics if known else ():
            await self.remove_group(topic, group)
        removed = await self._look("SREM", prefix, group, read, request)
        self._prefixes.pop((prefix, group), None)
        for topic in read.topics if removed else ():
            await self.remove_group(topic, group)
        return known or removed

    async def _look(self, verb: str, prefix: str, group: str, read: _Read, request: str = "") -> bool:
        """Run ``verb`` on a prefix and return its answer. Also read the new part of the list of topics."""
        name, more = f"{group}>{prefix}", 1
        answer = -1
        while more:
            done, last, more, names = await self._run("declare_prefix", None, name, verb, request, prefix, read.number)
            read.number = last.decode()
            read.topics.update(map(bytes.decode, names))
            if answer < 0:
                answer, verb = done, "SISMEMBER"
        return bool(answer)

    async def _open_groups(
        self,
        topic: str,
        groups: Mapping[str, LogPosition],
        prefixed: Mapping[str, LogPosition] = MappingProxyType({}),
        keep_ms: int | str = "=",
        keep_count: int | str = "=",
        followed: bool = False,
    ) -> list[Made]:
        """Create groups and return those that are new or had lost their position. Lost positions are reported.

        ``"="`` leaves a retention setting unchanged.
        """
        opened = self._opened.setdefault(topic, _Opened())
        asked = _opening({**prefixed, **groups}, keep_ms, keep_count, followed)
        # If the topic was lost, its former groups start at the beginning, because all its events were published after the loss.
        instead = _opening(
            {**prefixed, **groups, **dict.fromkeys(opened.groups, BEGINNING)},
            opened.keep_ms if keep_ms == "=" else keep_ms,
            opened.keep_count if keep_count == "=" else keep_count,
            opened.followed or followed,
        )
        life, *rest = await self._run("open_topic", Address.of_topic(topic), opened.life, len(asked), *asked, *instead)
        opened.life = life.decode()
        opened.groups |= groups.keys()
        opened.keep_ms = opened.keep_ms if keep_ms == "=" else keep_ms
        opened.keep_count = opened.keep_count if keep_count == "=" else keep_count
        opened.followed = opened.followed or followed
        reply = iter(rest)
        made = [
            Made(name.decode(), bool(new), at.decode(), left)
            for name, new, at, left in zip(reply, reply, reply, reply, strict=True)
        ]
        for each in made:
            if not each.new:
                self.tell(Address.of_group(topic, each.group), "had lost its position in the log", each.at, each.left)
        return made

    async def restore(self, queue: Address) -> None:
        """Recreate the consumer groups of a queue or group."""
        if not queue.is_queue:
            await self._open_groups(queue.log, {queue.group: BEGINNING})
        made, waiting = await self._run("restore", queue, GROUP)
        if made:  # Otherwise it was not missing, or another worker has recreated it.
            self.tell(queue, lost_group(queue), "0-0", waiting)

    def tell(self, address: Address, what: str, at: str, left: int) -> None:
        """Report that something was missing and was recreated, and where it continues. Only the process that recreated it
        reports."""
        said = _lost(address, what, at, left)
        log.error("%s", said)
        self._repaired(address, said)

    async def remove_group(self, topic: str, group: str, request: str = "") -> bool:
        """Remove a group with all its data. Return ``False`` if it did not exist."""
        if topic in self._opened:
            self._opened[topic].groups.discard(group)
        return bool(int(await self._run("remove_group", Address.of_group(topic, group), group, request)))


def _opening(groups: Mapping[str, LogPosition], keep_ms: int | str, keep_count: int | str, followed: bool) -> list[int | str]:
    starts = [part for group, start in groups.items() for part in (group, encoding.after(start))]
    return [keep_ms, keep_count, int(followed), *starts]


def lost_group(address: Address) -> str:
    if address.is_queue:
        return "had lost its consumer group"
    return f"had lost the consumer group of its {'dead letters' if address.is_dead else 'retries'}"


def _lost(address: Address, what: str, at: str, left: int) -> str:
    whose = f"queue {address!r}" if address.is_queue else f"group {address.group!r} of topic {address.log!r}"
    where = "from the beginning" if at == "0-0" else f"after entry {at}"
    thing = "job" if address.is_queue else "event"
    if left < 0:
        given = f": all {thing}s from there are delivered, possibly again"
    elif left == 0:
        given = f": no {thing} is waiting there"
    elif left == 1:
        given = f": 1 {thing} is delivered, possibly again"
    else:
        given = f": {left:,} {thing}s are delivered, possibly again"
    return f"{whose} {what}; it was recreated and continues {where}{given}"
