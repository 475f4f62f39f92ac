"""What a backend does, by who needs it: producers, consumers, operators, and workers that want to be seen.

Each verb is one whole, atomic transition. Reading is the `Inspector`'s, waiting for results the `ResultStore`'s.
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
    """Makes queues, topics and groups known, adds messages, and takes back those that wait."""

    @abstractmethod
    async def declare(self, queue: Address) -> None:
        """Make the queue known by name. Idempotent."""

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
        """Make the topic known, and those of its groups that do not exist, each at its place; the names of these.

        A group is a queue under its own address (``Address.of_group``) that also claims in the topic's log. An event leaves the
        log when every group has settled it and, if the topic has retention, it is ``keep`` seconds old or ``keep_count`` came
        after it: by the first claim or ``follow`` a second after the last time. Each of the two holds until it is said anew; 0
        is none of it, None as it is, which in a new topic is none. While there is no group, only retention ends an event, also
        by an emit, and ``max_length`` if the topic is followed, which ``followed`` or the first ``follow`` says for good.

        A group's dead letters can be claimed too, under an address of their own (``Address.dead``), as messages that carry them
        (``decode_letter``). One that is settled as done leaves the list. With RETRY it stays, and is given again after the
        delay, with the message of the outcome (its letter left out). With any other outcome it stays, is given no more, and
        ``Outcome.letter``, if there is one, is kept with it as ``DeadLetter.unhandled``. One that was replayed, purged or too
        old meanwhile is not there to be given, marked or taken off. They are paused with the group.
        """

    @abstractmethod
    async def open_prefix(self, prefix: str, group: str, start: LogPosition, known: Collection[str] = ()) -> list[str]:
        """Have this group in every topic whose name begins so: in those that there are from ``start`` on, in those that are
        opened later, and where it was removed since, from their beginning. Returns the topics it is in now, but for those in
        ``known``.
        """

    @abstractmethod
    async def publish(
        self, queue: Address, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        """Accept a batch, in order; one receipt each. What is CREATED survives.

        With ``shards`` the address is one of so many; if that is not what is noted there, nothing is written and it raises
        ShardsChanged. What is noted nowhere yet is noted now.

        Generated ids are recognised by (sender, serial) even after their job left nothing; a serial skipped or refused is not
        taken for accepted. Given ids are recognised while their job lives and ``id_ttl`` after. ``max_length`` counts ready,
        running, scheduled and blocked jobs. One sender's calls must arrive in order.
        """

    @abstractmethod
    async def emit(
        self, topic: str, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        """Accept a batch of events, in order; one receipt each. Each group is given what is CREATED.

        Ids are recognised as by ``publish``, given ones for ``id_ttl`` from now on. At ``max_length`` events, in the log,
        delayed, or blocked in the group where most are, they are FULL; but if the topic is followed and has no group, the
        oldest of the log are dropped for them. ``shards`` as for ``publish``.
        """

    @abstractmethod
    async def cancel(self, queue: Address, job_id: str, *, request: str = "") -> Cancellation:
        """CANCELLED: it was scheduled, blocked or ready and will never run; its ending is ``cancelled``. In O(1)."""

    @abstractmethod
    async def cancel_many(self, queue: Address, job_ids: Sequence[str]) -> list[Cancellation]:
        """Cancel a batch, one answer each. Server time grows with the batch: at most 200 ids per call."""


class Consuming(ABC):
    """Leases, and what is done under one: claim, settle, hand back."""

    @abstractmethod
    async def join(
        self, queue: Address, consumer: str, lease: float, *, max_consumers: int | None = None, order: OrderRules | None = None
    ) -> int:
        """Write the consumer's first lease; also declares the queue. A consumer name is never used again.

        Returns a number that rises with every join at this address: a later owner of a shard has a larger one. If
        ``max_consumers`` others have a lease, nothing is written and it returns 0. It checks overdue leases as a claim does, so
        a dead consumer does not count for long. ``order`` holds for all from now on; None leaves it as it is.
        """

    @abstractmethod
    async def join_members(self, address: Address, member: str, lease: float) -> Membership:
        """Be one of those who share the shards of an address (the whole's, where nothing is ever claimed): a member for so many
        seconds from now, unless it joins again, is ``renew``ed, or ``leave``s."""

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
        """Take at most ``count`` messages: what was released or belonged to a lapsed consumer first, then what is ready.

        Raises LeaseLost if the consumer has no lease. Takes nothing from a paused queue. Promotes what is due, marks overdue
        leases and lapses those overdue for OVERDUE_SECONDS; ``count=0`` does only that. With ``wait``, first waits until
        something was published, released or scheduled earlier, ``nudge`` is called, or so many seconds passed. Messages with
        ``suspect_after`` crashes or more are set aside, and come only with ``alone=True``, one at a time.

        Of the messages of one key one is out at a time: it has the **turn** from its first claim on until it is settled as
        done, dead or expired, through hand-backs, crashes, and retries, which come back with the turn. A message whose key's
        turn is another's is **blocked**: it leaves the stream, or the log, holds no claim, and is given when the turn comes to
        it, the first published first. In a group that is the order of the log, in a queue that in which they became ready.
        What is replayed takes its old place among those that wait. While the one with the turn waits for a retry and
        ``max_pending`` of its key are blocked, what comes dies (``pending_full``). Of a stopped key all that comes dies
        (``stopped``).
        """

    @abstractmethod
    async def nudge(self, queue: Address, consumer: str) -> None:
        """End this consumer's own waiting claim now, if there is one."""

    @abstractmethod
    async def settle(self, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> int:
        """End the deliveries. Returns how many were settled by this call; the others had been settled before.

        Raises LeaseLost, changing nothing, if the consumer has no lease.
        """

    @abstractmethod
    async def release(self, queue: Address, consumer: str, refs: Sequence[bytes]) -> int:
        """Hand back what was claimed and not finished, without counting a crash; others claim it first. Returns how many."""

    @abstractmethod
    async def recover(self, queue: Address, consumer: str, holding: Collection[bytes]) -> list[Entry]:
        """What the server says this consumer has claimed and it does not hold: claims whose reply was lost."""

    @abstractmethod
    async def renew(self, queue: Address, leases: Mapping[str, float]) -> set[str]:
        """Extend each consumer's lease by so many seconds from now. Returns those whose lease is gone."""

    @abstractmethod
    async def leave(self, queue: Address, consumer: str, *, blameless: bool = False) -> int:
        """Give up a lease, one's own or a dead child's: what it held can be claimed at once. Returns how much that was.

        ``blameless``: it was ended on purpose, no crash is counted.
        """

    @abstractmethod
    async def follow(self, topic: str, after: Position | None, count: int, *, wait: float = 0.0) -> Followed:
        """Read on in a topic's log without a group: at most ``count`` events after a position, in order. They stay where they
        are, for all who follow. None: nothing yet, but the position of the end, to read from now on.

        What had left the log before it was read is counted. If the log or its end was lost it is UNKNOWN how much that is, and
        reading goes on with the first entry of the new log, or where the old one ends now. Publishes what is due, and trims.
        With ``wait``, first waits until something was published or delayed to an earlier moment, or so many seconds passed.
        """


class Operating(ABC):
    """What a person or an upkeep changes: pauses, groups, keys, shards, dead letters.

    ``inspector`` is needed to see what stands in the way of a change.
    """

    @property
    @abstractmethod
    def inspector(self) -> Inspector:
        """Reading."""

    @abstractmethod
    async def pause(self, queue: Address) -> None:
        """Claims bring nothing until ``resume``; durable. Producers go on."""

    @abstractmethod
    async def resume(self, queue: Address) -> None:
        """Undo ``pause``."""

    @abstractmethod
    async def seek(self, group: Address, to: LogPosition, *, request: str = "") -> bool:
        """Move a group's position in the log, back or forward. False: no such group.

        Back: an event that it was given before is given again, as a new delivery, also if somebody holds it; if it is then
        retried or dies, that takes the place of what was scheduled or dead under its id. Forward: what it holds stays its own.
        """

    @abstractmethod
    async def remove_group(self, group: Address, *, request: str = "") -> bool:
        """Remove a group with all it holds; the log keeps nothing for it any more. False: there was none."""

    @abstractmethod
    async def remove_prefix(self, prefix: str, group: str, *, request: str = "") -> bool:
        """Undo ``open_prefix``: remove the group from all these topics, with all it holds. False: there was no such prefix, and
        nothing was removed."""

    @abstractmethod
    async def clear_key(self, queue: Address, key: bytes, *, replay: bool, request: str = "") -> int | None:
        """Let a stopped key go on. None: it is not stopped.

        With ``replay`` the letter that stopped it, if it is still dead, and those that died as ``stopped`` since become ready
        again, in their order and before anything newer. Otherwise they stay dead. Returns how many were replayed.
        """

    @abstractmethod
    async def note_shards(self, address: Address, shards: int, *, anew: bool = False) -> int:
        """How many shards a queue, or a topic by its address, has: what is noted, or if nothing is, or ``anew``, this, which is
        then noted; 0: none."""

    @abstractmethod
    async def fence_shard(self, address: Address, shards: int) -> None:
        """From now on only those may publish to this shard, of a queue or of a topic by its address, who say that it is one of
        so many; 0: nobody."""

    async def reshard(self, address: Address, shards: int) -> None:
        """Change how many shards a queue, or a topic by its address, has; 0: it has none any more.

        ShardsInUse, changing nothing, if anything is ready, running, scheduled, delayed or blocked in the shards it has, or
        dead in one that would be no more. While it looks nobody can publish; if it is cut off it can be sent again.
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
            await self.note_shards(address, shards, anew=True)  # who knows of no shards is kept out by it
        for shard in before:
            busy = await self.what_holds(shard, lasts=shard in after)
            if busy:
                for each in fenced:
                    await self.fence_shard(each, has)
                await self.note_shards(address, has, anew=True)
                raise ShardsInUse(f"{shard!r} has {busy}: the number of shards can only change when nothing is on its way")
        for shard in fenced:
            await self.fence_shard(shard, shards)
        await self.note_shards(address, shards, anew=True)

    async def _finish_reshard(self, address: Address, fenced: Sequence[Address], shards: int) -> None:
        """It has this number already: nothing moves, so nothing is in the way, and publishers are let in.

        A change from no shards notes the number before it looks. If that call was cut off, this one looks, and may undo it.
        """
        busy = await self.what_holds(address, lasts=False) if shards else ""
        for shard in fenced:
            await self.fence_shard(shard, 0 if busy else shards)
        if busy:
            await self.note_shards(address, 0, anew=True)
            raise ShardsInUse(f"{address!r} has {busy}: the number of shards can only change when nothing is on its way")

    async def what_holds(self, shard: Address, *, lasts: bool) -> str:
        """What is on its way in a shard, or dead in one that does not last; nothing: it can go."""
        if shard.is_queue:
            queue = await self.inspector.queue(shard)
            counts = {word: getattr(queue, word) for word in ("ready", "running", "scheduled", "blocked", "dead")}
        else:
            topic = await self.inspector.topic(shard.log)
            words = ("ready", "running", "scheduled", "blocked", "dead")
            counts = {word: sum(getattr(group, word) for group in topic.groups) for word in words}
            counts["delayed"] = topic.delayed
            if any(group.lag is None for group in topic.groups):
                return "events of which the server does not know how many they are, since a group was moved"
            if not topic.groups:
                counts["ready"] = topic.length
        if lasts:
            del counts["dead"]
        return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)

    @abstractmethod
    async def promote(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        """Make scheduled jobs ready now, whenever they would be due. Returns the ids that were scheduled and are now ready."""

    @abstractmethod
    async def replay(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        """Make dead letters ready again under their old ids. Returns the ids that were dead and are now ready, or blocked by an
        older one of their key. Those of a stopped key stay dead: ``clear_key``."""

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
        """Take a worker off the list."""
