"""The Broker contract: publish, claim, settle, and what keeps them honest."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum

import msgspec

from millstream.broker.control import ControlChannel
from millstream.broker.inspector import Inspector, WorkerInfo
from millstream.broker.results import ResultStore
from millstream.errors import ShardsInUse
from millstream.model.address import shard_addresses, split_address
from millstream.model.ending import encode_cancelled
from millstream.model.outcome import Outcome

OVERDUE_SECONDS = 1.5
"""A lease that is past its deadline lapses only if it is still overdue this long after it was first seen so."""

SUSPECT_AFTER = 2
"""From this many crashes on a message runs with nothing beside it, so that its neighbours are never blamed."""

CANCELLED_TTL = 600.0
"""Seconds for which the ending of a cancelled job is kept."""


REQUEST_SECONDS = 60.0
"""How long a broker remembers what it answered to a named request."""


class Post(msgspec.Struct, frozen=True, gc=False):
    """One job to publish."""

    id: str
    body: bytes
    """The encoded Message."""
    task: str = ""
    """Compared when a given id is used again."""
    serial: int = 0
    """For a generated id ``<sender>-<serial>``: its number, rising by one per sender and queue. 0: the caller gave the id."""
    delay: float = 0.0
    """Seconds from acceptance until it is due."""
    at: float = 0.0
    """Or the moment it is due, in epoch seconds; 0: use ``delay``."""
    expires: float = 0.0
    """Seconds from acceptance until it must have been claimed; 0: never expires."""
    expires_at: float = 0.0
    """Or the moment it expires, in epoch seconds; 0: use ``expires``."""
    key: bytes | None = None
    """Messages of one key are given one at a time and in this order. None: it is in no order."""
    request: str = ""
    """For a given id: names this request, so that the same post sent again is CREATED again, not EXISTS."""


class OrderRules(msgspec.Struct, frozen=True):
    """What holds at an address for messages that have a key."""

    stop: bool = False
    """When one is dead, what follows of its key dies too (``stopped``), until it is cleared; otherwise the next goes on."""
    max_pending: int = 1000
    """While a key waits for a retry: when so many wait behind it, those that come die (``pending_full``)."""


class Membership(msgspec.Struct, frozen=True):
    """Who shares the shards of an address."""

    members: list[str]
    """Sorted."""
    next_check: float | None = None
    """Seconds until the first of the others is overdue, unless it joins again; None: there are no others."""


LogPosition = str | float
"""Where a group reads on in its topic's log: BEGINNING, END, after an entry by its id, or from a moment in epoch seconds."""

BEGINNING = "beginning"
"""Everything the topic still keeps."""
END = "new"
"""What is published from now on."""

_ENTRY = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def parse_entry(position: str) -> tuple[int, int]:
    """The numbers that are an entry's id: its millisecond, and which of that millisecond's. ValueError: it is none."""
    found = _ENTRY.fullmatch(position)
    if found is None:
        raise ValueError(
            f"{position!r} is no position in a topic's log: {BEGINNING!r}, {END!r}, an entry's id, or epoch seconds"
        )
    ms, seq = int(found[1]), int(found[2] or 0)
    if max(ms, seq) >= 2**64:
        raise ValueError(f"{position!r} is no position in a topic's log: its numbers have 64 bits")
    return ms, seq


def millisecond_of(moment: float) -> int:
    """The millisecond in which a moment lies, as servers count them: never a later one, so that a group that is moved there
    misses nothing that was published after it."""
    return math.floor(moment * 1000 + 0.001)  # a microsecond is more than a float of our days is off


class Receipt(Enum):
    """What became of one Post."""

    CREATED = "created"
    EXISTS = "exists"
    """The id was accepted before, by this call's first sending or an earlier call; nothing was written."""
    FULL = "full"
    """``max_length`` is reached; nothing was written."""
    CONFLICT = "conflict"
    """The given id belongs to another task; nothing was written."""


class Cancellation(Enum):
    """What became of a cancel."""

    CANCELLED = "cancelled"
    RUNNING = "running"
    ENDED = "ended"
    """It is dead, done, cancelled, expired, or was never known."""


def cancelled_by(request: str) -> bytes:
    """The ending that a cancel writes."""
    return encode_cancelled(CANCELLED_TTL, request)


class Entry(msgspec.Struct, gc=False):
    """One claimed message. ``ref`` names the claim in every later verb."""

    ref: bytes
    body: bytes | None
    """None: an entry that another program wrote; its fields are in ``raw``."""
    crashes: int = 0
    """How many consumers died or lapsed while holding it."""
    expires_ms: int = 0
    """Server time in milliseconds at which it expires; 0: never."""
    raw: bytes = b""


def entry_name(ref: bytes) -> str:
    """What people are told of a claim: its entry. A backend may put more into a ref, behind a slash."""
    return ref.partition(b"/")[0].decode("ascii", "replace")


class Claim(msgspec.Struct, gc=False):
    """What a claim brought, and what the caller should know to plan the next one."""

    entries: list[Entry]
    now_ms: int
    """Server time."""
    next_due: float | None = None
    """Seconds until the earliest scheduled message is due; None: nothing is scheduled."""
    paused: bool = False
    suspects: bool = False
    """Suspects are waiting for a claim with ``alone=True``."""


