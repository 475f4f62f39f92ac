"""Where messages are claimed from: a queue, by its name, or a topic's group, by both names.

To the engine a group is a queue that feeds itself from its topic's log. An address is what tells them apart.
"""

from __future__ import annotations

_MARK = ">"


def group_address(topic: str, group: str) -> str:
    """The address of a topic's group."""
    return f"{topic}{_MARK}{group}"


def topic_address(topic: str) -> str:
    """The address of a topic as such, to which events are published."""
    return f"{topic}{_MARK}"


def prefix_address(prefix: str, group: str) -> str:
    """What stands for the addresses of a group in every topic whose name begins so."""
    return f"{prefix}*{_MARK}{group}"


def split_address(address: str) -> tuple[str, str] | None:
    """A group's topic and name, a topic's name and nothing; None: the address is a queue's."""
    topic, mark, group = address.partition(_MARK)
    return (topic, group) if mark else None


def split_group(address: str) -> tuple[str, str]:
    """A group's topic and name. ValueError: the address is none of a group."""
    parts = split_address(address)
    if parts is None or not parts[1]:
        raise ValueError(f"{address!r} is not a group's address")
    return parts
