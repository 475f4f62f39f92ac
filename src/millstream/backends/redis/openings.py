"""Openings: topics, groups and queues are made known before they are used, and made again if other hands destroy them."""

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

GONE = "was gone from the server, with all that it held"


class Made(NamedTuple):
    """A group that is new, or had lost its place in the log."""

    group: str
    new: bool
    at: str
    """After which entry it goes on."""
    left: int
    """How many entries are behind that one; -1: nobody knows."""


@dataclass(slots=True)
class _Opened:
    """What this broker has asked of a topic. If all was flushed, whoever notices first asks for all of it again, at once: a
    group that is made later would miss what the others have settled meanwhile."""

    life: str = ""
    """Which the topic had then."""
    groups: set[str] = field(default_factory=set)
    keep_ms: int | str = "="
    keep_count: int | str = "="
    followed: bool = False


@dataclass(slots=True)
class _Read:
    """How far the list of topics was read for a prefix."""

    number: str = "0"
    """Of the last topic that was looked at."""
    topics: set[str] = field(default_factory=set)
    """Those whose names begin with the prefix."""


class Openings:
    """What one broker has opened, and how it finds that it was lost."""

    def __init__(self, calls: Calls, repaired: Callable[[Address, str], None]) -> None:
        self._run = calls.run
        self._repaired = repaired
        """Told of what was made again: the address, and what it was."""
        self._opened: dict[str, _Opened] = {}
        self._declared: set[str] = set()
        """Queues that were made known."""
        self._prefixes: dict[tuple[str, str], _Read] = {}
        """Those that were opened before, each with its group: which topics they are in."""

    async def declare(self, queue: Address) -> list[Made]:
        """Make a queue or group known; of a group, whether it is new or had lost its place."""
        if queue.is_queue:
            await self._run("declare", None, "queues", queue)
            self._declared.add(queue)
            return []
        made = await self._open_groups(queue.log, {queue.group: BEGINNING}, await self._prefixed(queue.log))
        return [each for each in made if each.group == queue.group]

    async def reopen(self, address: Address) -> None:
        """Make a queue or topic that was opened before known again, with all that was asked of it."""
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
        """Make a topic known; the groups it has because of how its name begins. It is new to them, so they get all of it."""
        known = (name.decode().partition(">") for name in await self._run("declare", None, "topics", topic))
        return {group: BEGINNING for group, _, prefix in known if topic.startswith(prefix)}

    async def open_prefix(self, prefix: str, group: str, start: LogPosition, known: Collection[str] = ()) -> list[str]:
        before = self._prefixes.get((prefix, group))
        read = before or _Read()
        noted = await self._look("SISMEMBER", prefix, group, read)
        if not noted:
            if before is not None:  # all was flushed, or it was removed
                read = _Read()
                await self._look("SISMEMBER", prefix, group, read)
            # Before it is noted: whoever opens one of these topics afterwards would make the group at the beginning.
            position = start if before is None else BEGINNING  # if it was lost, what is there came since
            for topic in read.topics.difference(known):
                await self._open_groups(topic, {group: position})
            await self._look("SADD", prefix, group, read)
        self._prefixes[prefix, group] = read
        if noted and len(read.topics) == len(known):  # all of them are known: topics stay
            return []
        new = sorted(read.topics.difference(known))
        for topic in new:
            await self._open_groups(topic, {group: BEGINNING})
        return new

    async def remove_prefix(self, prefix: str, group: str, request: str = "") -> bool:
        read = _Read()
        known = await self._look("SISMEMBER", prefix, group, read)
        # Known until it is in no topic, so that this can be sent again; then again: who opened one meanwhile still found it.
        for topic in read.topics if known else ():
            await self.remove_group(topic, group)
        removed = await self._look("SREM", prefix, group, read, request)
        self._prefixes.pop((prefix, group), None)
        for topic in read.topics if removed else ():
            await self.remove_group(topic, group)
        return known or removed

    async def _look(self, verb: str, prefix: str, group: str, read: _Read, request: str = "") -> bool:
        """Do this to a prefix, and read on in the list of topics. What the verb answered."""
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
        """The groups that are new or had lost their position, which is told. "=": retention stays as it is."""
        opened = self._opened.setdefault(topic, _Opened())
        asked = _opening({**prefixed, **groups}, keep_ms, keep_count, followed)
        # What was there before begins at the beginning, wherever it once began: all that is there came after it was lost.
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
                self.tell(Address.of_group(topic, each.group), "had lost its place in the log", each.at, each.left)
        return made

    async def restore(self, queue: Address) -> None:
        """Make the consumer groups of a queue or group again."""
        if not queue.is_queue:
            await self._open_groups(queue.log, {queue.group: BEGINNING})
        made, waiting = await self._run("restore", queue, GROUP)
        if made:  # if not, it was not gone, or another worker was quicker
            self.tell(queue, lost_group(queue), "0-0", waiting)

    def tell(self, address: Address, what: str, at: str, left: int) -> None:
        """That other hands destroyed something, once, by whoever made it again; and where it goes on."""
        said = _lost(address, what, at, left)
        log.error("%s", said)
        self._repaired(address, said)

    async def remove_group(self, topic: str, group: str, request: str = "") -> bool:
        """Remove a group with all it holds. False: there was none."""
        if topic in self._opened:
            self._opened[topic].groups.discard(group)
        return bool(int(await self._run("remove_group", Address.of_group(topic, group), group, request)))


def _opening(groups: Mapping[str, LogPosition], keep_ms: int | str, keep_count: int | str, followed: bool) -> list[int | str]:
    starts = [part for group, start in groups.items() for part in (group, encoding.after(start))]
    return [keep_ms, keep_count, int(followed), *starts]


def lost_group(address: Address) -> str:
    if address.is_queue:
        return "had lost its consumer group"
    return f"had lost the consumer group of {'its dead letters' if address.is_dead else 'what it tries again'}"


def _lost(address: Address, what: str, at: str, left: int) -> str:
    whose = f"queue {address!r}" if address.is_queue else f"group {address.group!r} of topic {address.log!r}"
    where = "from the beginning" if at == "0-0" else f"after entry {at}"
    thing = "job" if address.is_queue else "event"
    if left < 0:
        given = ": what follows is given, again if it was before"
    elif left == 0:
        given = ", where nothing waits"
    elif left == 1:
        given = f": 1 {thing} is given, again if it was before"
    else:
        given = f": {left:,} {thing}s are given, again if they were before"
    return f"{whose} {what}; it is made again and goes on {where}{given}"
