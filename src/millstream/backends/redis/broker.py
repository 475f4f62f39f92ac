"""RedisBroker: each method of the contract as a call of a script, one batch per call."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from millstream.backends.redis import encoding
from millstream.backends.redis.calls import Calls
from millstream.backends.redis.connect import Locate, parse_info, server_name
from millstream.backends.redis.control import RedisControlChannel
from millstream.backends.redis.inspector import RedisInspector
from millstream.backends.redis.keys import GROUP, RELEASED, SUSPECTS, channel
from millstream.backends.redis.link import CALL_TIMEOUT, Link, ServerChanged
from millstream.backends.redis.openings import GONE, Openings, lost_group
from millstream.backends.redis.replication import Confirmations
from millstream.backends.redis.results import RedisResults
from millstream.backends.redis.topology import Node, make_topology
from millstream.backends.redis.waiting import OWN_LINKS, SharedWait, WaitingLink
from millstream.broker import (
    Broker,
    Cancellation,
    Capabilities,
    Claim,
    ControlChannel,
    Entry,
    EntryLocation,
    Followed,
    Inspector,
    Membership,
    OrderRules,
    Position,
    Post,
    Receipt,
    ResultStore,
    WorkerInfo,
)
from millstream.broker.values import CANCELLED_TTL, SUSPECT_AFTER, LogPosition, NotReplicated, cancelled_by
from millstream.errors import BrokerError, BrokerRefused, BrokerUnavailable, LeaseLost
from millstream.model.address import Address, write_address
from millstream.model.outcome import DONE, Kind, Outcome
from millstream.reporting import logs

log = logs.logger("millstream.redis")

SHORTEST_BLOCK = 0.01
"""Minimum seconds for a blocking command. 0 means no limit, and Redis before 7.0.8 treats 0.001 in the same way."""

RENEWAL_TIMEOUT = 1.0
"""Timeout of a renewal in seconds, or a third of the lease if that is longer. Leases are renewed every third of their duration,
retries come after 0.5 s, and a lease lapses 1.5 s after its end. So one dead connection never costs a lease, however short."""

LOOKS = 50
"""Maximum pages that one claim checks for lost data. The next claim continues."""


class RedisBroker(Broker):
    """The Broker contract on Redis or Valkey: one server, a primary behind Sentinel, or a cluster. Belongs to one event
    loop."""

    def __init__(
        self,
        url: str | Locate,
        *,
        namespace: str = "millstream",
        id_ttl: float = 86_400.0,
        dead_max_age: float = 7 * 86_400.0,
        dead_max_count: int = 100_000,
        replicas: int = 0,
        replicas_timeout: float = 1.0,
        where: str = "",
    ) -> None:
        self.capabilities = Capabilities(durable=True, shared=True)
        self._id_ttl_ms = encoding.ms(id_ttl)
        self._dead_max_age_ms = encoding.ms(dead_max_age)
        self._dead_max_count = dead_max_count
        self._topology = make_topology(url, where)
        self._replicas = replicas
        self._unconfirmed = 0
        """Number of settled outcomes that too few replicas acknowledged in time, since the last acknowledged one."""
        self._claiming: dict[tuple[str, str], WaitingLink] = {}
        self._shared_waits: dict[Node, SharedWait] = {}
        self._following: set[WaitingLink] = set()
        self._free: dict[Node, list[WaitingLink]] = {}
        """Links for following on which nobody waits now."""
        self._looks: dict[tuple[str, str], float] = {}
        """Maximum seconds of a consumer's next wait, so that it checks the leases of other consumers in time."""
        self._look_first: set[tuple[str, str]] = set()
        """Consumers whose next claim first checks for data that another program deleted."""
        self._claimed_from: dict[tuple[str, str], str] = {}
        """The run id of the server from which each consumer has claimed."""
        self._doubtful: dict[tuple[str, str], set[bytes] | None] = {}
        """Messages that a consumer claimed before its server changed, or ``None`` if these may be all that it holds."""
        self._cannot_nudge = False
        """The user may not run CLIENT UNBLOCK, so waits must end by themselves when a message is due."""
        self._ordered: set[str] = set()
        """Addresses where messages with ordering keys may have been claimed."""
        self._sharded: set[str] = set()
        """Shards that were published to. After a flush, the number of shards is stored again for their base queue or topic."""
        self._unsure: set[str] = set()
        """Addresses where a publish may have reached an empty server, so that they must be opened again."""
        self._joined: set[str] = set()
        """Addresses that were joined before. If the server does not know one of them, it was lost."""
        self._calls = Calls(namespace, self._topology)
        self._confirmations = Confirmations(self._calls, replicas, replicas_timeout)
        self._run, self._names = self._calls.run, self._calls.names
        self._openings = Openings(self._calls, self._tell)
        self._channel = channel(namespace, secrets.token_hex(8))
        self._results = RedisResults(self._topology.subscriber, self._run, self._channel)
        self._inspector = RedisInspector(self._calls, self._topology)
        self._control = RedisControlChannel(self._run)

    def set_clock(self, now: float | None) -> None:
        """Make every script use this time (epoch seconds) instead of the server's clock. ``None`` undoes it. For tests."""
        self._calls.clock_ms = 0 if now is None else encoding.ms(now)

    @property
    def inspector(self) -> Inspector:
        return self._inspector

    @property
    def results(self) -> ResultStore:
        return self._results

    @property
    def control(self) -> ControlChannel:
        return self._control

    async def open(self) -> None:
        await self._topology.open()
        if self._replicas:
            await self._topology.check_replicas(self._replicas)
        commands = self._calls.node(None).commands
        await commands.ready()
        if self._replicas and not commands.run_id:
            raise BrokerRefused(
                f"replicas={self._replicas} needs the run id of the server, but this user may not run INFO: grant +info"
            )
        self.capabilities = Capabilities(durable=True, shared=True, server=server_name(commands.server))
        policy = await self._eviction_policy(commands)
        if policy not in (None, "noeviction"):
            log.warning(
                "the server's maxmemory-policy is %r: when it is full, it may delete jobs. Set it to noeviction.", policy
            )

    async def close(self) -> None:
        await self._results.close()
        await self._topology.close()
        await self._confirmations.close()
        for shared in self._shared_waits.values():
            await shared.close()
        for waiting in (*self._claiming.values(), *self._following):
            await waiting.close()
        self._claiming.clear()
        self._following.clear()
        self._free.clear()

    async def _eviction_policy(self, commands: Link) -> str | None:
        """Return the eviction policy, or ``None`` if the user may not read it."""
        with contextlib.suppress(BrokerRefused):
            if policy := parse_info(await commands.call("INFO", "memory")).get("maxmemory_policy"):
                return policy
        with contextlib.suppress(BrokerError):
            if answer := await commands.call("CONFIG", "GET", "maxmemory-policy"):
                return str(answer[1], "ascii")
        return None

    async def declare(self, queue: Address) -> None:
        await self._openings.declare(queue)

    async def open_topic(
        self,
        topic: str,
        groups: Mapping[str, LogPosition],
        *,
        keep: float | None = None,
        keep_count: int | None = None,
        followed: bool = False,
    ) -> list[str]:
        return await self._openings.open_topic(topic, groups, keep=keep, keep_count=keep_count, followed=followed)

    async def open_prefix(self, prefix: str, group: str, start: LogPosition, known: Collection[str] = ()) -> list[str]:
        return await self._openings.open_prefix(prefix, group, start, known)

    async def remove_prefix(self, prefix: str, group: str, *, request: str = "") -> bool:
        return await self._openings.remove_prefix(prefix, group, request)

    # -- producers ---------------------------------------------------------------------------------------------------------

    async def publish(
        self, queue: Address, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        if not posts:
            return []
        if not self._replicas:
            return await self._publish(queue, posts, sender, max_length, shards)
        server = await self._calls.run_id(queue)
        receipts = await self._publish(queue, posts, sender, max_length, shards)
        await self._confirmations.confirm(queue, server)
        return receipts

    async def _publish(
        self, queue: Address, posts: Sequence[Post], sender: str, max_length: int | None, shards: int
    ) -> list[Receipt]:
        # Hot path: the script makes the ids of plain posts from their serials, so each post needs only one argument.
        if max_length is None and (mark := encoding.mark_before(posts)) >= 0:
            bodies, keys = [p.body for p in posts], encoding.keys_of(posts)
            tasks = [p.task for p in posts] if keys else ()
            marks = (mark, mark + len(bodies), shards, len(keys))
            created = await self._run("publish_next", queue, sender, self._id_ttl_ms, *marks, *bodies, *keys, *tasks)
            if created > 0:
                if shards:
                    self._sharded.add(queue)
                return [Receipt.CREATED] * len(posts)
        records: list[Any] = []
        for p in posts:
            records += (p.id, p.body, encoding.serial(p), *encoding.times(p), p.task, encoding.key_of(p))
        limit = -1 if max_length is None else max_length
        reply = await self._accept("publish", queue, shards, sender, limit, self._id_ttl_ms, shards, *records)
        return encoding.receipts(reply, queue, shards)

    async def emit(
        self, topic: str, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        if not posts:
            return []
        address = Address.of_topic(topic)
        if not self._replicas:
            return await self._emit(address, posts, sender, max_length, shards)
        server = await self._calls.run_id(address)
        receipts = await self._emit(address, posts, sender, max_length, shards)
        await self._confirmations.confirm(address, server)
        return receipts

    async def _emit(
        self, address: Address, posts: Sequence[Post], sender: str, max_length: int | None, shards: int
    ) -> list[Receipt]:
        limit = -1 if max_length is None else max_length
        if (mark := encoding.mark_before(posts)) >= 0:
            bodies, keys = [p.body for p in posts], encoding.keys_of(posts)
            marks = (mark, mark + len(bodies), shards, len(keys))
            if await self._run("emit_next", address, sender, self._id_ttl_ms, limit, *marks, *bodies, *keys) > 0:
                if shards:
                    self._sharded.add(address)
                return [Receipt.CREATED] * len(posts)
        records: list[Any] = []
        for p in posts:
            records += (p.id, p.body, encoding.serial(p), *encoding.times(p), encoding.key_of(p))
        reply = await self._accept("emit", address, shards, sender, limit, self._id_ttl_ms, shards, *records)
        return encoding.receipts(reply, address, shards)

    async def _accept(self, script: str, address: Address, shards: int, *args: Any) -> bytes:
        """Publish, and open the address again if the server was flushed.

        The server was flushed if the address is new to it although this broker opened it before. After a lost reply, which may
        have reported this, the address is opened again too.
        """
        try:
            reply: bytes = await self._run(script, address, *args)
        except BrokerUnavailable:
            self._unsure.add(address)
            raise
        if reply.endswith(b"n") or address in self._unsure:
            self._unsure.add(address)
            await self._openings.reopen(address)
            if address in self._sharded:
                await self.note_shards(address.base, shards)
            self._unsure.discard(address)
        if shards and reply != b"-":
            self._sharded.add(address)
        return reply.removesuffix(b"n")

    async def cancel(self, queue: Address, job_id: str, *, request: str = "") -> Cancellation:
        return (await self._cancel(queue, [job_id], request))[0]

    async def cancel_many(self, queue: Address, job_ids: Sequence[str]) -> list[Cancellation]:
        return await self._cancel(queue, job_ids, "") if job_ids else []

    async def _cancel(self, queue: Address, job_ids: Sequence[str], request: str) -> list[Cancellation]:
        ending, ttl_ms = cancelled_by(request), encoding.ms(CANCELLED_TTL)
        args = (GROUP, ending, ttl_ms, self._id_ttl_ms, int(bool(request)), *job_ids)
        return encoding.cancellations(await self._run("cancel", queue, *args))

    # -- consumers ---------------------------------------------------------------------------------------------------------

    async def join(
        self, queue: Address, consumer: str, lease: float, *, max_consumers: int | None = None, order: OrderRules | None = None
    ) -> int:
        if not self._joined:
            await self._check_channel()
        again, of_letters = queue in self._joined, queue.is_dead
        found = [] if max_consumers else await self._openings.declare(queue)
        noted = "letters" if of_letters else "joined"
        rules = ("", "") if order is None else (int(order.stop), order.max_pending)
        run_id = await self._calls.run_id(queue)
        args = (GROUP, consumer, encoding.ms(lease), noted, run_id, max_consumers or 0, *rules)
        made, *more = await self._run("join", queue, *args)
        if not more:
            return 0
        before, waiting, number = more
        if max_consumers:
            found = await self._openings.declare(queue)  # Only after joining, since consumers that wait to join ask often.
        self._joined.add(queue)
        if made and before:
            self._openings.tell(queue, lost_group(queue), "0-0", waiting)
        elif made and again and not of_letters:  # For dead letters, the report of their group is enough.
            if queue.is_queue:
                self._openings.tell(queue, GONE, "0-0", waiting)
            else:
                self._openings.tell(queue, GONE, *((found[0].at, found[0].left) if found else ("0-0", -1)))
        return int(number)

    async def _check_channel(self) -> None:
        """Warn if this user may not notify callers that wait for results."""
        try:
            await self._calls.call(None, "PUBLISH", f"{self._channel}:check", "")  # Nobody subscribes to this channel.
        except BrokerRefused as error:
            self._topology.subscriber.warn(
                f"this user may not PUBLISH to {self._channel.rpartition(':')[0]}:*, so callers must poll for the results of "
                f"jobs that run here, and get them up to 30 s late. Grant this right to the user. ({error})"
            )

    async def join_members(self, address: Address, member: str, lease: float) -> Membership:
        check_ms, *members = await self._run("join_members", address, member, encoding.ms(lease))
        return Membership(sorted(map(bytes.decode, members)), None if check_ms < 0 else check_ms / 1000)

    def server(self, queue: Address) -> str:
        with contextlib.suppress(BrokerUnavailable):
            return self._calls.node(queue).name
        return ""

    def locate(self, ref: bytes) -> EntryLocation:
        return encoding.locate(ref)

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
        waiting = await self._waiting(queue, consumer)
        node, link = waiting.node, waiting.link
        await link.ready()
        of_letters = queue.is_dead
        lost_letter = b"" if of_letters else encoding.LOST_LETTER
        names = (RELEASED, SUSPECTS, lost_letter, self._id_ttl_ms, self._dead_max_count, self._dead_max_age_ms)
        args = (GROUP, consumer, count, int(alone), suspect_after, link.run_id, *names)
        if (queue, consumer) in self._look_first:
            self._look_first.discard((queue, consumer))
            if await self._look_around(queue, consumer, waiting, lost_letter) > 0:
                wait = 0.0  # There may be something to claim now.
        # End the wait when a lease must be checked, so that a dead worker's jobs are found within 1.5 s after its lease ends.
        patience = max(SHORTEST_BLOCK, min(wait, self._looks.get((queue, consumer), wait)))
        block: tuple[str, ...] | None = None
        if wait > 0 and waiting.shared:
            await self._shared_wait(node).wait(self._names(queue)["wake"], patience)
        elif wait > 0:
            block = ("BLPOP", self._names(queue)["wake"], f"{patience:.3f}")
        try:
            reply = await self._calls.run_on(node, link, "claim", queue, *args, before=block, block=wait)
        except BrokerError as error:
            if "NOGROUP" not in str(error):
                raise
            await self._openings.restore(queue)
            reply = await self._calls.run_on(node, link, "claim", queue, *args)
        if len(reply) == 1:
            raise LeaseLost(f"consumer {consumer!r} has no lease on queue {queue!r}")
        self._note_server(queue, consumer, link.run_id)
        now_ms, next_due_ms, flags, taken, crashes, plain, check_ms, logged = reply
        look = math.inf if check_ms < 0 else check_ms / 1000 + 0.005
        if self._cannot_nudge and next_due_ms >= 0:
            look = min(look, next_due_ms / 1000)
        self._looks[queue, consumer] = look
        if of_letters:
            entries = encoding.letters(queue, taken, crashes)
        else:
            entries = [encoding.entry(ref, fields, crashes[i]) for i, (ref, fields) in enumerate(taken)]
        each = iter(plain)
        entries += map(Entry, each, each)  # Hot path: one struct per entry, made in C.
        if logged:
            each = iter(logged)
            entries += [Entry(encoding.IN_LOG + entry, body) for entry, body in zip(each, each, strict=True)]
        if flags & 4:
            self._ordered.add(queue)
        if flags & 8 and entries:
            self._look_first.add((queue, consumer))  # Claimed messages need not wait for the check.
        elif flags & 8 and await self._look_around(queue, consumer, waiting, lost_letter) > 0:
            next_due_ms = 0  # There may be something to claim now.
        next_due = None if next_due_ms < 0 else next_due_ms / 1000
        return Claim(
            entries, now_ms, next_due, bool(flags & 1), bool(flags & 2), self._doubtful.get((queue, consumer), ()) is None
        )

    async def _waiting(self, queue: Address, consumer: str) -> WaitingLink:
        """Return the link of a consumer, on the node that has the queue now."""
        node, waiting = self._calls.node(queue), self._claiming.get((queue, consumer))
        if waiting is not None and waiting.node is not node:
            await waiting.close()
            waiting = None
        if waiting is None:
            others = sum(each.node is node and not each.shared for each in self._claiming.values())
            shared = others >= OWN_LINKS and not self._topology.divided
            waiting = self._claiming[queue, consumer] = WaitingLink(node, shared=shared)
        return waiting

    def _shared_wait(self, node: Node) -> SharedWait:
        shared = self._shared_waits.get(node)
        if shared is None:
            shared = self._shared_waits[node] = SharedWait(node)
        return shared

    def _note_server(self, queue: Address, consumer: str, run_id: str) -> None:
        """Doubt all messages that the consumer holds if its server has changed.

        After a failover, a lost message and a new one may have the same entry id, and settling the lost one must not remove the
        new one.
        """
        before = self._claimed_from.get((queue, consumer))
        if before != run_id:
            self._claimed_from[queue, consumer] = run_id
            if before:
                self._doubtful[queue, consumer] = None

    async def _look_around(self, queue: Address, consumer: str, waiting: WaitingLink, lost_letter: bytes) -> int:
        """Find and repair data that another program deleted. Return the number of repairs. Claimed messages are safe if this
        fails."""
        found = 0
        args = (GROUP, consumer, lost_letter, self._id_ttl_ms, self._dead_max_count, self._dead_max_age_ms)
        try:
            for _ in range(LOOKS):
                more, some = await self._calls.run_on(waiting.node, waiting.link, "around", queue, *args)
                found += some
                if not more:
                    break
        except BrokerError as error:
            log.debug("queue %r: the check for lost data failed: %s", queue, error)
        return found

    def _tell(self, address: Address, what: str) -> None:
        if self.repaired is not None:
            self.repaired(address, what)

    async def nudge(self, queue: Address, consumer: str) -> None:
        waiting = self._claiming.get((queue, consumer))
        if waiting is None:
            return
        if waiting.shared:
            self._shared_wait(waiting.node).release(self._names(queue)["wake"])
            return
        if self._cannot_nudge:
            return
        try:
            if waiting.link.client_id:
                await waiting.node.commands.call("CLIENT", "UNBLOCK", waiting.link.client_id)
        except BrokerRefused as error:
            # Reported once. From now on, waits end by themselves when a message is due.
            self._cannot_nudge = True
            raise BrokerRefused(
                f"{error} Without CLIENT UNBLOCK, scheduled jobs start up to 0.1 s late, and a worker takes up to 1 s longer "
                "to stop. Grant +client|unblock to this user."
            ) from error

    async def settle(self, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> int:
        if not outcomes:
            return 0
        if not self._replicas:
            return await self._settle_any(queue, consumer, outcomes)
        server = await self._calls.run_id(queue)
        settled = await self._settle_any(queue, consumer, outcomes)
        await self._confirm_settled(queue, server, len(outcomes))
        return settled

    async def _confirm_settled(self, queue: Address, server: str, count: int) -> None:
        """Wait until the replicas have these outcomes, but not for longer than the timeout: the jobs have run.

        Raises BrokerUnavailable if the server is gone or was replaced. Then the outcomes are stored again.
        """
        try:
            await self._confirmations.confirm(queue, server)
        except NotReplicated as error:
            if not self._unconfirmed:
                log.warning("outcomes are not acknowledged by replicas; a failover now would run their jobs again: %s", error)
            self._unconfirmed += count
        else:
            if self._unconfirmed:
                log.info("replicas acknowledge outcomes again; %d were not acknowledged", self._unconfirmed)
            self._unconfirmed = 0

    async def _settle_any(self, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> int:
        if queue.is_dead:
            return await self._settle_letters(queue, consumer, outcomes)
        try:
            if (queue, consumer) in self._doubtful:
                return await self._settle_doubtful(queue, consumer, outcomes)
            return await self._settle(queue, consumer, outcomes, self._claimed_from.get((queue, consumer), ""))
        except ServerChanged:
            self._note_server(queue, consumer, await self._calls.run_id(queue))
            self._doubtful.setdefault((queue, consumer), None)
            return await self._settle_doubtful(queue, consumer, outcomes)

    async def _settle_doubtful(self, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> int:
        """Settle messages that were claimed before the server changed only if their entries are still these messages."""
        doubtful = self._doubtful[queue, consumer]
        unsure = [o for o in outcomes if doubtful is None or o.ref in doubtful]
        settled = 0
        if unsure:
            bounds = (self._id_ttl_ms, self._dead_max_count, self._dead_max_age_ms)
            records = [part for o in unsure for part in encoding.record(o)]
            settled = await self._run("settle", queue, GROUP, consumer, *bounds, 0, 0, 1, 0, 0, 1, *records)
            encoding.unless_refused(settled, queue, consumer, unsure)
        sure = [o for o in outcomes if o not in unsure] if len(unsure) < len(outcomes) else []
        if sure:
            settled += await self._settle(queue, consumer, sure, self._claimed_from.get((queue, consumer), ""))
        if doubtful is not None:
            doubtful.difference_update(o.ref for o in unsure)
            if not doubtful:
                self._doubtful.pop((queue, consumer), None)
        return settled

    async def _settle(self, queue: Address, consumer: str, outcomes: Sequence[Outcome], only_on: str = "") -> int:
        # Hot path: done jobs without a result, or with results of the same lifetime, are settled in bulk.
        plain = [o for o in outcomes if o.kind is DONE and o.result is None and not o.given_id]
        # If another broker claimed these messages, this one does not know whether they have ordering keys.
        ordered = queue in self._ordered or (queue, consumer) not in self._claiming
        in_order = [o for o in plain if encoding.KEYED in o.ref] if ordered else []
        kept: list[Outcome] = []
        kept_ttl = 0.0
        records: list[Any] = []
        if len(plain) < len(outcomes):
            for o in outcomes:
                if (
                    o.kind is not DONE
                    or o.given_id
                    or (o.result is not None and (o.ref.startswith(encoding.IN_LOG) or encoding.KEYED in o.ref))
                ):
                    records += encoding.record(o)
                elif o.result is not None:
                    if not kept:
                        kept_ttl = o.result_ttl
                    if o.result_ttl == kept_ttl > 0:
                        kept.append(o)
                    else:
                        records += encoding.record(o)
        logged: list[bytes] = []
        if in_order:
            plain = [o for o in plain if encoding.KEYED not in o.ref]
        if not queue.is_queue:
            logged = [o.ref[1:] for o in plain if o.ref.startswith(encoding.IN_LOG)]
            plain = [o for o in plain if not o.ref.startswith(encoding.IN_LOG)] if logged else plain
        bulk = plain + kept
        settled: int = await self._run(
            "settle",
            queue,
            GROUP,
            consumer,
            self._id_ttl_ms,
            self._dead_max_count,
            self._dead_max_age_ms,
            len(plain),
            len(kept),
            max(1, encoding.ms(kept_ttl)),
            len(logged),
            len(in_order),
            0,
            *[o.ref for o in bulk],
            *[o.id for o in bulk],
            *[o.result for o in kept],
            *logged,
            *[o.ref for o in in_order],
            *[o.id for o in in_order],
            *records,
            only_on=only_on,
        )
        return encoding.unless_refused(settled, queue, consumer, outcomes)

    async def _settle_letters(self, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> int:
        handled = [o for o in outcomes if o.kind is DONE]
        settled: int = await self._run(
            "settle_letters",
            queue,
            GROUP,
            consumer,
            len(handled),
            *[o.ref for o in handled],
            *[o.id for o in handled],
            *[part for o in outcomes if o.kind is not DONE for part in encoding.letter_record(o)],
        )
        return encoding.unless_refused(settled, queue, consumer, outcomes)

    async def release(self, queue: Address, consumer: str, refs: Sequence[bytes]) -> int:
        if not refs:
            return 0
        if doubtful := self._doubtful.get((queue, consumer)):
            doubtful.difference_update(refs)
        released: int = await self._run("release", queue, GROUP, consumer, RELEASED, *refs)
        if released < 0:
            raise LeaseLost(f"consumer {consumer!r} has no lease on queue {queue!r}")
        return released

    async def recover(self, queue: Address, consumer: str, holding: Collection[bytes]) -> list[Entry]:
        self._ordered.add(queue)
        self._note_server(queue, consumer, await self._calls.run_id(queue))
        found: list[Entry] = []
        after: Any = "-"
        while after:
            reply = await self._run("recover", queue, GROUP, consumer, after, *holding)
            if len(reply) == 1:
                raise LeaseLost(f"consumer {consumer!r} has no lease on queue {queue!r}")
            entries, crashes, after = reply
            if queue.is_dead:
                found += encoding.letters(queue, entries, crashes)
                gone = [ref for ref, fields in entries if not fields]
                if gone:
                    await self._settle_letters(queue, consumer, [Outcome(Kind.DEAD, ref, "") for ref in gone])
            else:
                found += [encoding.entry(ref, fields, crashes[i]) for i, (ref, fields) in enumerate(entries)]
        if self._doubtful.pop((queue, consumer), set()) is None and holding:
            self._doubtful[queue, consumer] = set(holding)  # Everything else will be claimed from this server.
        return found

    async def renew(self, queue: Address, leases: Mapping[str, float]) -> set[str]:
        pairs = [part for consumer, lease in leases.items() for part in (consumer, encoding.ms(lease))]
        within = min(CALL_TIMEOUT, max(RENEWAL_TIMEOUT, min(leases.values(), default=math.inf) / 3))
        lost = await self._run("renew", queue, self._dead_max_count, self._dead_max_age_ms, *pairs, within=within)
        return {name.decode() for name in lost}

    async def leave(self, queue: Address, consumer: str, *, blameless: bool = False) -> int:
        left, more = 0, 1
        while more:
            held, more = await self._run("leave", queue, GROUP, consumer, int(blameless), RELEASED)
            left += held
        self._looks.pop((queue, consumer), None)
        self._look_first.discard((queue, consumer))
        self._claimed_from.pop((queue, consumer), None)
        self._doubtful.pop((queue, consumer), None)
        waiting = self._claiming.pop((queue, consumer), None)
        if waiting is not None and waiting.shared:
            self._shared_wait(waiting.node).release(self._names(queue)["wake"])
        elif waiting is not None:
            await waiting.close()
        return left

    async def follow(self, topic: str, after: Position | None, count: int, *, wait: float = 0.0) -> Followed:
        if wait <= 0 or after is None:
            return await self._follow(topic, after, count)
        address = Address.of_topic(topic)
        names, node = self._names(address), self._calls.node(address)
        # XREAD is used only to wait, so its COUNT is 1. The script reads the entries, and counts those that are gone.
        waited = encoding.ms(max(SHORTEST_BLOCK, wait))
        block = ("BLOCK", waited, "STREAMS", names["log"], names["log_bell"], after.entry, after.bell)
        free = self._free.setdefault(node, [])
        waiting = free.pop() if free else WaitingLink(node)
        self._following.add(waiting)
        try:
            followed = await self._follow(topic, after, count, waiting, ("XREAD", "COUNT", 1, *block), wait)
        except BaseException:  # Even if the caller was cancelled, the server still blocks this connection.
            self._following.discard(waiting)
            await waiting.close()
            raise
        free.append(waiting)
        return followed

    async def _follow(
        self,
        topic: str,
        after: Position | None,
        count: int,
        waiting: WaitingLink | None = None,
        before: tuple[Any, ...] | None = None,
        block: float = 0.0,
    ) -> Followed:
        here = after or Position("", 0)
        address, args = Address.of_topic(topic), (count, here.entry, here.number, here.life)
        if waiting is None:
            reply = await self._run("follow", address, *args)
        else:
            at = waiting.node, waiting.link
            reply = await self._calls.run_on(*at, "follow", address, *args, before=before, block=block)
        now_ms, next_due_ms, missed, entry, number, life, bell, found = reply
        position = Position(entry.decode(), number, life.decode(), bell.decode())
        next_due = None if next_due_ms < 0 else next_due_ms / 1000
        return Followed([encoding.entry(ref, fields, 0) for ref, fields in found], position, missed, now_ms, next_due)

    # -- operators ---------------------------------------------------------------------------------------------------------

    async def pause(self, queue: Address) -> None:
        await self._run("pause", queue, 1)

    async def resume(self, queue: Address) -> None:
        await self._run("pause", queue, 0)

    async def seek(self, group: Address, to: LogPosition, *, request: str = "") -> bool:
        group.check_group()
        return bool(int(await self._run("seek", group, group.group, encoding.after(to), request)))

    async def remove_group(self, group: Address, *, request: str = "") -> bool:
        group.check_group()
        self._joined -= {group, group.dead}
        return await self._openings.remove_group(group.log, group.group, request)

    async def clear_key(self, queue: Address, key: bytes, *, replay: bool, request: str = "") -> int | None:
        replayed = 0
        bounds = (self._id_ttl_ms, self._dead_max_count, self._dead_max_age_ms)
        for step in count():  # Each step is a named request. If the call is sent again, finished steps are not repeated.
            answer = await self._run("clear", queue, key, int(replay), *bounds, request and f"{request}.{step}")
            if not answer:
                return replayed if step else None
            found, more = map(int, answer.split())
            replayed += found
            if not more:
                break
        return replayed

    async def note_shards(self, address: Address, shards: int, *, replace: bool = False) -> int:
        return int(await self._run("note_shards", address, shards, int(replace)))

    async def fence_shard(self, address: Address, shards: int) -> None:
        await self.note_shards(address, shards, replace=True)

    async def promote(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        return encoding.chosen(job_ids, await self._run("promote", queue, request, *job_ids))

    async def replay(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        return encoding.chosen(job_ids, await self._run("replay", queue, request, *job_ids))

    async def purge(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        return encoding.chosen(job_ids, await self._run("purge", queue, request, *job_ids))

    async def register(self, worker: WorkerInfo, ttl: float) -> None:
        await self._run("register", None, worker.id, msgspec.msgpack.encode(worker, enc_hook=write_address), encoding.ms(ttl))

    async def unregister(self, worker_id: str) -> None:
        await self._run("unregister", None, worker_id)