class Position(msgspec.Struct, frozen=True):
    """How far someone who follows a topic has read its log. Made by ``follow`` and only good for it."""

    entry: str
    number: int
    """How many events had been published up to here."""
    life: str = ""
    """Of the log: another one has taken its place if this is another."""
    bell: str = ""
    """What was last rung for delayed events."""


UNKNOWN = -1
"""How many events were missed, if nobody knows but that it may be any number."""


class Followed(msgspec.Struct, gc=False):
    """What was read of a log, and what was not."""

    entries: list[Entry]
    position: Position
    """After the last of them."""
    missed: int
    """How many events before them had left the log when it was read, or UNKNOWN."""
    now_ms: int
    """Server time."""
    next_due: float | None = None
    """Seconds until the earliest delayed event is due; None: none is delayed."""


class Capabilities(msgspec.Struct, frozen=True):
    """What this backend and its server can do."""

    durable: bool
    shared: bool
    """Other processes see the same queues."""
    server: str = ""
    """Name and version, for people."""


class Broker(ABC):
    """A backend: everything that can happen to a job, atomically, and nothing about users' types.

    Any verb may raise BrokerUnavailable (try again later) or BrokerRefused (never). Every verb may be sent again after a lost
    reply: publish recognises serials and given ids, settle and release skip what is settled, the rest is idempotent.

    A verb that reports what it changed takes ``request``, a name that the caller chooses for one request. Sent again under the
    same name within REQUEST_SECONDS, the verb changes nothing more and gives its first answer. Only an answer that reports a
    change is remembered.
    """

    capabilities: Capabilities
    repaired: Callable[[str, str], object] | None = None
    """Told of what others had destroyed and a verb has made again: the address, and what it was."""

    @property
    @abstractmethod
    def inspector(self) -> Inspector:
        """Reading."""

    @property
    @abstractmethod
    def results(self) -> ResultStore:
        """Waiting for endings."""

    @property
    @abstractmethod
    def control(self) -> ControlChannel:
        """Asking a supervisor, and answering."""

    @abstractmethod
    async def open(self) -> None:
        """Connect and check the server. BrokerRefused names what is wrong with it. Idempotent."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of every connection. Idempotent."""

    @abstractmethod
    async def declare(self, queue: str) -> None:
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

        A group is a queue under its own address (``group_address``) that also claims in the topic's log. An event leaves the
        log when every group has settled it and, if the topic has retention, it is ``keep`` seconds old or ``keep_count`` came
        after it: by the first claim or ``follow`` a second after the last time. Each of the two holds until it is said anew; 0
        is none of it, None as it is, which in a new topic is none. While there is no group, only retention ends an event, also
        by an emit, and ``max_length`` if the topic is followed, which ``followed`` or the first ``follow`` says for good.

        A group's dead letters can be claimed too, under an address of their own (``dead_address``), as messages that carry them
        (``letters.open_letter``). One that is settled as done leaves the list, with any other outcome it stays and is given no
        more; until then it is in the list, and one that was replayed, purged or too old meanwhile is not there to be given or
        taken off. They are paused with the group.
        """

    @abstractmethod
    async def open_prefix(self, prefix: str, group: str, start: LogPosition, known: Collection[str] = ()) -> list[str]:
        """Have this group in every topic whose name begins so: in those that there are from ``start`` on, in those that are
        opened later, and where it was removed since, from their beginning. Returns the topics it is in now, but for those in
        ``known``.
        """

    # -- producers ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def publish(
        self, queue: str, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
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
    async def cancel(self, queue: str, job_id: str, *, request: str = "") -> Cancellation:
        """CANCELLED: it was scheduled, blocked or ready and will never run; its ending is ``cancelled``. In O(1)."""

    @abstractmethod
    async def cancel_many(self, queue: str, job_ids: Sequence[str]) -> list[Cancellation]:
        """Cancel a batch, one answer each. Server time grows with the batch: at most 200 ids per call."""

    # -- consumers ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def join(
        self, queue: str, consumer: str, lease: float, *, max_consumers: int | None = None, order: OrderRules | None = None
    ) -> int:
        """Write the consumer's first lease; also declares the queue. A consumer name is never used again.

        Returns a number that rises with every join at this address: a later owner of a shard has a larger one. If
        ``max_consumers`` others have a lease, nothing is written and it returns 0. It checks overdue leases as a claim does, so
        a dead consumer does not count for long. ``order`` holds for all from now on; None leaves it as it is.
        """

    @abstractmethod
    async def join_members(self, address: str, member: str, lease: float) -> Membership:
        """Be one of those who share the shards of an address (the whole's, where nothing is ever claimed): a member for so many
        seconds from now, unless it joins again, is ``renew``ed, or ``leave``s."""

    @abstractmethod
    async def claim(
        self,
        queue: str,
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
    async def nudge(self, queue: str, consumer: str) -> None:
        """End this consumer's own waiting claim now, if there is one."""

    @abstractmethod
    async def settle(self, queue: str, consumer: str, outcomes: Sequence[Outcome]) -> int:
        """End the deliveries. Returns how many were settled by this call; the others had been settled before.

        Raises LeaseLost, changing nothing, if the consumer has no lease.
        """

    @abstractmethod
    async def release(self, queue: str, consumer: str, refs: Sequence[bytes]) -> int:
        """Hand back what was claimed and not finished, without counting a crash; others claim it first. Returns how many."""

    @abstractmethod
    async def recover(self, queue: str, consumer: str, holding: Collection[bytes]) -> list[Entry]:
        """What the server says this consumer has claimed and it does not hold: claims whose reply was lost."""

    @abstractmethod
    async def renew(self, queue: str, leases: Mapping[str, float]) -> set[str]:
        """Extend each consumer's lease by so many seconds from now. Returns those whose lease is gone."""

    @abstractmethod
    async def leave(self, queue: str, consumer: str, *, blameless: bool = False) -> int:
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

    # -- operators ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def pause(self, queue: str) -> None:
        """Claims bring nothing until ``resume``; durable. Producers go on."""

    @abstractmethod
    async def resume(self, queue: str) -> None:
        """Undo ``pause``."""

    @abstractmethod
    async def seek(self, group: str, to: LogPosition, *, request: str = "") -> bool:
        """Move a group's position in the log, back or forward. False: no such group.

        Back: an event that it was given before is given again, as a new delivery, also if somebody holds it; if it is then
        retried or dies, that takes the place of what was scheduled or dead under its id. Forward: what it holds stays its own.
        """

    @abstractmethod
    async def remove_group(self, group: str, *, request: str = "") -> bool:
        """Remove a group with all it holds; the log keeps nothing for it any more. False: there was none."""

    @abstractmethod
    async def remove_prefix(self, prefix: str, group: str, *, request: str = "") -> bool:
        """Undo ``open_prefix``: remove the group from all these topics, with all it holds. False: there was no such prefix, and
        nothing was removed."""

    @abstractmethod
    async def clear_key(self, queue: str, key: bytes, *, replay: bool, request: str = "") -> int | None:
        """Let a stopped key go on. None: it is not stopped.

        With ``replay`` the letter that stopped it, if it is still dead, and those that died as ``stopped`` since become ready
        again, in their order and before anything newer. Otherwise they stay dead. Returns how many were replayed.
        """

    @abstractmethod
    async def note_shards(self, address: str, shards: int, *, anew: bool = False) -> int:
        """How many shards a queue, or a topic by its address, has: what is noted, or if nothing is, or ``anew``, this, which is
        then noted; 0: none."""

    @abstractmethod
    async def fence_shard(self, address: str, shards: int) -> None:
        """From now on only those may publish to this shard, of a queue or of a topic by its address, who say that it is one of
        so many; 0: nobody."""

    async def reshard(self, address: str, shards: int) -> None:
        """Change how many shards a queue, or a topic by its address, has; 0: it has none any more.

        ShardsInUse, changing nothing, if anything is ready, running, scheduled, delayed or blocked in the shards it has, or
        dead in one that would be no more. While it looks nobody can publish; if it is cut off it can be sent again.
        """
        has = await self.inspector.shards(address)
        before, after = shard_addresses(address, has), shard_addresses(address, shards)
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

    async def _finish_reshard(self, address: str, fenced: Sequence[str], shards: int) -> None:
        """It has this number already: nothing moves, so nothing is in the way, and publishers are let in.

        A change from no shards notes the number before it looks. If that call was cut off, this one looks, and may undo it.
        """
        busy = await self.what_holds(address, lasts=False) if shards else ""
        for shard in fenced:
            await self.fence_shard(shard, 0 if busy else shards)
        if busy:
            await self.note_shards(address, 0, anew=True)
            raise ShardsInUse(f"{address!r} has {busy}: the number of shards can only change when nothing is on its way")

    async def what_holds(self, shard: str, *, lasts: bool) -> str:
        """What is on its way in a shard, or dead in one that does not last; nothing: it can go."""
        parts = split_address(shard)
        if parts is None:
            queue = await self.inspector.queue(shard)
            counts = {word: getattr(queue, word) for word in ("ready", "running", "scheduled", "blocked", "dead")}
        else:
            topic = await self.inspector.topic(parts[0])
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
    async def promote(self, queue: str, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        """Make scheduled jobs ready now, whenever they would be due. Returns the ids that were scheduled and are now ready."""

    @abstractmethod
    async def replay(self, queue: str, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        """Make dead letters ready again under their old ids. Returns the ids that were dead and are now ready, or blocked by an
        older one of their key. Those of a stopped key stay dead: ``clear_key``."""

    @abstractmethod
    async def purge(self, queue: str, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        """Delete dead letters. Returns the ids that were dead and are now gone."""

    @abstractmethod
    async def register(self, worker: WorkerInfo, ttl: float) -> None:
        """Make a worker visible for ``ttl`` seconds."""

    @abstractmethod
    async def unregister(self, worker_id: str) -> None:
        """Take a worker off the list."""
