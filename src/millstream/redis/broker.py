"""RedisBroker: the contract's verbs as calls of the scripts, batch by batch."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from millstream.address import (
    dead_address,
    group_address,
    is_dead_address,
    split_address,
    split_group,
    topic_address,
    whole,
    whose_dead,
)
from millstream.broker import (
    Attendance,
    Broker,
    Cancellation,
    Capabilities,
    Claim,
    Entry,
    Followed,
    Inspector,
    Mailbox,
    OrderRules,
    Position,
    Post,
    Receipt,
    ResultStore,
    WorkerInfo,
)
from millstream.broker.contract import BEGINNING, END, SUSPECT_AFTER, Place, parse_entry
from millstream.broker.letters import enclose
from millstream.errors import BrokerError, LeaseLost, ShardsChanged
from millstream.message import ErrorNote
from millstream.outcome import DONE, Ending, Kind, Letter, Outcome, encode_ending, encode_letter
from millstream.redis.connect import Connector, Locate, ScriptMissing, server_name
from millstream.redis.inspector import RedisInspector, dead_letter
from millstream.redis.keys import GROUP, RELEASED, SUSPECTS, channel, namespace_keys, queue_keys
from millstream.redis.link import Link
from millstream.redis.mailbox import RedisMailbox
from millstream.redis.results import RedisResults
from millstream.redis.scripts import Script

log = logging.getLogger("millstream.redis")

CANCELLED_TTL = 600.0
"""Seconds for which a cancelled job's ending is kept."""

EXPIRED = encode_ending(Ending("expired"))
CANCELLED = encode_ending(Ending("cancelled"))

_LOST_LETTER = encode_letter(
    Letter(
        "malformed",
        ErrorNote("LookupError", "the entry was claimed, but its body is gone from the stream: something else trimmed it"),
        attempts=0,
        crashes=0,
        enqueued_ms=0,
    )
)
_RECEIPTS = {ord("1"): Receipt.CREATED, ord("2"): Receipt.EXISTS, ord("3"): Receipt.FULL, ord("4"): Receipt.CONFLICT}


IN_LOG = b"L"
"""Marks the ref of an entry that a group has claimed in its topic's log."""

KEYED = b"/"
"""In the ref of a message that has a key, which is behind it."""


GONE = "was gone from the server, with all that it held"


class _Made(NamedTuple):
    """A group that is new, or had lost its place in the log."""

    group: str
    new: bool
    at: str
    """After which entry it goes on."""
    left: int
    """How many entries are behind that one; -1: nobody knows."""


@dataclass(slots=True)
class _Opened:
    """What this broker has asked of a topic. If all was flushed, whoever notices first asks for all of it again, at once: a
    group that is made later would miss what the others have settled meanwhile."""

    life: str = ""
    """Which the topic had then."""
    groups: set[str] = field(default_factory=set)
    keep_ms: int | str = "="
    keep_count: int | str = "="
    followed: bool = False


