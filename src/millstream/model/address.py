"""Addresses: where messages are published to and claimed from.

Internally, a group is a queue that takes its messages from the log of a topic, and the dead letters of a group are one more
queue. The address tells them apart. It is one string, which is also how users and the server name them:

========================  =====================================================================
``mail``                  a queue
``orders/``               a topic, to which events are published
``orders/billing``        a group of that topic
``orders/billing/dead``   the dead letters of that group, which a handler claims
``mail:2``                a shard of a queue; likewise ``orders:2/`` and ``orders:2/billing``
``orders.*/billing``      the group ``billing`` of every topic whose name begins with ``orders.``
========================  =====================================================================

Names of queues, topics and groups cannot contain the characters ``/``, ``:`` and, for topics, ``*``.
"""

from __future__ import annotations

from typing import Self

_GROUP_MARK = "/"
_DEAD = f"{_GROUP_MARK}dead"
_SHARD_MARK = ":"
_PREFIX_MARK = "*"


class Address(str):
    """The address of a queue, a topic, a group or a group's dead letters, or of one shard of it. ``Address(name)`` is a queue.

    It is a string, so that the hot path can use it in key names and dict lookups without conversion. Only this class parses it.
    """

    __slots__ = ()

    @classmethod
    def of_topic(cls, topic: str) -> Self:
        """Return the address of a topic. For a shard, pass the name of its log."""
        return cls(f"{topic}{_GROUP_MARK}")

    @classmethod
    def of_group(cls, topic: str, group: str) -> Self:
        """Return the address of a group of a topic."""
        return cls(f"{topic}{_GROUP_MARK}{group}")

    @classmethod
    def of_prefix(cls, prefix: str, group: str) -> Self:
        """Return the address that stands for a group in every topic whose name begins with a prefix."""
        return cls(f"{prefix}{_PREFIX_MARK}{_GROUP_MARK}{group}")

    # -- kind --------------------------------------------------------------------------------------------------------------

    @property
    def is_queue(self) -> bool:
        """Whether this is the address of a queue, and not of a topic, a group or dead letters."""
        return _GROUP_MARK not in self

    @property
    def is_group(self) -> bool:
        """Whether this is the address of a group, and not of its topic or its dead letters."""
        return self.count(_GROUP_MARK) == 1 and not self.endswith(_GROUP_MARK)

    @property
    def is_dead(self) -> bool:
        """Whether this is the address of a group's dead letters."""
        return self.count(_GROUP_MARK) == 2

    def check_group(self) -> None:
        """Raise ``ValueError`` unless this is the address of a group."""
        if not self.is_group:
            raise ValueError(f"{str(self)!r} is not the address of a group; write it as 'topic/group'")

    # -- parts -------------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The declared name of the queue or topic."""
        return self.log.partition(_SHARD_MARK)[0]

    @property
    def log(self) -> str:
        """The name of the topic's log, with the shard if there is one. For a queue: the name of its stream."""
        return str(self).partition(_GROUP_MARK)[0]

    @property
    def group(self) -> str:
        """The name of the group; empty for a queue or topic."""
        return self.partition(_GROUP_MARK)[2].partition(_GROUP_MARK)[0]

    @property
    def shard(self) -> int | None:
        """The shard index, or ``None`` if this is not the address of a shard."""
        _, mark, shard = self.log.partition(_SHARD_MARK)
        return int(shard) if mark else None

    # -- related addresses -------------------------------------------------------------------------------------------------

    @property
    def base(self) -> Address:
        """The address without the shard: the base queue, topic or group."""
        log, mark, rest = self.partition(_GROUP_MARK)
        return Address(log.partition(_SHARD_MARK)[0] + mark + rest)

    @property
    def sharded(self) -> Address:
        """The address that is sharded: the queue itself, or the topic of a group."""
        return self if self.is_queue else Address.of_topic(self.log)

    @property
    def dead(self) -> Address:
        """The address of this group's dead letters."""
        return Address(self + _DEAD)

    @property
    def owner(self) -> Address:
        """The group that has these dead letters. Any other address is its own owner."""
        return Address(self.removesuffix(_DEAD)) if self.is_dead else self

    def shards(self, count: int) -> list[Address]:
        """Return the addresses of all shards. With 0 shards, return the address itself."""
        if not count:
            return [self]
        return [self.at_shard(shard) for shard in range(count)]

    def at_shard(self, shard: int) -> Address:
        """Return the address of one shard."""
        log, mark, rest = self.partition(_GROUP_MARK)
        return Address(f"{log}{_SHARD_MARK}{shard}{mark}{rest}")

    @property
    def spoken(self) -> str:
        """The address for log lines and messages."""
        return f"the dead letters of {str(self.owner)!r}" if self.is_dead else repr(self)


def write_address(value: object) -> str:
    """Encode an address: an ``enc_hook`` for msgspec."""
    if isinstance(value, Address):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded")


def read_address(wanted: type, value: object) -> object:
    """Decode an address: a ``dec_hook`` for msgspec."""
    if wanted is Address:
        return Address(value)
    raise NotImplementedError(f"{wanted.__name__} cannot be decoded")
