"""The Broker of the memory backend. It adds a lock, clocks and waiting to the rules of ``queue.py`` and ``topic.py``."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import ClassVar, TypeVar
from weakref import WeakValueDictionary

from millstream.backends.memory.control import MemoryControlChannel
from millstream.backends.memory.ended_jobs import Keeping
from millstream.backends.memory.inspector import MemoryInspector
from millstream.backends.memory.queue import MemoryQueue
from millstream.backends.memory.results import MemoryResults
from millstream.backends.memory.state import Moment, State, Waiter
from millstream.backends.memory.topic import MemoryGroup, MemoryTopic
from millstream.broker import (
    Broker,
    Cancellation,
    Capabilities,
    Claim,
    Entry,
    EntryLocation,
    Followed,
    Membership,
    OrderRules,
    Position,
    Post,
    Receipt,
    ResultStore,
    WorkerInfo,
)
from millstream.broker.values import BEGINNING, REQUEST_SECONDS, SUSPECT_AFTER, LogPosition
from millstream.errors import ShardsChanged
from millstream.model.address import Address
from millstream.model.outcome import Outcome

T = TypeVar("T")


class MemoryBroker(Broker):
    """Keeps every promise of the contract except durability, within one process.

    Brokers with the same name and namespace share their queues across threads and event loops, as long as one of them is
    referenced. A broker without a name shares nothing.
    """

    capabilities = Capabilities(durable=False, shared=False, server="memory")

    _rules: ClassVar[type[MemoryQueue]] = MemoryQueue
    _topics: ClassVar[type[MemoryTopic]] = MemoryTopic
    _shared: ClassVar[WeakValueDictionary[tuple[str, str], State]] = WeakValueDictionary()
    _shared_lock: ClassVar[Lock] = Lock()

    def __init__(
        self,
        name: str = "",
        *,
        namespace: str = "millstream",
        id_ttl: float = 86_400.0,
        dead_max_age: float = 604_800.0,
        dead_max_count: int = 100_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keeping = Keeping(id_ttl=id_ttl, dead_max_age=dead_max_age, dead_max_count=dead_max_count)
        self._clock = clock
        self._set_to: float | None = None
        if name:
            with self._shared_lock:
                self._state = self._shared.setdefault((name, namespace), State())
        else:
            self._state = State()
        self._inspector = MemoryInspector(self._state, self._now)
        self._results = MemoryResults(self._state, self._now)
        self._control = MemoryControlChannel(self._state, self._now)

    @property
    def inspector(self) -> MemoryInspector:
        return self._inspector

    @property
    def results(self) -> ResultStore:
        return self._results

    @property
    def control(self) -> MemoryControlChannel:
        return self._control

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def declare(self, queue: Address) -> None:
        with self._state.lock:
            if queue.is_queue:
                self._state.declared.add(queue)
            else:
                self._open_topic(queue.log, {queue.group: BEGINNING})

    async def open_topic(
        self,
        topic: str,
        groups: Mapping[str, LogPosition],
        *,
        keep: float | None = None,
        keep_count: int | None = None,
        followed: bool = False,
    ) -> list[str]:
        with self._state.lock:
            made = self._open_topic(topic, groups)
            rules = self._topic(topic)
            rules.keep = rules.keep if keep is None else keep or None
            rules.keep_count = rules.keep_count if keep_count is None else keep_count or None
            rules.followed = rules.followed or followed
            return made

    def _open_topic(self, topic: str, groups: Mapping[str, LogPosition]) -> list[str]:
        self._state.opened.add(topic)
        prefixed: dict[str, LogPosition] = {
            group: BEGINNING for group, prefix in self._state.prefixes if topic.startswith(prefix) and group not in groups
        }
        all_of_them = {name: (self._group(topic, name), position) for name, position in (prefixed | dict(groups)).items()}
        return [name for name in self._topic(topic).open(all_of_them) if name in groups]

    async def open_prefix(self, prefix: str, group: str, start: LogPosition, known: Collection[str] = ()) -> list[str]:
        with self._state.lock:
            new = sorted(topic for topic in self._state.opened if topic.startswith(prefix) and topic not in known)
            noted = (group, prefix) in self._state.prefixes
            for topic in new:
                self._open_topic(topic, {group: BEGINNING if noted else start})
            self._state.prefixes.add((group, prefix))
            return new

    # -- producers ---------------------------------------------------------------------------------------------------------

    async def publish(
        self, queue: Address, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        with self._locked(queue) as rules:
            self._check_fence(queue, shards)
            return rules.publish(posts, sender, max_length, self._now(), self._keeping)

    async def emit(
        self, topic: str, posts: Sequence[Post], *, sender: str = "", max_length: int | None = None, shards: int = 0
    ) -> list[Receipt]:
        with self._state.lock:
            self._check_fence(Address.of_topic(topic), shards)
            return self._topic(topic).emit(posts, sender, max_length, self._now(), self._keeping)

    async def cancel(self, queue: Address, job_id: str, *, request: str = "") -> Cancellation:
        with self._locked(queue) as rules:
            return rules.cancel(job_id, self._now(), self._keeping, request)

    async def cancel_many(self, queue: Address, job_ids: Sequence[str]) -> list[Cancellation]:
        with self._locked(queue) as rules:
            return [rules.cancel(job_id, self._now(), self._keeping) for job_id in job_ids]

    # -- consumers ---------------------------------------------------------------------------------------------------------

    async def join(
        self, queue: Address, consumer: str, lease: float, *, max_consumers: int | None = None, order: OrderRules | None = None
    ) -> int:
        await self.declare(queue)
        with self._locked(queue) as rules:
            return rules.join(consumer, lease, max_consumers, order, self._now())

    async def join_members(self, address: Address, member: str, lease: float) -> Membership:
        with self._locked(address) as rules:
            return rules.join_members(member, lease, self._now())

    def server(self, queue: Address) -> str:
        return ""

    def locate(self, ref: bytes) -> EntryLocation:
        return EntryLocation(ref.removeprefix(b"L").decode("ascii"), ref.startswith(b"L"))

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
        if wait > 0:
            await self._idle(queue, consumer, wait, alone)
        with self._locked(queue) as rules:
            return rules.claim(consumer, count, alone, suspect_after, self._now(), self._keeping)

    async def _idle(self, queue: Address, consumer: str, seconds: float, alone: bool) -> None:
        """Wait until a claim may return something."""
        waiter: Waiter[None] = Waiter()
        with self._locked(queue) as rules:
            now_ms = self._now().ms
            rules.check_lease(consumer)
            if rules.claimable(now_ms, alone):
                return
            next_due = rules.next_due(now_ms)
            rules.idle[waiter] = consumer
        try:
            await waiter.wait(seconds if next_due is None else min(seconds, next_due))
        except TimeoutError:
            pass
        finally:
            with self._state.lock:
                del rules.idle[waiter]

    async def nudge(self, queue: Address, consumer: str) -> None:
        with self._locked(queue) as rules:
            for waiter, name in rules.idle.items():
                if name == consumer:
                    waiter.wake(None)

    async def settle(self, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> int:
        with self._locked(queue) as rules:
            return rules.settle(consumer, outcomes, self._now(), self._keeping)

    async def release(self, queue: Address, consumer: str, refs: Sequence[bytes]) -> int:
        with self._locked(queue) as rules:
            return rules.release(consumer, refs)

    async def recover(self, queue: Address, consumer: str, holding: Collection[bytes]) -> list[Entry]:
        with self._locked(queue) as rules:
            return rules.recover(consumer, holding)

    async def renew(self, queue: Address, leases: Mapping[str, float]) -> set[str]:
        with self._locked(queue) as rules:
            return rules.renew(leases, self._now(), self._keeping)

    async def leave(self, queue: Address, consumer: str, *, blameless: bool = False) -> int:
        with self._locked(queue) as rules:
            return rules.leave(consumer, blameless)

    async def follow(self, topic: str, after: Position | None, count: int, *, wait: float = 0.0) -> Followed:
        if wait > 0 and after is not None:
            await self._until_readable(topic, after, wait)
        with self._state.lock:
            return self._topic(topic).follow(after, count, self._now().ms)

    async def _until_readable(self, topic: str, after: Position, seconds: float) -> None:
        waiter: Waiter[None] = Waiter()
        with self._state.lock:
            rules, now_ms = self._topic(topic), self._now().ms
            if rules.readable(after, now_ms):
                return
            next_due = rules.next_due(now_ms)
            rules.idle.add(waiter)
        try:
            await waiter.wait(seconds if next_due is None else min(seconds, next_due))
        except TimeoutError:
            pass
        finally:
            with self._state.lock:
                rules.idle.discard(waiter)

    # -- operators ---------------------------------------------------------------------------------------------------------

    async def pause(self, queue: Address) -> None:
        with self._locked(queue) as rules:
            rules.paused = True

    async def resume(self, queue: Address) -> None:
        with self._locked(queue) as rules:
            rules.resume()

    async def seek(self, group: Address, to: LogPosition, *, request: str = "") -> bool:
        with self._state.lock:
            return self._once(group, request, lambda: self._seek(group, to)) or False

    def _seek(self, group: Address, to: LogPosition) -> bool:
        group.check_group()
        rules = self._topic(group.log).groups.get(group.group)
        if rules is not None:
            rules.seek(to)
        return rules is not None

    async def remove_group(self, group: Address, *, request: str = "") -> bool:
        with self._state.lock:
            return self._once(group, request, lambda: self._remove_group(group)) or False

    def _remove_group(self, group: Address) -> bool:
        group.check_group()
        removed = self._topic(group.log).groups.pop(group.group, None)
        if removed is not None:
            del self._state.queues[group], self._state.queues[group.dead]
            removed.wake()
            removed.letters.wake()
        return removed is not None

    async def remove_prefix(self, prefix: str, group: str, *, request: str = "") -> bool:
        with self._state.lock:
            return self._once(Address(), request, lambda: self._remove_prefix(prefix, group)) or False

    def _remove_prefix(self, prefix: str, group: str) -> bool:
        if (group, prefix) not in self._state.prefixes:
            return False
        self._state.prefixes.discard((group, prefix))
        for topic in self._state.opened:
            if topic.startswith(prefix):
                self._remove_group(Address.of_group(topic, group))
        return True

    async def clear_key(self, queue: Address, key: bytes, *, replay: bool, request: str = "") -> int | None:
        with self._locked(queue) as rules:
            # The count is wrapped in a list because 0 is an answer too, and ``_once`` stores only true values.
            answer = self._once(queue, request, lambda: _listed(rules.clear_key(key, replay, self._now())))
            return answer[0] if answer else None

    async def note_shards(self, address: Address, shards: int, *, replace: bool = False) -> int:
        with self._state.lock:
            if replace or not self._state.shards.get(address):
                self._state.shards[address] = shards
            return self._state.shards[address]

    async def fence_shard(self, address: Address, shards: int) -> None:
        with self._state.lock:
            self._state.fences[address] = shards

    def _check_fence(self, address: Address, shards: int) -> None:
        noted = self._state.fences.setdefault(address, shards) if shards else self._state.shards.get(address, 0)
        if noted != shards:
            raise ShardsChanged(f"{address!r}: the number of shards is {noted}, not {shards}. Nothing was written")

    async def promote(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        with self._locked(queue) as rules:
            return self._once(queue, request, lambda: rules.promote(job_ids)) or []

    async def replay(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        with self._locked(queue) as rules:
            return self._once(queue, request, lambda: rules.replay(job_ids, self._now())) or []

    async def purge(self, queue: Address, job_ids: Sequence[str], *, request: str = "") -> list[str]:
        with self._locked(queue) as rules:
            return self._once(queue, request, lambda: rules.purge(job_ids, self._now())) or []

    def _once(self, address: Address, request: str, verb: Callable[[], T]) -> T | None:
        """Call ``verb`` and return its answer, or return the stored answer if this request changed something before. A false
        answer means that nothing changed."""
        now, name = self._now().wall, f"{address}\n{request}"
        answer: T | None = self._state.answers.get(name, now) if request else None
        if answer is None and (answer := verb()) and request:
            self._state.answers.put(name, answer, now + REQUEST_SECONDS, now)
        return answer

    async def register(self, worker: WorkerInfo, ttl: float) -> None:
        with self._state.lock:
            now = self._now().wall
            self._state.workers.put(worker.id, worker, now + ttl, now)

    async def unregister(self, worker_id: str) -> None:
        with self._state.lock:
            self._state.workers.drop(worker_id)

    # -- the clocks and the lock -------------------------------------------------------------------------------------------

    def set_clock(self, now: float | None) -> None:
        """Stop the queue time of this broker at ``now`` (epoch seconds). ``None`` lets it run again. For tests.

        Stored values with a lifetime (endings, given ids, senders, workers) still follow the real clock, as in every backend.
        """
        with self._state.lock:
            self._set_to = now
            for queue in self._state.queues.values():
                queue.wake()
            for topic in self._state.topics.values():
                topic.wake()

    def _now(self) -> Moment:
        wall = self._clock()
        return Moment(round((wall if self._set_to is None else self._set_to) * 1000), wall)

    @contextmanager
    def _locked(self, queue: Address) -> Iterator[MemoryQueue]:
        with self._state.lock:
            if not queue.is_queue:
                group = self._group(queue.log, queue.group)
                yield group.letters if queue.is_dead else group
                return
            rules = self._state.queues.get(queue)
            if rules is None:
                rules = self._state.queues[queue] = self._rules(queue)
            yield rules

    def _topic(self, topic: str) -> MemoryTopic:
        rules = self._state.topics.get(topic)
        if rules is None:
            rules = self._state.topics[topic] = self._topics(topic)
        return rules

    def _group(self, topic: str, group: str) -> MemoryGroup:
        address = Address.of_group(topic, group)
        rules = self._state.queues.get(address)
        if not isinstance(rules, MemoryGroup):
            rules = self._state.queues[address] = MemoryGroup(self._topic(topic), group)
            self._state.queues[address.dead] = rules.letters
        return rules


def _listed(value: int | None) -> list[int]:
    return [] if value is None else [value]
