"""Addresses: where messages are published to and claimed from.

To the engine a group is a queue that feeds itself from its topic's log, and its dead letters are a queue that it feeds. An
address tells them apart. It is one text, which is also how users and the server name it:

========================  =====================================================================
``mail``                  a queue
``orders/``               a topic, to which events are published
``orders/billing``        a group of that topic
``orders/billing/dead``   the dead letters of that group, where a handler claims them
``mail:2``                a shard of a queue; so ``orders:2/`` and ``orders:2/billing``
``orders.*/billing``      the group of every topic whose name begins with ``orders.``
========================  =====================================================================

No name that a user gives contains a mark.
"""

from __future__ import annotations

from typing import Self

_GROUP_MARK = "/"
_DEAD = f"{_GROUP_MARK}dead"
_SHARD_MARK = ":"
_PREFIX_MARK = "*"


class Address(str):
    """The address of a queue, a topic, a group or a group's dead letters, of the whole or of one shard. ``Address(name)`` is a
    queue's.

    It is a string, so that it names keys and finds entries of dicts on the hot path at no cost. Its text is read here only.
    """

    __slots__ = ()

    @classmethod
    def of_topic(cls, topic: str) -> Self:
        """Where the events of a topic are published to; of a shard, by the name of its log."""
        return cls(f"{topic}{_GROUP_MARK}")

    @classmethod
    def of_group(cls, topic: str, group: str) -> Self:
        """Where a topic's group claims its events."""
        return cls(f"{topic}{_GROUP_MARK}{group}")

    @classmethod
    def of_prefix(cls, prefix: str, group: str) -> Self:
        """What stands for the group in every topic whose name begins so."""
        return cls(f"{prefix}{_PREFIX_MARK}{_GROUP_MARK}{group}")

    # -- what it is --------------------------------------------------------------------------------------------------------

    @property
    def is_queue(self) -> bool:
        """Whether it is the address of a queue, not of a topic or what belongs to one."""
        return _GROUP_MARK not in self

    @property
    def is_group(self) -> bool:
        """Whether it is the address of a group as such: neither its topic's nor that of its dead letters."""
        return self.count(_GROUP_MARK) == 1 and not self.endswith(_GROUP_MARK)

    @property
    def is_dead(self) -> bool:
        """Whether dead letters are claimed there."""
        return self.count(_GROUP_MARK) == 2

    def check_group(self) -> None:
        """ValueError unless it is the address of a group as such."""
        if not self.is_group:
            raise ValueError(f"{str(self)!r} is not a group's address")

    # -- its parts ---------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name that a user gave the queue, or the topic."""
        return self.log.partition(_SHARD_MARK)[0]

    @property
    def log(self) -> str:
        """The name of the topic's log: the topic's own, or that of its shard. Of a queue: the name of its stream."""
        return str(self).partition(_GROUP_MARK)[0]

    @property
    def group(self) -> str:
        """The name of the group; empty if it is not the address of one."""
        return self.partition(_GROUP_MARK)[2].partition(_GROUP_MARK)[0]

    @property
    def shard(self) -> int | None:
        """Which shard it is; None: the whole."""
        _, mark, shard = self.log.partition(_SHARD_MARK)
        return int(shard) if mark else None

    # -- what is near it ---------------------------------------------------------------------------------------------------

    @property
    def base(self) -> Address:
        """The address of the queue, topic or group that this is a shard of; itself if it is the whole."""
        log, mark, rest = self.partition(_GROUP_MARK)
        return Address(log.partition(_SHARD_MARK)[0] + mark + rest)

    @property
    def sharded(self) -> Address:
        """The address that has the shards: a queue's own, or that of a group's topic."""
        return self if self.is_queue else Address.of_topic(self.log)

    @property
    def dead(self) -> Address:
        """Where the dead letters of this group are claimed."""
        return Address(self + _DEAD)

    @property
    def owner(self) -> Address:
        """The group whose dead letters are claimed here; of any other address itself."""
        return Address(self.removesuffix(_DEAD)) if self.is_dead else self

    def shards(self, count: int) -> list[Address]:
        """The addresses of all its shards; without shards (0) the address itself."""
        if not count:
            return [self]
        return [self.at_shard(shard) for shard in range(count)]

    def at_shard(self, shard: int) -> Address:
        """The address of one of its shards."""
        log, mark, rest = self.partition(_GROUP_MARK)
        return Address(f"{log}{_SHARD_MARK}{shard}{mark}{rest}")

    @property
    def spoken(self) -> str:
        """The address as people are told of it."""
        return f"the dead letters of {str(self.owner)!r}" if self.is_dead else repr(self)


def write_address(value: object) -> str:
    """``enc_hook`` of msgspec for what holds addresses."""
    if isinstance(value, Address):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded")


def read_address(wanted: type, value: object) -> object:
    """``dec_hook`` of msgspec for what holds addresses."""
    if wanted is Address:
        return Address(value)
    raise NotImplementedError(f"{wanted.__name__} cannot be decoded")
