"""Random histories of one queue: messages with and without keys are published, claimed, settled, stopped and operated on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from millstream.broker import Entry, OrderRules, Post, Receipt
from millstream.model.outcome import Kind
from millstream.testing.backend import QUEUE
from tests.contract.machine.backends import (
    LISTED,
    LOST,
    BackendPair,
    BackendUnderTest,
    Claimed,
    Way,
    claim,
    delays,
    leases,
    listed,
    max_lengths,
    pairs,
    plain,
    recent,
    seconds,
    seen,
    seen_letter,
    some,
    ways,
)

SENDERS = ["s0", "s1", "s2"]

id_ttls = st.sampled_from([0.0, 0.0, 0.0, None, 1e6])
suspect_afters = st.sampled_from([2, 2, 2, 1, 3])

palettes = st.sampled_from([(None,), (b"k",), (None, b"a", b"b"), (b"", b"\0", b"a", b"a\0"), (b"k", b"k", None)])
a_key = st.integers(0, 5)
"""A number that selects a key, or None, from the palette."""
new_keys = st.lists(a_key, max_size=3)
some_keys = st.lists(a_key, min_size=1, max_size=4)
rules_of_order = st.sampled_from(
    [None, None, OrderRules(), OrderRules(stop=True), OrderRules(max_pending=1), OrderRules(stop=True, max_pending=0)]
)


class TwoBackends(BackendPair):
    """Histories of a queue. Hypothesis omits some rules from most histories, so important steps are part of several rules."""

    queue = QUEUE

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0
        self.palette: tuple[bytes | None, ...] = (None,)
        """The keys of this history."""
        self.consumers: list[str] = []
        self.leased: list[str] = []
        self.ids: dict[str, bool] = {}
        """Every id ever sent, and whether a caller gave it."""
        self.marks = dict.fromkeys(SENDERS, 0)
        """The highest serial that each sender has used."""
        self.accepted: set[str] = set()
        """Generated ids that were accepted."""
        self.claimed: list[Claimed] = []
        self.dead: list[str] = []
        self.again: list[Callable[[], object]] = []
        """Calls that may be sent again after a lost reply."""
        self.id_ttls: dict[str, float | None] = {}
        """The ``id_ttl`` with which each given id was last created."""

    def consumer(self, back: int) -> str:
        """Return a consumer that holds its lease, or, if ``back`` is 5, one of all consumers that ever joined."""
        if not self.leased:
            self.join_within(10.0, None, None)
        names = self.consumers if back == 5 else self.leased
        return names[-1 - back % len(names)]

    def lost(self, consumer: str) -> None:
        if consumer in self.leased:
            self.leased.remove(consumer)

    def pick(self, backs: Iterable[int]) -> list[Claimed]:
        """Return some of the latest deliveries, of any consumer."""
        return [self.claimed[-1 - back % len(self.claimed)] for back in backs] if self.claimed else []

    def held(self, consumer: str, backs: Iterable[int]) -> list[Claimed]:
        """Some of the latest deliveries to one consumer."""
        own = [claimed for claimed in self.claimed if claimed.consumer == consumer]
        return [own[-1 - back % len(own)] for back in backs] if own else []

    # -- producers ---------------------------------------------------------------------------------------------------------

    def send(self, posts: Sequence[Post], sender: str, max_length: int | None) -> list[Receipt]:
        receipts: list[Receipt] = self.same(lambda backend, _: self.accept(backend, posts, sender, max_length))
        for post, receipt in zip(posts, receipts, strict=True):
            self.ids.setdefault(post.id, post.serial == 0)
            if post.serial and receipt is not Receipt.FULL:
                self.accepted.add(post.id)
            if not post.serial and receipt is Receipt.CREATED:
                self.id_ttls[post.id] = post.id_ttl
        return receipts

    async def accept(
        self, backend: BackendUnderTest, posts: Sequence[Post], sender: str, max_length: int | None
    ) -> list[Receipt]:
        return await backend.publish(self.queue, posts, sender=sender, max_length=max_length)

    @initialize(palette=palettes)
    def choose_keys(self, palette: tuple[bytes | None, ...]) -> None:
        self.palette = palette

    def key(self, number: int) -> bytes | None:
        return self.palette[number % len(self.palette)]

    def post(
        self, job_id: str, key: int, serial: int = 0, delay: float = 0.0, expires: float = 0.0, absolute: bool = False
    ) -> Post:
        self.turn += 1
        body, task = f"{job_id}#{self.turn}".encode(), "" if serial else "t"
        if not absolute:
            return Post(job_id, body, task, serial, delay, expires=expires, key=self.key(key))
        expires_at = self.now + expires if expires else 0.0
        return Post(job_id, body, task, serial, at=self.now + delay, expires_at=expires_at, key=self.key(key))

    def fill(self, new: Sequence[int]) -> None:
        """Publish new jobs with these keys."""
        self.publish_serials("s0", [(1, key) for key in new], 0.0, 0.0, None)

    @rule(new=some_keys, delay=delays, expires=delays, absolute=st.booleans(), max_length=max_lengths)
    def publish(self, new: list[int], delay: float, expires: float, absolute: bool, max_length: int | None) -> None:
        names = [f"g-{len(self.ids) + n}" for n in range(len(new))]
        posts = [self.post(name, key, 0, delay, expires, absolute) for name, key in zip(names, new, strict=True)]
        self.again.append(lambda: self.send(posts, "", max_length))
        self.again[-1]()

    @precondition(lambda self: self.ids)
    @rule(at=some, task=st.sampled_from(["t", "another"]), key=a_key, max_length=max_lengths)
    def publish_known_ids(self, at: list[int], task: str, key: int, max_length: int | None) -> None:
        # A refused generated id would name a second job once it is accepted. In practice nobody else uses a sender's name.
        names = [name for name, given in self.ids.items() if given or name in self.accepted]
        if names:
            picked = [names[-1 - back % len(names)] for back in at]
            self.send([Post(name, name.encode(), task, key=self.key(key)) for name in picked], "", max_length)

    @precondition(lambda self: self.queue == QUEUE)
    @rule(
        number=st.integers(0, 2),
        terms=st.lists(st.tuples(id_ttls, st.sampled_from(["t", "t", "another"]), st.booleans()), min_size=2, max_size=2),
        key=a_key,
        back=recent,
        how=ways,
        verb=st.sampled_from(["", "cancel", "purge", "purge", "replay"]),
    )
    def reuse_an_id(
        self, number: int, terms: list[tuple[float | None, str, bool]], key: int, back: int, how: Way, verb: str
    ) -> None:
        """End a job that has one of a few ids, or leave it, and publish a job with the same id."""
        job_id = f"o-{number}"
        self.publish_with_id_ttl(job_id, key, *terms[0])
        if verb == "cancel":
            self.same(lambda backend, _: backend.cancel(self.queue, job_id))
        consumer = self.consumer(back)
        self.settle_and_remember(consumer, [(claimed, how) for claimed in self.claim(consumer, 4)])
        if verb == "purge":
            self.same(lambda backend, _: backend.purge(self.queue, [job_id]))
        elif verb == "replay":
            self.same(lambda backend, _: backend.replay(self.queue, [job_id]))
        self.publish_with_id_ttl(job_id, key, *terms[1])

    def publish_with_id_ttl(self, job_id: str, key: int, id_ttl: float | None, task: str, named: bool) -> None:
        post = msgspec.structs.replace(self.post(job_id, key), task=task, id_ttl=id_ttl)
        if named:
            post = msgspec.structs.replace(post, request=f"r{self.turn}")
        self.again.append(lambda: self.send([post], "", None))
        free, taken = self.is_free(job_id), self.is_taken(job_id)
        (receipt,) = self.send([post], "", None)
        assert receipt is Receipt.CREATED or not free
        assert receipt is not Receipt.CREATED or not taken

    def is_free(self, job_id: str) -> bool:
        """Return whether an id must be free: it was created with ``id_ttl=0``, and its job is done, cancelled or expired."""
        status = self.same(lambda backend, _: backend.inspector.status(self.queue, job_id))
        return self.id_ttls.get(job_id) == 0 and status in ("done", "cancelled", "expired")

    def is_taken(self, job_id: str) -> bool:
        """Return whether an id must be in use: it belongs to a job that has not ended, or to a dead one."""
        status = self.same(lambda backend, _: backend.inspector.status(self.queue, job_id))
        letters = self.both(lambda backend, _: backend.inspector.dead_letter(self.queue, job_id))
        return status in LISTED or letters[0] is not None

    @rule(number=st.sampled_from(["0", "00", "01", "9999", "x", ""]))
    def publish_what_only_looks_generated(self, number: str) -> None:
        self.send([self.post(f"s1-{number}", 0)], "", None)

    @rule(
        sender=st.sampled_from(SENDERS[1:]),
        steps=st.lists(st.tuples(st.sampled_from([1, 1, 1, 1, 2, 3, 0, -1, -4]), a_key), min_size=1, max_size=5),
        delay=delays,
        expires=delays,
        max_length=max_lengths,
    )
    def publish_serials(
        self, sender: str, steps: list[tuple[int, int]], delay: float, expires: float, max_length: int | None
    ) -> None:
        """Publish serials, mostly consecutive, with gaps, repeats and late ones. Each has its own key."""
        serials, serial = [], self.marks[sender]
        for step, key in steps:
            serial = max(1, serial + step)
            serials.append((serial, key))
        self.marks[sender] = max([self.marks[sender], *(serial for serial, _ in serials)])
        posts = [self.post(f"{sender}-{serial}", key, serial, delay, expires) for serial, key in serials]
        self.again.append(lambda: self.send(posts, sender, max_length))
        self.again[-1]()

    @precondition(lambda self: self.again)
    @rule(back=recent)
    def send_again(self, back: int) -> None:
        self.again[-1 - back % len(self.again)]()

    @precondition(lambda self: self.ids)
    @rule(back=st.integers(0, 20))
    def cancel(self, back: int) -> None:
        names = ["never", *self.ids]
        self.same(lambda backend, _: backend.cancel(self.queue, names[-1 - back % len(names)]))

    # -- consumers ---------------------------------------------------------------------------------------------------------

    @initialize(terms=st.lists(leases, min_size=2, max_size=3))
    def first_consumers(self, terms: list[float]) -> None:
        for lease in terms:
            self.join_within(lease, None, None)

    @rule(lease=leases, max_consumers=st.sampled_from([None, None, None, 1, 2, 3]), order=rules_of_order)
    def join(self, lease: float, max_consumers: int | None, order: OrderRules | None) -> None:
        self.join_within(lease, max_consumers, order)

    def join_within(self, lease: float, max_consumers: int | None, order: OrderRules | None) -> None:
        # names alternate, so that the order of joins is not the order of names
        name = f"c{len(self.consumers) * 37 % 100:02}-{len(self.consumers)}"
        self.consumers.append(name)
        if self.same(lambda backend, _: backend.join(self.queue, name, lease, max_consumers=max_consumers, order=order)):
            self.leased.append(name)

    def claim(self, consumer: str, count: int, alone: bool = False, suspect_after: int = 2) -> list[Claimed]:
        left, right = self.both(
            lambda backend, _: claim(backend, self.queue, consumer, count, alone=alone, suspect_after=suspect_after)
        )
        assert seen(left) == seen(right)
        if left == LOST:
            self.lost(consumer)
            return []
        noted = pairs((left, right), consumer)
        self.claimed += noted
        return noted

    @rule(
        new=new_keys,
        back=recent,
        count=st.integers(0, 4),
        alone=st.sampled_from([False, False, True]),
        suspect_after=suspect_afters,
    )
    def claim_some(self, new: list[int], back: int, count: int, alone: bool, suspect_after: int) -> None:
        self.fill(new)
        self.claim(self.consumer(back), count, alone, suspect_after)

    def settle(self, consumer: str, ends: Sequence[tuple[Claimed, Way]], turn: int) -> None:
        def verb(backend: BackendUnderTest, side: int) -> Coroutine[Any, Any, int]:
            outcomes = [way.outcome(claimed, side, self.ids[claimed.id], turn) for claimed, way in ends]
            return backend.settle(self.queue, consumer, outcomes)

        if self.same(verb) == LOST:
            self.lost(consumer)
        else:
            self.dead += [claimed.id for claimed, way in ends if way.kind is Kind.DEAD]

    def settle_and_remember(self, consumer: str, ends: Sequence[tuple[Claimed, Way]]) -> None:
        # one outcome each: two outcomes of one delivery in a batch are undefined
        ends = list({claimed.entries[0].ref: (claimed, way) for claimed, way in ends}.values())
        ends.sort(key=lambda end: not end[1].in_bulk(self.ids[end[0].id]))
        if ends:
            turn = self.turn
            self.again.append(lambda: self.settle(consumer, ends, turn))
            self.again[-1]()

    @rule(new=new_keys, back=recent, count=st.integers(1, 5), alone=st.booleans(), how=st.lists(ways, max_size=5))
    def work(self, new: list[int], back: int, count: int, alone: bool, how: list[Way]) -> None:
        """Claim messages and settle some of them."""
        self.fill(new)
        consumer = self.consumer(back)
        claimed = self.claim(consumer, count)
        if alone:
            claimed += self.claim(consumer, 1, alone=True)
        self.settle_and_remember(consumer, list(zip(claimed, how, strict=False)))

    @rule(back=recent, which=some, how=st.lists(ways, min_size=5, max_size=5))
    def settle_some(self, back: int, which: list[int], how: list[Way]) -> None:
        consumer = self.consumer(back)
        self.settle_and_remember(consumer, list(zip(self.held(consumer, which), how, strict=False)))

    @rule(back=recent, which=some, anyones=st.booleans())
    def release(self, back: int, which: list[int], anyones: bool) -> None:
        consumer = self.consumer(back)
        picked = self.pick(which) if anyones else self.held(consumer, which)
        if picked:
            self.same(
                lambda backend, side: backend.release(self.queue, consumer, [claimed.entries[side].ref for claimed in picked])
            )
            # backends may rely on this: no consumer settles a message that it has released
            given_back = {claimed.entries[0].ref for claimed in picked}
            self.claimed = [c for c in self.claimed if c.consumer != consumer or c.entries[0].ref not in given_back]

    @rule(back=recent, which=some)
    def recover(self, back: int, which: list[int]) -> None:
        consumer = self.consumer(back)
        holding = self.held(consumer, which)
        left, right = self.both(
            lambda backend, side: backend.recover(self.queue, consumer, {claimed.entries[side].ref for claimed in holding})
        )
        if LOST in (left, right):
            assert left == right
            self.lost(consumer)
        else:
            assert plain(left) == plain(right)
            self.claimed += pairs((Found(left), Found(right)), consumer)

    @rule(backs=st.lists(recent, max_size=4), lease=leases)
    def renew(self, backs: list[int], lease: float) -> None:
        terms = {self.consumer(back): lease for back in backs}
        for consumer in self.same(lambda backend, _: backend.renew(self.queue, terms)):
            self.lost(consumer)

    @rule(back=recent, blameless=st.booleans())
    def leave(self, back: int, blameless: bool) -> None:
        consumer = self.consumer(back)
        self.same(lambda backend, _: backend.leave(self.queue, consumer, blameless=blameless))
        self.lost(consumer)

    @rule(new=new_keys, count=st.integers(1, 4), lives=st.integers(1, 3), blameless=st.sampled_from([False, False, True]))
    def die_holding(self, new: list[int], count: int, lives: int, blameless: bool) -> None:
        """A new consumer claims messages and leaves. Repeat this ``lives`` times."""
        self.fill(new)
        for _ in range(lives):
            self.join_within(10.0, None, None)
            self.claim(self.leased[-1], count, suspect_after=3)
            self.leave(0, blameless)

    @rule(passed=seconds)
    def time_passes(self, passed: float) -> None:
        self.pass_time(passed)

    @rule(back=recent, first=seconds, second=seconds)
    def look_twice(self, back: int, first: float, second: float) -> None:
        """One consumer renews its lease and checks those of the others."""
        watcher = self.consumer(back)
        for passed in (first, second):
            self.time_passes(passed)
            self.same(lambda backend, _: backend.renew(self.queue, {watcher: 10.0}))
            self.claim(watcher, 0)

    # -- operators ---------------------------------------------------------------------------------------------------------

    @rule(back=recent, resumed=st.sampled_from([True, True, True, False]))
    def pause_and_resume(self, back: int, resumed: bool) -> None:
        self.same(lambda backend, _: backend.pause(self.queue))
        self.claim(self.consumer(back), 3)
        if resumed:
            self.same(lambda backend, _: backend.resume(self.queue))

    @rule()
    def resume(self) -> None:
        self.same(lambda backend, _: backend.resume(self.queue))

    @precondition(lambda self: self.ids)
    @rule(which=some)
    def promote(self, which: list[int]) -> None:
        names = ["never", *self.ids]
        promoted = [names[-1 - back % len(names)] for back in which]
        self.same(lambda backend, _: backend.promote(self.queue, promoted))

    @precondition(lambda self: self.dead)
    @rule(which=some, purge=st.booleans())
    def replay_or_purge(self, which: list[int], purge: bool) -> None:
        names = ["never", *(self.dead[-1 - back % len(self.dead)] for back in which)]
        self.same(lambda backend, _: backend.purge(self.queue, names) if purge else backend.replay(self.queue, names))

    @rule(key=a_key, replay=st.booleans())
    def clear_key(self, key: int, replay: bool) -> None:
        self.clear(self.key(key), replay)

    def clear(self, key: bytes | None, replay: bool) -> None:
        if key is not None:
            self.same(lambda backend, _: backend.clear_key(self.queue, key, replay=replay))

    @rule(
        new=some_keys,
        back=recent,
        order=rules_of_order,
        how=st.lists(ways, max_size=4),
        replay=st.sampled_from([None, True, False]),
    )
    def fail(self, new: list[int], back: int, order: OrderRules | None, how: list[Way], replay: bool | None) -> None:
        """Let new jobs with the turn die. Those behind them wait or die too, and the first key may be cleared."""
        self.join_within(10.0, None, order)
        self.fill([*new, *new])
        consumer = self.consumer(0)
        claimed = self.claim(consumer, 10)
        dead = Way(Kind.DEAD, 0.0, kept=False)
        self.settle_and_remember(consumer, [(each, how[n] if n < len(how) else dead) for n, each in enumerate(claimed)])
        self.fill(new)
        self.claim(self.consumer(back), 2)
        if replay is not None:
            self.clear(self.key(new[0]), replay)

    # -- inspection --------------------------------------------------------------------------------------------------------

    @invariant()
    def both_backends_look_the_same(self) -> None:
        type(self).walked += 1
        self.same(self.look)

    async def look(self, backend: BackendUnderTest, _: int) -> tuple[Any, ...]:
        inspector = backend.inspector
        everything: list[Awaitable[Any]] = [inspector.queue(self.queue), inspector.dead_letters(self.queue)]
        everything += [inspector.stopped_keys(self.queue)]
        everything += [inspector.status(self.queue, name) for name in self.ids]
        everything += [backend.results.get(self.queue, name) for name in self.ids]
        state, letters, stopped, *rest = await asyncio.gather(*everything)
        self.dead += [letter.id for letter in letters if letter.id not in self.dead]
        named = list(zip([*self.ids, *self.ids], rest, strict=True))
        by_state = [await listed(backend, self.queue, status) for status in LISTED]
        return state, [seen_letter(letter) for letter in letters], stopped, named, by_state


@dataclass(frozen=True)
class Found:
    """Entries in the shape of a claim."""

    entries: list[Entry]
