"""Queues that an app declares."""

from __future__ import annotations

from millstream.broker import StoppedKey
from millstream.client import ClientInspector, Clients, clear_key, reshard, sync_version
from millstream.model.address import Address
from millstream.model.ordering import Key
from millstream.model.settings import QueueSettings, integer


class Queue:
    """A queue of an app, made by ``app.queue(…)``. Jobs can be enqueued whether it is paused or not."""

    def __init__(self, settings: QueueSettings, clients: Clients) -> None:
        self.settings = settings
        self._clients = clients

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.settings.name

    @property
    def address(self) -> Address:
        """The queue's address inside Millstream."""
        return Address(self.name)

    @property
    def max_length(self) -> int | None:
        """Maximum number of ready, running, scheduled and blocked jobs. Beyond it ``enqueue`` raises ``QueueFull``. ``None``
        means no limit."""
        return self.settings.max_length

    @property
    def shards(self) -> int:
        """The declared number of shards. 0 means the queue is not sharded."""
        return self.settings.shards

    async def pause(self) -> None:
        """Stop workers from starting jobs of this queue until ``resume()``. Running jobs continue.

        The pause applies to all workers and survives restarts of workers and server. Jobs that a worker has already claimed may
        still start for about 0.25 s.
        """
        await self._clients.here().of_all(self.address, lambda at, broker: broker.pause(at))

    async def resume(self) -> None:
        """Let workers start jobs of this queue again."""
        await self._clients.here().of_all(self.address, lambda at, broker: broker.resume(at))

    async def stopped_keys(self) -> list[StoppedKey]:
        """Return the ordering keys that are stopped (``on_failure="stop"``) until ``clear()``, sorted."""
        return await ClientInspector(self._clients).stopped_keys(self.name)

    async def clear(self, key: Key, *, replay: bool = True) -> int:
        """Resume a stopped ordering key. Return the number of replayed jobs.

        Args:
            key: The ordering key.
            replay: Make the job that stopped the key, and the jobs that died as ``stopped`` after it, ready again. They run in
                their original order, before newer jobs. With ``False`` they stay dead.

        Raises:
            UsageError: The key is not stopped.
        """
        return await clear_key(self._clients.here(), self.address, repr(self), key, replay)

    async def reshard(self, shards: int) -> None:
        """Change the number of shards. Afterwards every app must declare this number, or it gets ``ShardsChanged``.

        The queue must be empty. Nobody can enqueue while it is checked.

        Args:
            shards: New number of shards. 0 means not sharded.

        Raises:
            ShardsInUse: A job is ready, running, scheduled or blocked, a key is stopped, or a shard that would disappear has
                dead letters. Nothing is changed.
        """
        await reshard(self._clients.here(), self.address, integer(shards, "shards", minimum=0))

    pause_sync = sync_version(pause)
    resume_sync = sync_version(resume)
    stopped_keys_sync = sync_version(stopped_keys)
    clear_sync = sync_version(clear)
    reshard_sync = sync_version(reshard)

    def __repr__(self) -> str:
        return f"<queue {self.name!r}>"