class RedisBroker(Broker):
    """The Broker contract on one Redis or Valkey server. Belongs to one event loop."""

    def __init__(
        self,
        url: str | Locate,
        *,
        namespace: str = "millstream",
        id_ttl: float = 86_400.0,
        dead_max_age: float = 7 * 86_400.0,
        dead_max_count: int = 100_000,
        safe_url: str = "",
    ) -> None:
        self.capabilities = Capabilities(durable=True, shared=True)
        self._namespace = namespace
        self._id_ttl_ms = _ms(id_ttl)
        self._dead_max_age_ms = _ms(dead_max_age)
        self._dead_max_count = dead_max_count
        self._connector = Connector(url, safe_url=safe_url)
        self._commands = Link(self._connector)
        self._claiming: dict[tuple[str, str], Link] = {}
        self._following: set[Link] = set()
        self._free: list[Link] = []
        """Those on which nobody waits now."""
        self._looks: dict[tuple[str, str], float] = {}
        """Seconds after which a consumer's next wait should end, to look at other consumers' leases."""
        self._scripts: dict[tuple[str, bool], Script] = {}
        self._calls: dict[tuple[str, str | None], tuple[str | int, ...]] = {}
        self._queue_keys: dict[str, dict[str, str]] = {}
        self._joined: set[str] = set()
        """What was joined before: if it has to be made again it was lost."""
        self._opened: dict[str, _Opened] = {}
        self._prefixes: set[tuple[str, str]] = set()
        """Those that were opened before, each with its group."""
        self._clock_ms = 0
        client = channel(namespace, secrets.token_hex(8))
        self._results = RedisResults(self._connector, self._run, client)
        self._inspector = RedisInspector(self._run, self._commands.call, self._names)
        self._mailbox = RedisMailbox(self._run)

    def set_clock(self, now: float | None) -> None:
        """For tests: every script reads this time (epoch seconds) instead of the server's; None undoes it."""
        self._clock_ms = 0 if now is None else _ms(now)

    @property
    def inspector(self) -> Inspector:
        return self._inspector

    @property
    def results(self) -> ResultStore:
        return self._results

    @property
    def mailbox(self) -> Mailbox:
        return self._mailbox

    async def open(self) -> None:
        await self._commands.call("PING")
        self.capabilities = Capabilities(durable=True, shared=True, server=server_name(self._commands.server))
        policy = await self._eviction_policy()
        if policy not in (None, "noeviction"):
            log.warning(
                "the server's maxmemory-policy is %r: when it is full it may throw jobs away. Set it to noeviction.", policy
            )

    async def close(self) -> None:
        await self._results.close()
        for link in (*self._claiming.values(), *self._following, self._commands):
            await link.close()
        self._claiming.clear()
        self._following.clear()
        self._free.clear()

    async def _eviction_policy(self) -> str | None:
        try:
            answer = await self._commands.call("CONFIG", "GET", "maxmemory-policy")
        except BrokerError:
            return None
        return str(answer[1], "ascii") if answer else None

    async def declare(self, queue: str) -> None:
        await self._declare(queue)

    async def _declare(self, queue: str) -> list[_Made]:
        parts = split_address(queue)
        if parts is None:
            await self._run("declare", None, "queues", queue)
            return []
        made = await self._open_groups(parts[0], {parts[1]: BEGINNING}, await self._prefixed(parts[0]))
        return [each for each in made if each.group == parts[1]]

    async def open_topic(
        self,
        topic: str,
        groups: Mapping[str, Place],
        *,
        keep: float | None = None,
        keep_count: int | None = None,
        followed: bool = False,
    ) -> list[str]:
        keep_ms = "=" if keep is None else max(1, _ms(keep)) if keep else 0
        count = "=" if keep_count is None else keep_count
        made = await self._open_groups(topic, groups, await self._prefixed(topic), keep_ms, count, followed)
        return [each.group for each in made if each.new and each.group in groups]

    async def _prefixed(self, topic: str) -> dict[str, Place]:
        """Make a topic known; the groups it has because of how its name begins. It is new to them, so they get all of it."""
        known = (name.decode().partition(">") for name in await self._run("declare", None, "topics", topic))
        return {group: BEGINNING for group, _, prefix in known if topic.startswith(prefix)}

    async def open_prefix(self, prefix: str, group: str, start: Place, known: Collection[str] = ()) -> list[str]:
        topics, noted = await self._prefix("SISMEMBER", prefix, group)
        if not noted:
            # Before it is noted: whoever opens one of these topics afterwards would make the group at the beginning.
            place = BEGINNING if (prefix, group) in self._prefixes else start  # if it was lost, what is there came since
            for topic in topics.difference(known):
                await self._open_groups(topic, {group: place})
            topics, _ = await self._prefix("SADD", prefix, group)
        self._prefixes.add((prefix, group))
        new = sorted(topics.difference(known))
        for topic in new:
            await self._open_groups(topic, {group: BEGINNING})
        return new

    async def remove_prefix(self, prefix: str, group: str) -> bool:
        topics, known = await self._prefix("SISMEMBER", prefix, group)
        if not known:
            return False
        # Known until it is in no topic, so that this can be sent again; then again: who opened one meanwhile still found it.
        for topic in topics:
            await self.remove_group(group_address(topic, group))
        topics, _ = await self._prefix("SREM", prefix, group)
        self._prefixes.discard((prefix, group))
        for topic in topics:
            await self.remove_group(group_address(topic, group))
        return True

    async def _prefix(self, verb: str, prefix: str, group: str) -> tuple[set[str], bool]:
        topics, answer = await self._run("declare_prefix", None, f"{group}>{prefix}", verb)
        return {topic for topic in map(bytes.decode, topics) if topic.startswith(prefix)}, bool(answer)

    async def _open_groups(
        self,
        topic: str,
        groups: Mapping[str, Place],
        prefixed: Mapping[str, Place] = MappingProxyType({}),
        keep_ms: int | str = "=",
        keep_count: int | str = "=",
        followed: bool = False,
    ) -> list[_Made]:
        """The groups that are new or had lost their place, which is told. "=": retention stays as it is."""
        opened = self._opened.setdefault(topic, _Opened())
        asked = _opening({**prefixed, **groups}, keep_ms, keep_count, followed)
        # What was there before begins at the beginning, wherever it once began: all that is there came after it was lost.
        instead = _opening(
            {**prefixed, **groups, **dict.fromkeys(opened.groups, BEGINNING)},
            opened.keep_ms if keep_ms == "=" else keep_ms,
            opened.keep_count if keep_count == "=" else keep_count,
            opened.followed or followed,
        )
        life, *rest = await self._run("open_topic", topic_address(topic), opened.life, len(asked), *asked, *instead)
        opened.life = life.decode()
        opened.groups |= groups.keys()
        opened.keep_ms = opened.keep_ms if keep_ms == "=" else keep_ms
        opened.keep_count = opened.keep_count if keep_count == "=" else keep_count
        opened.followed = opened.followed or followed
        reply = iter(rest)
        made = [
            _Made(name.decode(), bool(new), at.decode(), left)
            for name, new, at, left in zip(reply, reply, reply, reply, strict=True)
        ]
        for each in made:
            if not each.new:
                self._tell(group_address(topic, each.group), "had lost its place in the log", each.at, each.left)
        return made

    # -- producers ---------------------------------------------------------------------------------------------------------

    async def publish(
        self, queue: str, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        if not posts:
            return []
        # Hot: ids of plain posts are made by the script from their serials, so that each costs one argument.
        if max_length is None and (mark := _mark_before(posts)) >= 0:
            bodies, keys = [p.body for p in posts], _keys(posts)
            tasks = [p.task for p in posts] if keys else ()
            marks = (mark, mark + len(bodies), shards, len(keys))
            created = await self._run("publish_next", queue, sender, self._id_ttl_ms, *marks, *bodies, *keys, *tasks)
            if created > 0:
                return [Receipt.CREATED] * len(posts)
        records: list[Any] = []
        for p in posts:
            records += (p.id, p.body, p.serial, *_times(p), p.task, _key(p))
        room = -1 if max_length is None else max_length
        return _receipts(await self._run("publish", queue, sender, room, self._id_ttl_ms, shards, *records), queue, shards)

    async def emit(
        self, topic: str, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        if not posts:
            return []
        address = topic_address(topic)
        room = -1 if max_length is None else max_length
        if (mark := _mark_before(posts)) >= 0:
            bodies, keys = [p.body for p in posts], _keys(posts)
            marks = (mark, mark + len(bodies), shards, len(keys))
            if await self._run("emit_next", address, sender, self._id_ttl_ms, room, *marks, *bodies, *keys) > 0:
                return [Receipt.CREATED] * len(posts)
        records: list[Any] = []
        for p in posts:
            records += (p.id, p.body, p.serial, *_times(p), _key(p))
        return _receipts(await self._run("emit", address, sender, room, self._id_ttl_ms, shards, *records), topic, shards)

    async def cancel(self, queue: str, job_id: str) -> Cancellation:
        answer: int = await self._run("cancel", queue, GROUP, job_id, CANCELLED, _ms(CANCELLED_TTL), self._id_ttl_ms)
        return (Cancellation.ENDED, Cancellation.CANCELLED, Cancellation.RUNNING)[answer]

    # -- consumers ---------------------------------------------------------------------------------------------------------

    async def join(
        self, queue: str, consumer: str, lease: float, *, seats: int | None = None, order: OrderRules | None = None
    ) -> int:
        again, of_letters = queue in self._joined, is_dead_address(queue)
        found = [] if seats else await self._declare(queue)
        noted = "letters" if of_letters else "joined"
        rules = ("", "") if order is None else (int(order.stop), order.max_pending)
        await self._commands.ready()
        args = (GROUP, consumer, _ms(lease), noted, self._commands.run_id, seats or 0, *rules)
        made, *more = await self._run("join", queue, *args)
        if not more:
            return 0
        before, waiting, number = more
        if seats:
            found = await self._declare(queue)  # not before: those who wait for a seat ask often
        self._joined.add(queue)
        if made and before:
            self._tell(queue, _lost_group(queue), "0-0", waiting)
        elif made and again and not of_letters:  # those are told of by their group, which alone makes this consumer group
            if split_address(queue) is None:
                self._tell(queue, GONE, "0-0", waiting)
            else:
                self._tell(queue, GONE, *((found[0].at, found[0].left) if found else ("0-0", -1)))
        return int(number)

    async def attend(self, address: str, member: str, lease: float) -> Attendance:
        look_ms, *members = await self._run("attend", address, member, _ms(lease))
        return Attendance(sorted(map(bytes.decode, members)), None if look_ms < 0 else look_ms / 1000)

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
        link = self._claiming.get((queue, consumer))
        if link is None:
            link = self._claiming[queue, consumer] = Link(self._connector)
        await link.ready()
        of_letters = is_dead_address(queue)
        lost_letter = b"" if of_letters else _LOST_LETTER
        names = (RELEASED, SUSPECTS, lost_letter, self._id_ttl_ms)
        args = (GROUP, consumer, count, int(alone), suspect_after, link.run_id, *names)
        # Not past the moment when a lease should be looked at: a dead worker's jobs are found within 1.5 s of its lease's end.
        # BLPOP waits for ever on 0: a very short wait must not become one.
        patience = max(0.001, min(wait, self._looks.get((queue, consumer), wait)))
        block = ("BLPOP", self._names(queue)["wake"], f"{patience:.3f}") if wait > 0 else None
        try:
            reply = await self._run("claim", queue, *args, link=link, before=block, block=wait)
        except BrokerError as error:
            if "NOGROUP" not in str(error):
                raise
            await self._restore(queue)
            reply = await self._run("claim", queue, *args, link=link)
        if len(reply) == 1:
            raise LeaseLost(f"consumer {consumer!r} has no lease on queue {queue!r}")
        now_ms, next_due_ms, flags, taken, crashes, plain, look_ms, logged = reply
        self._looks[queue, consumer] = math.inf if look_ms < 0 else look_ms / 1000 + 0.005
        if of_letters:
            entries = _letters(queue, taken, crashes)
        else:
            entries = [_entry(ref, fields, crashes[i]) for i, (ref, fields) in enumerate(taken)]
        each = iter(plain)
        entries += map(Entry, each, each)  # hot: one struct per entry, made in C
        if logged:
            each = iter(logged)
            entries += [Entry(IN_LOG + entry, body) for entry, body in zip(each, each, strict=True)]
        next_due = None if next_due_ms < 0 else next_due_ms / 1000
        return Claim(entries, now_ms, next_due, bool(flags & 1), bool(flags & 2))

    async def _restore(self, queue: str) -> None:
        """Make the consumer groups of a queue or group again."""
        parts = split_address(queue)
        if parts is not None:
            await self._open_groups(parts[0], {parts[1]: BEGINNING})
        made, waiting = await self._run("restore", queue, GROUP)
        if made:  # if not, it was not gone, or another worker was quicker
            self._tell(queue, _lost_group(queue), "0-0", waiting)

    def _tell(self, address: str, what: str, at: str, left: int) -> None:
        """That other hands destroyed something, once, by whoever made it again; and where it goes on."""
        said = _lost(address, what, at, left)
        log.error("%s", said)
        if self.repaired is not None:
            self.repaired(address, said)

    async def nudge(self, queue: str, consumer: str) -> None:
        link = self._claiming.get((queue, consumer))
        if link is not None and link.client_id:
            await self._commands.call("CLIENT", "UNBLOCK", link.client_id)

    async def settle(self, queue: str, consumer: str, outcomes: Sequence[Outcome]) -> int:
        if not outcomes:
            return 0
        if is_dead_address(queue):
            return await self._settle_letters(queue, consumer, outcomes)
        # Hot: jobs that are done, with nothing to keep or an ending of the same lifetime, go in bulk.
        plain = [o for o in outcomes if o.kind is DONE and o.result is None and not o.given_id]
        ordered = [o for o in plain if KEYED in o.ref]
        kept: list[Outcome] = []
        kept_ttl = 0.0
        records: list[Any] = []
        if len(plain) < len(outcomes):
            for o in outcomes:
                if o.kind is not DONE or o.given_id or (o.result is not None and (o.ref.startswith(IN_LOG) or KEYED in o.ref)):
                    records += _record(o)
                elif o.result is not None:
                    if not kept:
                        kept_ttl = o.result_ttl
                    if o.result_ttl == kept_ttl > 0:
                        kept.append(o)
                    else:
                        records += _record(o)
        logged: list[bytes] = []
        if ordered:
            plain = [o for o in plain if KEYED not in o.ref]
        if split_address(queue) is not None:
            logged = [o.ref[1:] for o in plain if o.ref.startswith(IN_LOG)]
            plain = [o for o in plain if not o.ref.startswith(IN_LOG)] if logged else plain
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
            max(1, _ms(kept_ttl)),
            len(logged),
            len(ordered),
            *[o.ref for o in bulk],
            *[o.id for o in bulk],
            *[o.result for o in kept],
            *logged,
            *[o.ref for o in ordered],
            *[o.id for o in ordered],
            *records,
        )
        return _unless_refused(settled, queue, consumer, outcomes)

    async def _settle_letters(self, queue: str, consumer: str, outcomes: Sequence[Outcome]) -> int:
        handled = [o for o in outcomes if o.kind is DONE]
        settled: int = await self._run(
            "settle_letters",
            queue,
            GROUP,
            consumer,
            len(handled),
            *[o.ref for o in handled],
            *[o.id for o in handled],
            *[o.ref for o in outcomes if o.kind is not DONE],
        )
        return _unless_refused(settled, queue, consumer, outcomes)

    async def release(self, queue: str, consumer: str, refs: Sequence[bytes]) -> int:
        if not refs:
            return 0
        released: int = await self._run("release", queue, GROUP, consumer, RELEASED, *refs)
        if released < 0:
            raise LeaseLost(f"consumer {consumer!r} has no lease on queue {queue!r}")
        return released

    async def recover(self, queue: str, consumer: str, holding: Collection[bytes]) -> list[Entry]:
        found: list[Entry] = []
        after: Any = "-"
        while after:
            reply = await self._run("recover", queue, GROUP, consumer, after, *holding)
            if len(reply) == 1:
                raise LeaseLost(f"consumer {consumer!r} has no lease on queue {queue!r}")
            entries, crashes, after = reply
            if is_dead_address(queue):
                found += _letters(queue, entries, crashes)
                gone = [ref for ref, fields in entries if not fields]
                if gone:
                    await self._settle_letters(queue, consumer, [Outcome(Kind.DEAD, ref, "") for ref in gone])
            else:
                found += [_entry(ref, fields, crashes[i]) for i, (ref, fields) in enumerate(entries)]
        return found

    async def renew(self, queue: str, leases: Mapping[str, float]) -> set[str]:
        pairs = [part for consumer, lease in leases.items() for part in (consumer, _ms(lease))]
        lost = await self._run("renew", queue, self._dead_max_count, self._dead_max_age_ms, *pairs)
        return {name.decode() for name in lost}

    async def leave(self, queue: str, consumer: str, *, blameless: bool = False) -> int:
        left: int = await self._run("leave", queue, GROUP, consumer, int(blameless), RELEASED)
        self._looks.pop((queue, consumer), None)
        link = self._claiming.pop((queue, consumer), None)
        if link is not None:
            await link.close()
        return left

    async def follow(self, topic: str, after: Position | None, count: int, *, wait: float = 0.0) -> Followed:
        if wait <= 0 or after is None:
            return await self._follow(topic, after, count)
        names = self._names(topic_address(topic))
        # XREAD waits for ever on 0. What it finds is read again by the script, which also sees what is gone: it finds one.
        block = ("BLOCK", max(1, _ms(wait)), "STREAMS", names["log"], names["log_bell"], after.entry, after.bell)
        link = self._free.pop() if self._free else Link(self._connector)
        self._following.add(link)
        try:
            followed = await self._follow(topic, after, count, link=link, before=("XREAD", "COUNT", 1, *block), block=wait)
        except BaseException:  # if it is the caller who waits no more, the server still does
            self._following.discard(link)
            await link.close()
            raise
        self._free.append(link)
        return followed

    async def _follow(self, topic: str, after: Position | None, count: int, **options: Any) -> Followed:
        here = after or Position("", 0)
        reply = await self._run("follow", topic_address(topic), count, here.entry, here.number, here.life, **options)
        now_ms, next_due_ms, missed, entry, number, life, bell, found = reply
        position = Position(entry.decode(), number, life.decode(), bell.decode())
        next_due = None if next_due_ms < 0 else next_due_ms / 1000
        return Followed([_entry(ref, fields, 0) for ref, fields in found], position, missed, now_ms, next_due)

    # -- operators ---------------------------------------------------------------------------------------------------------

    async def pause(self, queue: str) -> None:
        await self._run("pause", queue, 1)

    async def resume(self, queue: str) -> None:
        await self._run("pause", queue, 0)

    async def seek(self, group: str, to: Place) -> bool:
        _, name = split_group(group)
        return bool(await self._run("seek", group, name, _after(to)))

    async def remove_group(self, group: str) -> bool:
        topic, name = split_group(group)
        self._joined -= {group, dead_address(group)}
        if topic in self._opened:
            self._opened[topic].groups.discard(name)
        return bool(await self._run("remove_group", group, name))

    async def clear_key(self, queue: str, key: bytes, *, replay: bool) -> int | None:
        replayed, more = 0, 1
        while more:
            found, *rest = await self._run("clear", queue, key, int(replay), self._id_ttl_ms)
            if not rest:
                return None if more == 1 and not replayed else replayed
            replayed, more = replayed + found, 2 * rest[0]
        return replayed

    async def note_shards(self, address: str, shards: int, *, anew: bool = False) -> int:
        return int(await self._run("note_shards", address, shards, int(anew)))

    async def fence_shard(self, address: str, shards: int) -> None:
        await self.note_shards(address, shards, anew=True)

    async def promote(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return [i.decode() for i in await self._run("promote", queue, *job_ids)]

    async def replay(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return [i.decode() for i in await self._run("replay", queue, *job_ids)]

    async def purge(self, queue: str, job_ids: Sequence[str]) -> list[str]:
        return [i.decode() for i in await self._run("purge", queue, *job_ids)]

    async def register(self, worker: WorkerInfo, ttl: float) -> None:
        await self._run("register", None, worker.id, msgspec.msgpack.encode(worker), _ms(ttl))

    async def unregister(self, worker_id: str) -> None:
        await self._run("unregister", None, worker_id)

    # -- scripts -----------------------------------------------------------------------------------------------------------

    def _names(self, queue: str | None) -> dict[str, str]:
        cached = self._queue_keys.get(queue or "")
        if cached is None:
            cached = namespace_keys(self._namespace) if queue is None else queue_keys(self._namespace, queue)
            self._queue_keys[queue or ""] = cached
        return cached

    def _script(self, name: str, queue: str | None) -> Script:
        of_group = queue is not None and split_address(queue) is not None and not is_dead_address(queue)
        script = self._scripts.get((name, of_group))
        if script is None:
            script = self._scripts[name, of_group] = Script(name, of_group=of_group)
        return script

    async def _run(
        self,
        name: str,
        queue: str | None,
        *args: Any,
        link: Link | None = None,
        before: tuple[Any, ...] | None = None,
        block: float = 0.0,
    ) -> Any:
        """Run one transition; ``before`` is a command sent in the same write. Sent once: only a script that is not loaded yet,
        and so did not run, is sent again."""
        call = self._calls.get((name, queue))
        if call is None:
            call = self._calls[name, queue] = self._script(name, queue).call(self._names(queue))
        link = link or self._commands
        command = (*call, self._clock_ms, *args)
        try:
            if before is None:
                return await link.call(*command)
            return (await link.call_together((before, command), block=block))[-1]
        except ScriptMissing:
            # In one write, so that it cannot be flushed in between.
            return (await link.call_together((("SCRIPT", "LOAD", self._script(name, queue).text), command)))[-1]


def _opening(groups: Mapping[str, Place], keep_ms: int | str, keep_count: int | str, followed: bool) -> list[int | str]:
    starts = [part for group, start in groups.items() for part in (group, _after(start))]
    return [keep_ms, keep_count, int(followed), *starts]


def _lost_group(address: str) -> str:
    if split_address(address) is None:
        return "had lost its consumer group"
    return f"had lost the consumer group of {'its dead letters' if is_dead_address(address) else 'what it tries again'}"


def _lost(address: str, what: str, at: str, left: int) -> str:
    parts = split_address(address)
    whose = f"queue {address!r}" if parts is None else f"group {parts[1]!r} of topic {parts[0]!r}"
    where = "from the beginning" if at == "0-0" else f"after entry {at}"
    thing = "job" if parts is None else "event"
    if left < 0:
        given = ": what follows is given, again if it was before"
    elif left == 0:
        given = ", where nothing waits"
    elif left == 1:
        given = f": 1 {thing} is given, again if it was before"
    else:
        given = f": {left:,} {thing}s are given, again if they were before"
    return f"{whose} {what}; it is made again and goes on {where}{given}"


def _keys(posts: Sequence[Post]) -> list[bytes]:
    """Their keys, if all have one."""
    return [p.key for p in posts if p.key is not None]


def _key(p: Post) -> bytes:
    return b"" if p.key is None else b"k" + p.key


def _receipts(reply: bytes, name: str, shards: int) -> list[Receipt]:
    if reply == b"-":
        raise ShardsChanged(
            f"{whole(name)!r} has another number of shards than {shards}, or it is being changed: nothing was written. "
            "Give the app the number that `millstream topics show` or `millstream queues show` tells"
        )
    return [_RECEIPTS[digit] for digit in reply]


def _mark_before(posts: Sequence[Post]) -> int:
    """The serial before the first of posts that are plain and numbered one after the other; -1: they are not."""
    mark = serial = posts[0].serial - 1
    unordered = posts[0].key is None
    for p in posts:
        serial += 1
        if p.serial != serial or p.delay or p.at or p.expires or p.expires_at or (p.key is None) is not unordered:
            return -1
    return mark


def _times(p: Post) -> tuple[int | str, int | str]:
    """When it is due and when it expires, as scripts read it."""
    due = _ms(p.at) if p.at else f"+{_ms(p.delay)}" if p.delay else 0
    expires = _ms(p.expires_at) if p.expires_at else f"+{_ms(p.expires)}" if p.expires else 0
    return due, expires


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _entry(ref: bytes, fields: list[bytes], crashes: int) -> Entry:
    if len(fields) == 2 and fields[0] == b"d":
        return Entry(ref, fields[1], crashes)
    if len(fields) == 4 and fields[0] == b"d" and fields[2] == b"x" and fields[3].isdigit():
        return Entry(ref, fields[1], crashes, int(fields[3]))
    if len(fields) >= 6 and fields[0] == b"d" and fields[2] == b"k" and fields[4] == b"i":  # one with a key, not in order
        rest = dict(zip(fields[6::2], fields[7::2], strict=True))
        if rest.keys() <= {b"t", b"x", b"o"} and rest.get(b"x", b"0").isdigit():
            return Entry(ref, fields[1], crashes, int(rest.get(b"x", 0)))
    return Entry(ref, None, crashes, 0, msgspec.msgpack.encode(fields))


def _letters(queue: str, taken: Sequence[tuple[bytes, list[bytes]]], crashes: Sequence[int]) -> list[Entry]:
    """Dead letters that were claimed, each as a message; those that are gone are passed over."""
    group = whose_dead(queue)
    return [Entry(ref, enclose(dead_letter(group, ref, fields)), crashes[i]) for i, (ref, fields) in enumerate(taken) if fields]


def _unless_refused(settled: int, queue: str, consumer: str, outcomes: Sequence[Outcome]) -> int:
    if settled < 0:
        raise LeaseLost(f"consumer {consumer!r} has no lease on queue {queue!r}: {len(outcomes)} outcomes were refused")
    return settled


def _record(o: Outcome) -> tuple[Any, ...]:
    if o.kind is Kind.RETRY:
        return (1, o.ref, o.id, b"", 0, 0, o.body, _ms(o.delay), o.expires_ms)
    ttl_ms = _ms(o.result_ttl)
    given = int(o.given_id)
    if o.kind is Kind.DEAD:
        letter = b"" if o.letter is None else encode_letter(o.letter)
        return (2, o.ref, o.id, o.result or b"", ttl_ms, given, o.body, o.task, letter)
    if o.kind is Kind.EXPIRED:
        return (3, o.ref, o.id, EXPIRED, ttl_ms, given, b"", 0, b"")
    return (0, o.ref, o.id, o.result or b"", ttl_ms, given, b"", 0, b"")


def _after(place: Place) -> str:
    """The entry after which a group reads on."""
    if place == BEGINNING:
        return "0"
    if place == END:
        return "$"
    if isinstance(place, str):
        return "{}-{}".format(*parse_entry(place))
    return f"{max(0, _ms(place) - 1)}-18446744073709551615"
