"""Random histories of sharded queues and topics: members, owners of shards, and published messages.

Besides equal answers, three invariants are checked. At most one consumer holds a lease of a shard. Its number is larger than
all earlier ones. The messages of a key are first delivered in the order of publishing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from millstream.broker import OrderRules, Post, Receipt
from millstream.model.address import Address
from tests.contract.machine.backends import (
    LISTED,
    LOST,
    BackendPair,
    BackendUnderTest,
    Claimed,
    Way,
    claim,
    leases,
    listed,
    pairs,
    seconds,
    seen,
    seen_letter,
    ways,
)

SHARDS = 3
"""Maximum number of shards."""
WORKERS = ("w0", "w1", "w2")
KEYS = (b"a", b"b")

shards = st.sampled_from([0, 0, 0, 1, 2])
workers = st.sampled_from(WORKERS)
# the number of shards that publishers assume: mostly the same
numbers = st.sampled_from([2, 2, 2, 2, 2, 3])
some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=4)


@dataclass
class Owner:
    """A consumer that joined a shard, and the messages it holds."""

    shard: int
    consumer: str
    epoch: int
    held: list[Claimed] = field(default_factory=list)


class TwoOwners(BackendPair):
    """A sharded queue. Each shard has one owner."""

    base_queue = Address("mail")
    """Address of the number of shards."""
    base = Address("mail")
    """Address of the members that share the shards."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.joined = 0
        self.owners: list[Owner] = []
        """All owners so far. The last one of a shard may still own it."""
        self.first_given: dict[tuple[int, bytes], int] = {}
        """By shard and key: the number of the latest message delivered."""
        self.keys: dict[str, bytes] = {}

    # -- differs for a topic -----------------------------------------------------------------------------------------------

    def shard(self, number: int) -> Address:
        """Return the address at which messages of a shard are claimed."""
        return self.base_queue.at_shard(number)

    def fenced(self, number: int) -> Address:
        """Return the address of a shard for publishing and fencing."""
        return self.base_queue.at_shard(number)

    async def accept(self, backend: BackendUnderTest, shard: int, posts: Sequence[Post], of: int) -> list[Receipt]:
        return await backend.publish(self.shard(shard), posts, shards=of)

    # -- publishers --------------------------------------------------------------------------------------------------------

    @rule(shard=shards, keys=some_keys, of=numbers)
    def publish(self, shard: int, keys: list[bytes], of: int) -> None:
        posts: list[Post] = []
        for key in keys:
            self.sent += 1
            name = f"n-{self.sent}"
            self.keys[name] = key
            posts.append(Post(name, name.encode(), "t", key=key))
        self.same(lambda backend, _: self.accept(backend, shard, posts, of))

    # -- owners ------------------------------------------------------------------------------------------------------------

    @initialize(order=st.sampled_from([None, OrderRules(stop=True), OrderRules(max_pending=1)]))
    def every_shard_has_an_owner(self, order: OrderRules | None) -> None:
        for shard in range(SHARDS):
            self.join_within(shard, 10.0, order)

    @rule(shard=shards, lease=leases)
    def join(self, shard: int, lease: float) -> None:
        self.join_within(shard, lease, None)

    def join_within(self, shard: int, lease: float, order: OrderRules | None) -> None:
        self.joined += 1
        name = f"c{self.joined}"
        epoch = self.same(lambda backend, _: backend.join(self.shard(shard), name, lease, max_consumers=1, order=order))
        if epoch:
            assert all(epoch > owner.epoch for owner in self.owners if owner.shard == shard)
            self.owners.append(Owner(shard, name, epoch))

    @rule(shard=shards, first=seconds, second=seconds, lease=leases)
    def join_when_leases_lapse(self, shard: int, first: float, second: float, lease: float) -> None:
        for passed in (first, second):
            self.pass_time(passed)
            self.join_within(shard, lease, None)

    def owner(self, shard: int, back: int) -> Owner | None:
        """Return the latest owner of a shard, or an earlier one that does not know that it lost the shard."""
        found = [owner for owner in self.owners if owner.shard == shard]
        return found[-1 - back % len(found)] if found else None

    @rule(
        shard=shards,
        new=st.lists(st.sampled_from(KEYS), max_size=4),
        back=st.sampled_from([0, 0, 0, 0, 1]),
        count=st.integers(1, 4),
        how=st.lists(ways, min_size=1, max_size=4),
    )
    def work(self, shard: int, new: list[bytes], back: int, count: int, how: list[Way]) -> None:
        """Let an owner claim messages and settle some of those it holds."""
        owner = self.owner(shard, back)
        if owner is None:
            return
        if new:
            self.publish(shard, new, 2)
        answers = self.both(lambda backend, _: claim(backend, self.shard(shard), owner.consumer, count))
        assert seen(answers[0]) == seen(answers[1])
        if answers[0] != LOST:
            claimed = pairs(answers, owner.consumer)
            for each in claimed:
                self.check_order(shard, each)
            owner.held += claimed
        ends = list(zip(owner.held, how, strict=False))
        ends.sort(key=lambda end: not end[1].in_bulk(given=False))
        if not ends:
            return

        def settle(backend: BackendUnderTest, side: int) -> Coroutine[Any, Any, int]:
            outcomes = [way.outcome(each, side, False, self.sent) for each, way in ends]
            return backend.settle(self.shard(shard), owner.consumer, outcomes)

        assert (self.same(settle) == LOST) == (answers[0] == LOST)
        owner.held = [each for each in owner.held if each not in [end[0] for end in ends]]

    def check_order(self, shard: int, claimed: Claimed) -> None:
        """Check that no earlier message of the key is delivered after this one."""
        number, at = int(claimed.id.removeprefix("n-")), (shard, self.keys[claimed.id])
        assert number >= self.first_given.get(at, 0)
        self.first_given[at] = number

    @rule(shard=shards, back=st.sampled_from([0, 1]), blameless=st.booleans())
    def give_up(self, shard: int, back: int, blameless: bool) -> None:
        owner = self.owner(shard, back)
        if owner is not None:
            self.same(lambda backend, _: backend.leave(self.shard(shard), owner.consumer, blameless=blameless))

    @rule(shard=shards, back=st.sampled_from([0, 0, 1]), lease=leases)
    def renew(self, shard: int, back: int, lease: float) -> None:
        owner = self.owner(shard, back)
        if owner is not None:
            self.same(lambda backend, _: backend.renew(self.shard(shard), {owner.consumer: lease}))

    @rule(passed=seconds)
    def time_passes(self, passed: float) -> None:
        self.pass_time(passed)

    @precondition(lambda self: self.owners)
    @rule(shard=shards, key=st.sampled_from(KEYS))
    def clear_key(self, shard: int, key: bytes) -> None:
        self.same(lambda backend, _: backend.clear_key(self.shard(shard), key, replay=False))

    # -- members -----------------------------------------------------------------------------------------------------------

    @rule(worker=workers, lease=leases)
    def join_members(self, worker: str, lease: float) -> None:
        membership = self.same(lambda backend, _: backend.join_members(self.base, worker, lease))
        assert worker in membership.members

    @rule(there=st.lists(workers, unique=True), lease=leases)
    def renew_membership(self, there: list[str], lease: float) -> None:
        self.same(lambda backend, _: backend.renew(self.base, dict.fromkeys(there, lease)))

    @rule(worker=workers)
    def leave_the_table(self, worker: str) -> None:
        self.same(lambda backend, _: backend.leave(self.base, worker))

    # -- number of shards --------------------------------------------------------------------------------------------------

    @rule(of=numbers, replace=st.booleans())
    def note_shards(self, of: int, replace: bool) -> None:
        self.same(lambda backend, _: backend.note_shards(self.base_queue, of, replace=replace))

    @rule(shard=shards, of=st.sampled_from([2, 2, 2, 2, 0, 3]))
    def fence(self, shard: int, of: int) -> None:
        self.same(lambda backend, _: backend.fence_shard(self.fenced(shard), of))

    @rule(of=st.sampled_from([2, 2, 2, 2, 2, 2, 0, 1, 3]))
    def reshard(self, of: int) -> None:
        self.same(lambda backend, _: backend.reshard(self.base_queue, of))

    # -- inspection --------------------------------------------------------------------------------------------------------

    @invariant()
    def both_backends_look_the_same(self) -> None:
        type(self).walked += 1
        self.same(self.look)

    async def look(self, backend: BackendUnderTest, _: int) -> list[Any]:
        inspector = backend.inspector
        told: list[Any] = [await inspector.shards(self.base_queue), await inspector.queues(), await inspector.topics()]
        for shard in map(self.shard, range(SHARDS)):
            state = await inspector.queue(shard)
            assert state.consumers <= 1
            told += [state, [seen_letter(letter) for letter in await inspector.dead_letters(shard)]]
            told += [await inspector.stopped_keys(shard), *[await listed(backend, shard, status) for status in LISTED]]
        return told


class TwoTopicOwners(TwoOwners):
    """A sharded topic with one group."""

    base_queue = Address.of_topic("orders")
    base = Address.of_group("orders", "g")

    def shard(self, number: int) -> Address:
        return self.base.at_shard(number)

    def fenced(self, number: int) -> Address:
        return self.base_queue.at_shard(number)

    async def accept(self, backend: BackendUnderTest, shard: int, posts: Sequence[Post], of: int) -> list[Receipt]:
        return await backend.emit(self.fenced(shard).log, posts, shards=of)
