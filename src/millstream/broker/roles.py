"""The verbs of a backend, grouped by their users: producers, consumers, operators, and workers that register themselves.

Each verb is one atomic transition. The `Inspector` reads, and the `ResultStore` waits for results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from millstream.broker.inspector import Inspector, WorkerInfo
from millstream.broker.values import (
    SUSPECT_AFTER,
    Cancellation,
    Claim,
    Entry,
    EntryLocation,
    Followed,
    LogPosition,
    Membership,
    OrderRules,
    Position,
    Post,
    Receipt,
)
from millstream.errors import ShardsInUse
from millstream.model.address import Address
from millstream.model.outcome import Outcome


class Producing(ABC):
    """Declares queues, topics and groups, publishes messages, and cancels messages that are not running."""

    @abstractmethod
    async def declare(self, queue: Address) -> None:
        """Register the queue by name. Idempotent."""

    @abstractmethod
    async def open_topic(
        self,
        topic: str,
        groups: Mapping[str, LogPosition],
        *,
        keep: float | None = None,
        keep_count: int | None = None,
        followed: bool = False,
    ) -> list[str]:
        """Open the topic, and create the missing groups, each at its start position. Returns the names of the new groups.

        A group is a queue with its own address (``Address.of_group``) that also claims from the topic's log. Trimming removes
        an event from the log once every group has settled it and retention no longer keeps it. Claims and ``follow`` trim, at
        most once a second per topic. Retention keeps an event until it is ``keep`` seconds old or ``keep_count`` newer events
        exist. Each of these two settings persists until it is changed: 0 disables it, and None leaves it unchanged (disabled
        for a new topic).

        Without a group, only retention removes events, and ``emit`` trims too. If the topic is also followed, its oldest events
        are dropped at ``max_length``. ``followed`` or the first ``follow`` marks a topic as followed, permanently.

        A group's dead letters can be claimed too, at their own address (``Address.dead``), as messages that carry the letter
        (``decode_letter``). DONE removes the dead letter from the list. RETRY keeps it and delivers it again after the delay,
        with the message of the outcome (without the letter). Any other outcome keeps it, does not deliver it again, and stores
        ``Outcome.letter``, if set, as ``DeadLetter.unhandled``. A dead letter that was replayed, purged or trimmed by age in
        between is no longer delivered, marked or removed. Pausing a group also pauses its dead letters.
        """

    @abstractmethod
    async def open_prefix(self, prefix: str, group: str, start: LogPosition, known: Collection[str] = ()) -> list[str]:
        """Subscribe this group to every topic whose name starts with ``prefix``.

        In existing topics the group starts at ``start``. In topics opened later, and in topics from which it was removed, it
        starts at the beginning. Returns the topics that have the group now, except those in ``known``.
        """

    @abstractmethod
    async def publish(
        self, queue: Address, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        """Accept a batch, in order. Returns one receipt per post. A CREATED message is durable.

        ``shards`` is the number of shards that the caller assumes; 0 means not sharded. If a different number is stored,
        nothing is written and the call raises ShardsChanged. If no number is stored yet, this one is.

        Generated ids are recognised by (sender, serial), even after their job has left nothing behind. A skipped or refused
        serial does not count as accepted. Given ids are recognised while their job exists and for ``id_ttl`` after that.
        ``max_length`` counts ready, running, scheduled and blocked jobs. The calls of one sender must arrive in order.
        """

    @abstractmethod
    async def emit(
        self, topic: str, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        """Accept a batch of events, in order. Returns one receipt per post. Every group receives each CREATED event.

        Ids are recognised as in ``publish``; given ids for ``id_ttl`` from now on. The limit ``max_length`` counts the events
        in the log, the delayed events, and the blocked events of the group that has most of them. At the limit, events are
        FULL. If the topic is followed and has no group, the oldest events of the log are dropped instead. ``shards`` works as
        in ``publish``.
        """

    @abstractmethod
    async def cancel(self, queue: Address, job_id: str, *, request: str = "") -> Cancellation:
        """Cancel a message. Takes O(1).

        CANCELLED means that it was scheduled, blocked or ready and will never run; its ending is ``cancelled``.
        """

    @abstractmethod
    async def cancel_many(self, queue: Address, job_ids: Sequence[str]) -> list[Cancellation]:
        """Cancel a batch. Returns one result per id. Server time grows with the batch: pass at most 200 ids per call."""


class Consuming(ABC):
    """Leases, and the verbs that need one: claim, settle, release."""

    @abstractmethod
    async def join(
        self, queue: Address, consumer: str, lease: float, *, max_consumers: int | None = None, order: OrderRules | None = None
    ) -> int:
        """Create the consumer's lease, and declare the queue. A consumer name is never reused.

        Returns a number that rises with every join at this address, so a later owner of a shard has a larger number. If
        ``max_consumers`` other consumers hold a lease, nothing is written and the call returns 0. Like a claim, a join checks
        overdue leases, so a dead consumer does not count for long. ``order`` applies to all consumers from now on; None leaves
        the rules unchanged.
        """

    @abstractmethod
    async def join_members(self, address: Address, member: str, lease: float) -> Membership:
        """Join the members that share the shards of a base address, for ``lease`` seconds.

        The membership ends early with ``leave``. Joining again or ``renew`` extends it. Nothing is ever claimed at a base
        address.
        """

    @abstractmethod
    def server(self, queue: Address) -> str:
        """Return the node that has this queue in a cluster. Empty if one server has all queues. Makes no call."""

    @abstractmethod
    def locate(self, ref: bytes) -> EntryLocation:
        """Return where a claimed message is stored, as its ``ref`` says. Makes no call. Only the backend parses a ``ref``."""

    @abstractmethod
    async def claim(
        self,
        queue: Address,
        consumer: str,
        count: int,
        *,
        wait: float = 0.0,
        alone: bool = False,
        suspect_after: int = SUSPECT_AFTER,
    ) -> Claim:
        """Take at most ``count`` messages: first released messages and those of lapsed consumers, then ready messages.

        Raises LeaseLost if the consumer has no lease. A paused queue returns no messages. A claim also promotes due messages,
        marks overdue leases, and lapses leases that have been overdue for OVERDUE_SECONDS; with ``count=0`` it does only that.

        With ``wait``, the call first waits up to that many seconds. It stops waiting when a message is published or released,
        when one is scheduled for an earlier time, or when ``nudge`` is called.

        Messages with ``suspect_after`` crashes or more are set aside as suspects. Only a claim with ``alone=True`` returns a
        suspect, one per call.

        Per ordering key, one message is delivered at a time. It has the **turn** from its first claim until it is settled as
        done, dead or expired. It keeps the turn through releases, crashes and retries.

        A message whose key's turn belongs to another message is **blocked**: it leaves the stream or log, is not claimed, and
        is delivered when it gets the turn. The turn goes to the earliest blocked message: in log order in a group, and in a
        queue in the order in which the messages became ready. A replayed message gets its old position among the blocked ones.

        While the message with the turn waits for a retry and ``max_pending`` messages of its key are blocked, further messages
        of the key die (reason ``pending_full``). All messages of a stopped key die (reason ``stopped``).
        """

    @abstractmethod
    async def nudge(self, queue: Address, consumer: str) -> None:
        """End this consumer's waiting claim now, if it has one."""

    @abstractmethod
    async def settle(self, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> int:
        """Store the outcomes of deliveries. Returns how many this call settled; the others were settled before.

        Raises LeaseLost, and changes nothing, if the consumer has no lease.
        """

    @abstractmethod
    async def release(self, queue: Address, consumer: str, refs: Sequence[bytes]) -> int:
        """Return claimed messages to the queue without counting a crash.

        The next claims take them first. Returns how many were released.
        """

    @abstractmethod
    async def recover(self, queue: Address, consumer: str, holding: Collection[bytes]) -> list[Entry]:
        """Return messages that this consumer has claimed but does not hold: claims whose reply was lost."""

    @abstractmethod
    async def renew(self, queue: Address, leases: Mapping[str, float]) -> set[str]:
        """Extend each consumer's lease to the given number of seconds from now.

        Returns the consumers whose lease no longer exists.
        """

    @abstractmethod
    async def leave(self, queue: Address, consumer: str, *, blameless: bool = False) -> int:
        """Give up a lease: the caller's own, or that of a dead child process. Its messages can be claimed immediately.

        Returns the number of messages that it held. With ``blameless`` no crash is counted, because the consumer was ended on
        purpose.
        """

    @abstractmethod
    async def follow(self, topic: str, after: Position | None, count: int, *, wait: float = 0.0) -> Followed:
        """Read a topic's log without a group: at most ``count`` events after a position, in order.

        The events stay in the log for other followers. With ``after=None`` the call returns no events and the position of the
        end of the log.

        Events that left the log before they were read are counted as missed. If the log or its end was lost, that number is
        UNKNOWN, and reading continues with the first entry of the new log, or at the current end of the old one. The call also
        publishes due events and trims. With ``wait``, it first waits up to that many seconds, until an event is published or
        delayed to an earlier time.
        """


class Operating(ABC):
    """Verbs for operators and maintenance: pauses, groups, keys, shards, dead letters.

    ``inspector`` shows what prevents a change.
    """

    @property
    @abstractmethod
    def inspector(self) -> Inspector:
        """The inspector of this backend."""

    @abstractmethod
    async def pause(self, queue: Address) -> None:
        """Stop claims from returning messages until ``resume``. Durable. Publishing continues."""

    @abstractmethod
    async def resume(self, queue: Address) -> None:
        """Undo ``pause``."""

    @abstractmethod
    async def seek(self, group: Address, to: LogPosition, *, request: str = "") -> bool:
        """Move a group's position in the log, backward or forward. Returns False if there is no such group.

        Backward: the group receives earlier events again, as new deliveries, even if a consumer still holds them. If such a
        delivery is retried or dies, it replaces the scheduled or dead message with the same id. Forward: the group keeps the
        messages that it has already claimed.
        """

    @abstractmethod
    async def remove_group(self, group: Address, *, request: str = "") -> bool:
        """Remove a group and its messages; the log keeps nothing for it any more. Returns False if there was no such group."""

    @abstractmethod
    async def remove_prefix(self, prefix: str, group: str, *, request: str = "") -> bool:
        """Undo ``open_prefix``: remove the group and its messages from all topics with this prefix.

        Returns False, and removes nothing, if the prefix was not open.
        """

    @abstractmethod
    async def clear_key(self, queue: Address, key: bytes, *, replay: bool, request: str = "") -> int | None:
        """Clear a stopped key. Returns the number of replayed messages, or None if the key is not stopped.

        With ``replay``, the dead letter that stopped the key (if it still exists) and the messages that died as ``stopped``
        since then become ready again, in order and before anything newer. Without it they stay dead.
        """

    @abstractmethod
    async def note_shards(self, address: Address, shards: int, *, replace: bool = False) -> int:
        """Return the number of shards of a queue, or of a topic by its address. 0 means not sharded.

        If no number is stored, or with ``replace``, ``shards`` is stored and returned.
        """

    @abstractmethod
    async def fence_shard(self, address: Address, shards: int) -> None:
        """Accept publishes to this shard only from publishers that assume this number of shards. 0 rejects all.

        The shard is one of a queue, or one of a topic by its address.
        """

    async def reshard(self, address: Address, shards: int) -> None:
        """Change the number of shards of a queue, or of a topic by its address. 0 removes sharding.

        Raises ShardsInUse, and changes nothing, if a message is ready, running, scheduled, delayed or blocked in an existing
        shard, or dead in a shard that would be removed. Nobody can publish during the check. After an interruption, call it
        again.
        """
        has = await self.inspector.shards(address)
        before, after = address.shards(has), address.shards(shards)
        fenced = [shard for shard in dict.fromkeys([*before, *after]) if shard != address]
        if has == shards:
            await self._finish_reshard(address, fenced, shards)
            return
        for shard in fenced:
            await self.fence_shard(shard, 0)
        if not has:
            await self.note_shards(address, shards, replace=True)  # rejects publishers that know of no shards
        for shard in before:
            busy = await self.what_holds(shard, lasts=shard in after)
            if busy:
                for each in fenced:
                    await self.fence_shard(each, has)
                await self.note_shards(address, has, replace=True)
                raise ShardsInUse(
                    f"cannot change the number of shards: {shard!r} is not empty ({busy}). "
                    "Let workers finish its messages, replay or purge its dead letters, then try again."
                )
        for shard in fenced:
            await self.fence_shard(shard, shards)
        await self.note_shards(address, shards, replace=True)

    async def _finish_reshard(self, address: Address, fenced: Sequence[Address], shards: int) -> None:
        """Complete a reshard to the number that is already stored: no message moves, so publishers are admitted.

        A change from no shards stores the number before it checks the queue. If that call was interrupted, this one checks, and
        may undo the change.
        """
        busy = await self.what_holds(address, lasts=False) if shards else ""
        for shard in fenced:
            await self.fence_shard(shard, 0 if busy else shards)
        if busy:
            await self.note_shards(address, 0, replace=True)
            raise ShardsInUse(
                f"cannot change the number of shards: {address!r} is not empty ({busy}). "
                "Let workers finish its messages, replay or purge its dead letters, then try again."
            )

    async def what_holds(self, shard: Address, *, lasts: bool) -> str:
        """Return what prevents removing or changing a shard, as text: unfinished messages, and dead letters unless the shard
        ``lasts``.

        An empty string means that nothing prevents it.
        """
        if shard.is_queue:
            queue = await self.inspector.queue(shard)
            counts = {word: getattr(queue, word) for word in ("ready", "running", "scheduled", "blocked", "dead")}
        else:
            topic = await self.inspector.topic(shard.log)
            words = ("ready", "running", "scheduled", "blocked", "dead")
            counts = {word: sum(getattr(group, word) for group in topic.groups) for word in words}
            counts["delayed"] = topic.delayed
            if any(group.lag is None for group in topic.groups):
                return "an unknown number of events, because a group was moved"
            if not topic.groups:
                counts["ready"] = topic.length
        if lasts:
            del counts["dead"]
        return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)

    @abstractmethod
    async def promote(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        """Make scheduled jobs ready now, before their due time. Returns the ids that were scheduled and are now ready."""

    @abstractmethod
    async def replay(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        """Make dead letters ready again under their old ids.

        Returns the ids that were dead and are now ready, or blocked behind an older message of their key. Dead letters of a
        stopped key stay dead: use ``clear_key``.
        """

    @abstractmethod
    async def purge(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        """Delete dead letters. Returns the ids that were dead and are now gone."""


class Registering(ABC):
    """The registry of workers."""

    @abstractmethod
    async def register(self, worker: WorkerInfo, ttl: float) -> None:
        """Make a worker visible for ``ttl`` seconds."""

    @abstractmethod
    async def unregister(self, worker_id: str) -> None:
        """Remove a worker from the registry."""
