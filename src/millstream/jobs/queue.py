"""A queue, as an app declares it."""

from __future__ import annotations

from millstream.broker import StoppedKey
from millstream.client import ClientInspector, Clients, clear_key, reshard, sync_version
from millstream.model.address import Address
from millstream.model.ordering import Key
from millstream.model.settings import QueueSettings, integer


class Queue:
    """A named queue of this app. Workers serve it; producers send to it whether it is paused or not."""

    def __init__(self, settings: QueueSettings, clients: Clients) -> None:
        self.settings = settings
        self._clients = clients

    @property
    def name(self) -> str:
        """Its name."""
        return self.settings.name

    @property
    def address(self) -> Address:
        """Where its jobs are, as the engine names it."""
        return Address(self.name)

    @property
    def max_length(self) -> int | None:
        """How many ready, running, scheduled and blocked jobs it takes before ``enqueue`` raises QueueFull; None: no bound."""
        return self.settings.max_length

    @property
    def shards(self) -> int:
        """How many it is declared with; 0: none."""
        return self.settings.shards

    async def pause(self) -> None:
        """No job of this queue starts until ``resume``, on any worker, after a restart too. What runs goes on.

        A worker learns of it with its next claim: jobs that it holds already may start for about 0.25 s more.
        """
        await self._clients.here().of_all(self.address, lambda at, broker: broker.pause(at))

    async def resume(self) -> None:
        """Undo ``pause``."""
        await self._clients.here().of_all(self.address, lambda at, broker: broker.resume(at))

    async def stopped_keys(self) -> list[StoppedKey]:
        """The keys of ordered jobs that go on only when they are cleared (``on_failure="stop"``), sorted."""
        return await ClientInspector(self._clients).stopped_keys(self.name)

    async def clear(self, key: Key, *, replay: bool = True) -> int:
        """Let a stopped key go on. UsageError if it is not stopped.

        With ``replay`` the job that stopped it and those that died as ``stopped`` since are ready again, in their order and
        before newer ones; otherwise they stay dead. Returns how many were replayed.
        """
        return await clear_key(self._clients.here(), self.address, repr(self), key, replay)

    async def reshard(self, shards: int) -> None:
        """Change how many shards it has; 0: none. Every app must then declare that number; those that declare another one are
        refused (ShardsChanged).

        ShardsInUse, changing nothing, if a job is ready, running, scheduled or blocked, or dead in a shard that would be no
        more, or a key is stopped. While it looks nobody can enqueue.
        """
        await reshard(self._clients.here(), self.address, integer(shards, "shards", minimum=0))

    pause_sync = sync_version(pause)
    resume_sync = sync_version(resume)
    stopped_keys_sync = sync_version(stopped_keys)
    clear_sync = sync_version(clear)
    reshard_sync = sync_version(reshard)

    def __repr__(self) -> str:
        return f"<queue {self.name!r}>"
