"""Where messages are claimed from: a queue, by its name, a topic's group, by both names, or a group's dead letters.

To the engine a group is a queue that feeds itself from its topic's log, and its dead letters are a queue that it feeds. An
address is what tells them apart. A queue or topic with shards is one of each per shard, named ``name:0``, ``name:1`` and so on.
"""

from __future__ import annotations

_MARK = "/"
_DEAD = f"{_MARK}dead"
_SHARD = ":"
"""No name that a user gives may contain it."""


def shard_name(name: str, shard: int) -> str:
    """What one shard of a queue or topic is called."""
    return f"{name}{_SHARD}{shard}"


def shard_addresses(address: str, shards: int) -> list[str]:
    """The addresses of all shards of a queue, or of a group; without shards (0) the address itself."""
    if not shards:
        return [address]
    name, mark, rest = address.partition(_MARK)
    return [shard_name(name, shard) + mark + rest for shard in range(shards)]


def base_name(address: str) -> str:
    """The address of the queue, topic or group that this is a shard of; itself if it is none."""
    name, mark, rest = address.partition(_MARK)
    return name.partition(_SHARD)[0] + mark + rest


def shard_of(address: str) -> int | None:
    """Which shard it is; None: none."""
    _, mark, shard = address.partition(_MARK)[0].partition(_SHARD)
    return int(shard) if mark else None


def group_address(topic: str, group: str) -> str:
    """The address of a topic's group."""
    return f"{topic}{_MARK}{group}"


def topic_address(topic: str) -> str:
    """The address of a topic as such, to which events are published."""
    return f"{topic}{_MARK}"


def topic_at(address: str) -> str:
    """The name of the topic whose address, or whose group's address, this is."""
    return address.partition(_MARK)[0]


def prefix_address(prefix: str, group: str) -> str:
    """What stands for the addresses of a group in every topic whose name begins so."""
    return f"{prefix}*{_MARK}{group}"


def dead_address(group: str) -> str:
    """Where the dead letters of a group are claimed, by the group's address."""
    return group + _DEAD


def is_dead_address(address: str) -> bool:
    """Whether dead letters are claimed there."""
    return address.count(_MARK) == 2


def whose_dead(address: str) -> str:
    """The address of the group whose dead letters are claimed at this one."""
    return address.removesuffix(_DEAD)


def split_address(address: str) -> tuple[str, str] | None:
    """A group's topic and name, also of its dead letters; a topic's name and nothing; None: the address is a queue's."""
    topic, mark, rest = address.partition(_MARK)
    return (topic, rest.partition(_MARK)[0]) if mark else None


def spoken(address: str) -> str:
    """An address as people are told of it."""
    return f"the dead letters of {whose_dead(address)!r}" if is_dead_address(address) else repr(address)


def split_group(address: str) -> tuple[str, str]:
    """A group's topic and name. ValueError: the address is none of a group."""
    parts = split_address(address)
    if parts is None or not parts[1] or is_dead_address(address):
        raise ValueError(f"{address!r} is not a group's address")
    return parts
