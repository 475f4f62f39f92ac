"""Groups: operations on one consumer group of a topic."""

from __future__ import annotations

from datetime import datetime

from millstream.broker import StoppedKey
from millstream.broker.values import BEGINNING, END
from millstream.client import ClientInspector, Clients, clear_key, new_request, seek, sync_version
from millstream.jobs.dead import DeadLetters
from millstream.model.address import Address
from millstream.model.ordering import Key
from millstream.options import log_position


class Group:
    """A group of a topic: pause, rewind, skip or remove it. ``topic.group(name)`` and ``app.group(topic, name)`` return it."""

    def __init__(self, topic: str, name: str, clients: Clients) -> None:
        self.topic = topic
        """The name of the topic."""
        self.name = name
        """The name of the group."""
        self.address = Address.of_group(topic, name)
        """The address ``topic/group``."""
        self._clients = clients
        self.dead = DeadLetters(clients, queue=self.address)
        """The dead letters of this group. Replayed events go to this group only."""

    async def rewind(self, to: datetime | str = BEGINNING) -> None:
        """Move the group back, so that it receives stored events again.

        Args:
            to: ``"beginning"`` (default), a datetime with a time zone, or an entry id (the group continues after that entry).
                An ordered topic does not take an entry id, because each shard has its own entries.

        Raises:
            UsageError: ``to`` is invalid, or the group does not exist.
        """
        await self._seek(to)

    async def skip(self, to: datetime | str = END) -> None:
        """Move the group forward, so that it does not receive the events before the new position.

        Args:
            to: ``"new"`` (default, skips all stored events), a datetime with a time zone, or an entry id (the group continues
                after that entry). An ordered topic does not take an entry id.

        Raises:
            UsageError: ``to`` is invalid, or the group does not exist.
        """
        await self._seek(to)

    async def pause(self) -> None:
        """Stop workers from handling events and dead letters of this group until ``resume()``. Running handlers continue.

        The pause applies to all workers and survives restarts of workers and server.
        """
        await self._clients.here().of_all(self.address, lambda at, broker: broker.pause(at))

    async def resume(self) -> None:
        """Let workers handle events of this group again."""
        await self._clients.here().of_all(self.address, lambda at, broker: broker.resume(at))

    async def remove(self) -> None:
        """Remove the group with its waiting events and dead letters. The topic stops keeping events for it."""
        request = new_request()
        await self._clients.here().of_all(self.address, lambda at, broker: broker.remove_group(at, request=request))

    async def stopped_keys(self) -> list[StoppedKey]:
        """Return the ordering keys that are stopped (``on_failure="stop"``) until ``clear()``, sorted."""
        return await ClientInspector(self._clients).stopped_keys(self.address)

    async def clear(self, key: Key, *, replay: bool = True) -> int:
        """Resume a stopped ordering key. Return the number of replayed events.

        Args:
            key: The ordering key.
            replay: Make the event that stopped the key, and the events that died as ``stopped`` after it, ready again. They are
                handled in their original order, before newer events. With ``False`` they stay dead.

        Raises:
            UsageError: The key is not stopped.
        """
        return await clear_key(self._clients.here(), self.address, repr(self), key, replay)

    rewind_sync = sync_version(rewind)
    skip_sync = sync_version(skip)
    pause_sync = sync_version(pause)
    resume_sync = sync_version(resume)
    remove_sync = sync_version(remove)
    stopped_keys_sync = sync_version(stopped_keys)
    clear_sync = sync_version(clear)

    async def _seek(self, to: datetime | str) -> None:
        await seek(self._clients.here(), self.address, repr(self), log_position(to, "to"))

    def __repr__(self) -> str:
        return f"<group {self.name!r} of topic {self.topic!r}>"
