"""Where messages are claimed from: a queue, by its name, a topic's group, by both names, or a group's dead letters.

To the engine a group is a queue that feeds itself from its topic's log, and its dead letters are a queue that it feeds. An
address is what tells them apart.
"""

from __future__ import annotations

_MARK = ">"
_DEAD = f"{_MARK}dead"


def group_address(topic: str, group: str) -> str:
    """The address of a topic's group."""
    return f"{topic}{_MARK}{group}"


def topic_address(topic: str) -> str:
    """The address of a topic as such, to which events are published."""
    return f"{topic}{_MARK}"


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
