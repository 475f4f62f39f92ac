"""A group of a topic, in the hands of whoever looks after it."""

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
    """A group of a topic: where it stands, and what can be done about it."""

    def __init__(self, topic: str, name: str, clients: Clients) -> None:
        self.topic = topic
        self.name = name
        self.address = Address.of_group(topic, name)
        self._clients = clients
        self.dead = DeadLetters(clients, queue=self.address)
        """Its dead letters; replayed ones go to this group only."""

    async def rewind(self, to: datetime | str = BEGINNING) -> None:
        """Be given again what the topic still keeps, from a moment on, after an entry, or from the beginning. Of an ordered
        topic: not after an entry, since each shard has its own."""
        await self._seek(to)

    async def skip(self, to: datetime | str = END) -> None:
        """Pass over what it has not been given, up to a moment, an entry, or all."""
        await self._seek(to)

    async def pause(self) -> None:
        """No event of this group is handled until ``resume``, and no dead letter, on any worker, after a restart too."""
        await self._clients.here().of_all(self.address, lambda at, broker: broker.pause(at))

    async def resume(self) -> None:
        """Undo ``pause``."""
        await self._clients.here().of_all(self.address, lambda at, broker: broker.resume(at))

    async def remove(self) -> None:
        """Remove it, with all that waits or is dead in it: the topic keeps nothing for it any more."""
        request = new_request()
        await self._clients.here().of_all(self.address, lambda at, broker: broker.remove_group(at, request=request))

    async def stopped_keys(self) -> list[StoppedKey]:
        """The keys that go on only when they are cleared (``on_failure="stop"``), sorted."""
        return await ClientInspector(self._clients).stopped_keys(self.address)

    async def clear(self, key: Key, *, replay: bool = True) -> int:
        """Let a stopped key go on. UsageError if it is not stopped.

        With ``replay`` the event that stopped it and those that died as ``stopped`` since are ready again, in their order and
        before newer ones; otherwise they stay dead. Returns how many were replayed.
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
