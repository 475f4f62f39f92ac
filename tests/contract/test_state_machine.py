"""Two rooms walk through the same random histories, and after every step look the same.

``MILLSTREAM_MODEL_STEPS`` is how many steps to walk at least; ``MILLSTREAM_MODEL_SERVER=redis`` walks on Redis, not Valkey.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from millstream.address import group_address
from millstream.broker import Claim, Entry, Followed, JobView, Listed, Position, Post, Receipt
from millstream.broker.contract import BEGINNING, END, Place
from millstream.errors import LeaseLost
from millstream.memory import MemoryBroker
from millstream.memory.leases import Lease
from millstream.memory.queue import MemoryQueue
from millstream.memory.remains import Keeping
from millstream.memory.state import Job, Moment, Sender
from millstream.memory.topic import MemoryGroup, MemoryTopic
from millstream.outcome import Kind, Outcome
from millstream.redis import RedisBroker
from millstream.testing.room import DEAD_ENDING, DONE_ENDING, LETTER, QUEUE, START

# steps in one history
STEPS = 60
# steps in all, unless the environment says otherwise
TOTAL_STEPS = 1500

OPTIONS: dict[str, Any] = {"id_ttl": 1e6, "dead_max_age": 60.0, "dead_max_count": 4}
LOST = "lease lost"

TOPIC = "t"
FOLLOWED = "f"
"""A topic without groups."""
SENDERS = ["s0", "s1", "s2"]
LISTED: tuple[Listed, ...] = ("scheduled", "ready", "running")

# how far back a choice among what happened goes: 0 is the latest
recent = st.integers(0, 5)
new_jobs = st.integers(0, 3)
some = st.lists(st.integers(0, 9), min_size=1, max_size=5)
seconds = st.sampled_from([0.5, 1.0, 1.5, 2.0, 5.0, 12.0])
delays = st.sampled_from([0.0, 0.0, 0.0, 1.0, 5.0, 20.0])
leases = st.sampled_from([3.0, 10.0])
max_lengths = st.sampled_from([None, None, None, None, 3, 8])
ends_of_the_log = st.sampled_from([BEGINNING, END])
suspect_afters = st.sampled_from([2, 2, 2, 1, 3])


Room = MemoryBroker | RedisBroker
MakeRoom = Callable[[], Room]
Verb = Callable[[Room, int], Coroutine[Any, Any, Any]]
"""A call to one room; the number is its side."""


@dataclass(frozen=True)
class Claimed:
    """One delivery, as each room named it."""

    consumer: str
    id: str
    entries: tuple[Entry, Entry]


@dataclass(frozen=True)
class Way:
    """How a delivery is to end."""

    kind: Kind
    delay: float
    kept: bool

    def outcome(self, claimed: Claimed, side: int, given: bool, turn: int) -> Outcome:
        entry = claimed.entries[side]
        ending = {Kind.DONE: DONE_ENDING, Kind.DEAD: DEAD_ENDING}.get(self.kind)
        return Outcome(
            self.kind,
            entry.ref,
            claimed.id,
            result=ending if self.kept else None,
            result_ttl=1e6 if self.kept else 0.0,
            given_id=given,
            body=f"{claimed.id}#{turn}".encode(),
            delay=self.delay,
            expires_ms=entry.expires_ms,
            task="t" if self.kind is Kind.DEAD else "",
            letter=LETTER if self.kind is Kind.DEAD else None,
        )


ways = st.builds(Way, st.sampled_from(Kind), delays, st.booleans())


class Seen(NamedTuple):
    """A claim, without what rooms name differently."""

    entries: list[tuple[bytes | None, int, int]]
    now_ms: int
    next_due: float | None
    paused: bool
    suspects: bool


def seen(answer: Claim | str) -> Seen | str:
    if isinstance(answer, str):
        return answer
    return Seen(_plain(answer.entries), answer.now_ms, answer.next_due, answer.paused, answer.suspects)


def _plain(entries: Iterable[Entry]) -> list[tuple[bytes | None, int, int]]:
    return [(entry.body, entry.crashes, entry.expires_ms) for entry in entries]


class TwoRooms(RuleBasedStateMachine):
    """The histories. A subclass says which rooms; ``walked`` counts the steps of all its runs.

    Hypothesis leaves rules out of most histories, so the important moves are part of several rules.
    """

    make_rooms: tuple[MakeRoom, MakeRoom]
    queue = QUEUE
    walked = 0

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.now = START
        self.turn = 0
        self.consumers: list[str] = []
        self.leased: list[str] = []
        self.ids: dict[str, bool] = {}
        """Every id that was ever sent, and whether a caller gave it."""
        self.marks = dict.fromkeys(SENDERS, 0)
        """The highest serial each sender has used."""
        self.accepted: set[str] = set()
        """Generated ids that were accepted."""
        self.claimed: list[Claimed] = []
        self.dead: list[str] = []
        self.again: list[Callable[[], None]] = []
        """Calls that may be sent again after a lost reply."""
        self.rooms = [make_room() for make_room in self.make_rooms]
        for room in self.rooms:
            self.runner.run(self._open(room))

    async def _open(self, room: Room) -> None:
        await room.open()
        room.set_clock(self.now)

    def teardown(self) -> None:
        for room in self.rooms:
            self.runner.run(room.close())
        self.runner.close()

    def both(self, verb: Verb) -> tuple[Any, Any]:
        """What both rooms answer; a lost lease is an answer too."""

        async def ask(room: Room, side: int) -> Any:
            try:
                return await verb(room, side)
            except LeaseLost:
                return LOST

        left, right = (self.runner.run(ask(room, side)) for side, room in enumerate(self.rooms))
        return left, right

    def same(self, verb: Verb) -> Any:
        left, right = self.both(verb)
        assert left == right
        return left

    def consumer(self, back: int) -> str:
        """One of those that have their lease, or, for the highest number, of all there ever were."""
        if not self.leased:
            self.join(10.0)
        names = self.consumers if back == 5 else self.leased
        return names[-1 - back % len(names)]

    def lost(self, consumer: str) -> None:
        if consumer in self.leased:
            self.leased.remove(consumer)

    def pick(self, backs: Iterable[int]) -> list[Claimed]:
        """Some of the latest deliveries, whoever has them now."""
        return [self.claimed[-1 - back % len(self.claimed)] for back in backs] if self.claimed else []

    def held(self, consumer: str, backs: Iterable[int]) -> list[Claimed]:
        """Some of the latest deliveries to one consumer."""
        own = [claimed for claimed in self.claimed if claimed.consumer == consumer]
        return [own[-1 - back % len(own)] for back in backs] if own else []

    # -- producers ---------------------------------------------------------------------------------------------------------

    def send(self, posts: Sequence[Post], sender: str, max_length: int | None) -> None:
        receipts = self.same(lambda room, _: self.accept(room, posts, sender, max_length))
        for post, receipt in zip(posts, receipts, strict=True):
            self.ids.setdefault(post.id, post.serial == 0)
            if post.serial and receipt is not Receipt.FULL:
                self.accepted.add(post.id)

    async def accept(self, room: Room, posts: Sequence[Post], sender: str, max_length: int | None) -> list[Receipt]:
        return await room.publish(self.queue, posts, sender=sender, max_length=max_length)

    def post(self, job_id: str, serial: int = 0, delay: float = 0.0, expires: float = 0.0, absolute: bool = False) -> Post:
        self.turn += 1
        body, task = f"{job_id}#{self.turn}".encode(), "" if serial else "t"
        if not absolute:
            return Post(job_id, body, task, serial, delay, expires=expires)
        expires_at = self.now + expires if expires else 0.0
        return Post(job_id, body, task, serial, at=self.now + delay, expires_at=expires_at)

    def fill(self, count: int) -> None:
        """Some plain new jobs."""
        self.publish_serials("s0", [1] * count, 0.0, 0.0, None)

    @rule(count=st.integers(1, 4), delay=delays, expires=delays, absolute=st.booleans(), max_length=max_lengths)
    def publish(self, count: int, delay: float, expires: float, absolute: bool, max_length: int | None) -> None:
        names = [f"g-{len(self.ids) + n}" for n in range(count)]
        posts = [self.post(name, 0, delay, expires, absolute) for name in names]
        self.again.append(lambda: self.send(posts, "", max_length))
        self.again[-1]()

    @precondition(lambda self: self.ids)
    @rule(at=some, task=st.sampled_from(["t", "another"]), max_length=max_lengths)
    def publish_known_ids(self, at: list[int], task: str, max_length: int | None) -> None:
        # a generated id that was refused would be a second job of that id once it is accepted: in earnest, names of senders
        # are never used by others
        names = [name for name, given in self.ids.items() if given or name in self.accepted]
        if names:
            posts = [Post(name, name.encode(), task) for name in (names[-1 - back % len(names)] for back in at)]
            self.send(posts, "", max_length)

    @rule(number=st.sampled_from(["0", "00", "01", "9999", "x", ""]))
    def publish_what_only_looks_generated(self, number: str) -> None:
        self.send([self.post(f"s1-{number}")], "", None)

    @rule(
        sender=st.sampled_from(SENDERS[1:]),
        steps=st.lists(st.sampled_from([1, 1, 1, 1, 2, 3, 0, -1, -4]), min_size=1, max_size=5),
        delay=delays,
        expires=delays,
        max_length=max_lengths,
    )
    def publish_serials(self, sender: str, steps: list[int], delay: float, expires: float, max_length: int | None) -> None:
        """Mostly one after the other, with gaps, repeats, and serials that come late."""
        serials, serial = [], self.marks[sender]
        for step in steps:
            serial = max(1, serial + step)
            serials.append(serial)
        self.marks[sender] = max(self.marks[sender], *serials, 0)
        posts = [self.post(f"{sender}-{serial}", serial, delay, expires) for serial in serials]
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
        self.same(lambda room, _: room.cancel(self.queue, names[-1 - back % len(names)]))

    # -- consumers ---------------------------------------------------------------------------------------------------------

    @initialize(terms=st.lists(leases, min_size=2, max_size=3))
    def first_consumers(self, terms: list[float]) -> None:
        for lease in terms:
            self.join(lease)

    @rule(lease=leases)
    def join(self, lease: float) -> None:
        # names rise and fall, so that the order of joining is not the order of names
        name = f"c{len(self.consumers) * 37 % 100:02}-{len(self.consumers)}"
        self.consumers.append(name)
        self.leased.append(name)
        self.both(lambda room, _: room.join(self.queue, name, lease))

    def claim(self, consumer: str, count: int, alone: bool = False, suspect_after: int = 2) -> list[Claimed]:
        left, right = self.both(
            lambda room, _: room.claim(self.queue, consumer, count, alone=alone, suspect_after=suspect_after)
        )
        assert seen(left) == seen(right)
        if left == LOST:
            self.lost(consumer)
            return []
        return self.note(consumer, zip(left.entries, right.entries, strict=True))

    def note(self, consumer: str, pairs: Iterable[tuple[Entry, Entry]]) -> list[Claimed]:
        noted = [Claimed(consumer, (pair[0].body or b"").partition(b"#")[0].decode(), pair) for pair in pairs]
        self.claimed += noted
        return noted

    @rule(
        new=new_jobs,
        back=recent,
        count=st.integers(0, 4),
        alone=st.sampled_from([False, False, True]),
        suspect_after=suspect_afters,
    )
    def claim_some(self, new: int, back: int, count: int, alone: bool, suspect_after: int) -> None:
        self.fill(new)
        self.claim(self.consumer(back), count, alone, suspect_after)

    def settle(self, consumer: str, ends: Sequence[tuple[Claimed, Way]], turn: int) -> None:
        def verb(room: Room, side: int) -> Coroutine[Any, Any, int]:
            outcomes = [way.outcome(claimed, side, self.ids[claimed.id], turn) for claimed, way in ends]
            return room.settle(self.queue, consumer, outcomes)

        if self.same(verb) == LOST:
            self.lost(consumer)
        else:
            self.dead += [claimed.id for claimed, way in ends if way.kind is Kind.DEAD]

    def settle_and_remember(self, consumer: str, ends: Sequence[tuple[Claimed, Way]]) -> None:
        # one end each: a batch that says two things of one delivery means nothing
        ends = list({claimed.entries[0].ref: (claimed, way) for claimed, way in ends}.values())
        if ends:
            turn = self.turn
            self.again.append(lambda: self.settle(consumer, ends, turn))
            self.again[-1]()

    @rule(new=new_jobs, back=recent, count=st.integers(1, 5), alone=st.booleans(), how=st.lists(ways, max_size=5))
    def work(self, new: int, back: int, count: int, alone: bool, how: list[Way]) -> None:
        """Claim, and settle some of it."""
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
            self.same(lambda room, side: room.release(self.queue, consumer, [claimed.entries[side].ref for claimed in picked]))
            # rooms may rely on it: nobody settles what he gave back
            given_back = {claimed.entries[0].ref for claimed in picked}
            self.claimed = [c for c in self.claimed if c.consumer != consumer or c.entries[0].ref not in given_back]

    @rule(back=recent, which=some)
    def recover(self, back: int, which: list[int]) -> None:
        consumer = self.consumer(back)
        holding = self.held(consumer, which)
        left, right = self.both(
            lambda room, side: room.recover(self.queue, consumer, {claimed.entries[side].ref for claimed in holding})
        )
        if LOST in (left, right):
            assert left == right
        else:
            assert _plain(left) == _plain(right)
            self.note(consumer, zip(left, right, strict=True))

    @rule(backs=st.lists(recent, max_size=4), lease=leases)
    def renew(self, backs: list[int], lease: float) -> None:
        terms = {self.consumer(back): lease for back in backs}
        for consumer in self.same(lambda room, _: room.renew(self.queue, terms)):
            self.lost(consumer)

    @rule(back=recent, blameless=st.booleans())
    def leave(self, back: int, blameless: bool) -> None:
        consumer = self.consumer(back)
        self.same(lambda room, _: room.leave(self.queue, consumer, blameless=blameless))
        self.lost(consumer)

    @rule(new=new_jobs, count=st.integers(1, 4), lives=st.integers(1, 3), blameless=st.sampled_from([False, False, True]))
    def die_holding(self, new: int, count: int, lives: int, blameless: bool) -> None:
        """A new consumer claims, and goes; several times."""
        self.fill(new)
        for _ in range(lives):
            self.join(10.0)
            self.claim(self.leased[-1], count, suspect_after=3)
            self.leave(0, blameless)

    @rule(passed=seconds)
    def time_passes(self, passed: float) -> None:
        self.now += passed
        for room in self.rooms:
            room.set_clock(self.now)

    @rule(back=recent, first=seconds, second=seconds)
    def look_twice(self, back: int, first: float, second: float) -> None:
        """One consumer keeps its lease and looks at the others'."""
        watcher = self.consumer(back)
        for passed in (first, second):
            self.time_passes(passed)
            self.same(lambda room, _: room.renew(self.queue, {watcher: 10.0}))
            self.claim(watcher, 0)

    # -- operators ---------------------------------------------------------------------------------------------------------

    @rule(back=recent, resumed=st.sampled_from([True, True, True, False]))
    def pause_and_resume(self, back: int, resumed: bool) -> None:
        self.same(lambda room, _: room.pause(self.queue))
        self.claim(self.consumer(back), 3)
        if resumed:
            self.same(lambda room, _: room.resume(self.queue))

    @rule()
    def resume(self) -> None:
        self.same(lambda room, _: room.resume(self.queue))

    @precondition(lambda self: self.ids)
    @rule(which=some)
    def promote(self, which: list[int]) -> None:
        names = ["never", *self.ids]
        promoted = [names[-1 - back % len(names)] for back in which]
        self.same(lambda room, _: room.promote(self.queue, promoted))

    @precondition(lambda self: self.dead)
    @rule(which=some, purge=st.booleans())
    def replay_or_purge(self, which: list[int], purge: bool) -> None:
        names = ["never", *(self.dead[-1 - back % len(self.dead)] for back in which)]
        self.same(lambda room, _: room.purge(self.queue, names) if purge else room.replay(self.queue, names))

    # -- what is seen ------------------------------------------------------------------------------------------------------

    @invariant()
    def both_rooms_look_the_same(self) -> None:
        type(self).walked += 1
        self.same(self.look)

    async def look(self, room: Room, _: int) -> tuple[Any, ...]:
        everything: list[Awaitable[Any]] = [room.inspector.queue(self.queue), room.inspector.dead_letters(self.queue)]
        everything += [room.inspector.status(self.queue, name) for name in self.ids]
        everything += [room.results.get(self.queue, name) for name in self.ids]
        state, letters, *rest = await asyncio.gather(*everything)
        named = zip([*self.ids, *self.ids], rest, strict=True)
        seen_letters = [(d.id, d.task, d.queue, d.letter, d.died_at, d.body) for d in letters]
        return state, seen_letters, list(named), [await self.listed(room, status) for status in LISTED]

    async def listed(self, room: Room, status: Listed) -> list[tuple[Any, ...]]:
        """All jobs of one state, read in pages, without what rooms name differently."""
        found: list[JobView] = []
        while page := await room.inspector.jobs(self.queue, status, after=found[-1].cursor if found else "", limit=7):
            found += page
        return [(v.status, v.body, v.crashes, v.due_at, v.expires_at, v.consumer) for v in found]


def _followed(answer: Followed) -> tuple[Any, ...]:
    return _plain(answer.entries), answer.missed, answer.position.entry, answer.position.number, answer.next_due


class TwoTopics(TwoRooms):
    """The same histories in a group of a topic, to which everything is emitted, beside another group that works too."""

    queue = group_address(TOPIC, "g")
    other = group_address(TOPIC, "h")

    def __init__(self) -> None:
        super().__init__()
        self.blurred = False
        """A group was moved to where a server cannot tell how many events come after."""
        self.places: list[str] = []
        self.following: list[tuple[str, list[Position]]] = []
        """Those who follow: a topic, and where they are in each room."""
        self.emitted = 0

    async def accept(self, room: Room, posts: Sequence[Post], sender: str, max_length: int | None) -> list[Receipt]:
        return await room.emit(TOPIC, posts, sender=sender, max_length=max_length)

    @initialize(place=ends_of_the_log, keep=st.sampled_from([None, 5.0]), keep_count=st.sampled_from([None, 4]))
    def open_topic(self, place: Place, keep: float | None, keep_count: int | None) -> None:
        groups: dict[str, Place] = {"g": BEGINNING, "h": place}
        self.same(lambda room, _: room.open_topic(TOPIC, groups, keep=keep, keep_count=keep_count))
        for topic in (TOPIC, FOLLOWED):
            self.begin_to_follow(topic)
        self.both(lambda room, _: room.join(self.other, "other", 1e6))

    @rule(new=new_jobs, count=st.integers(0, 5), how=st.lists(ways, max_size=5))
    def other_group_works(self, new: int, count: int, how: list[Way]) -> None:
        self.fill(new)
        left, right = self.both(lambda room, _: room.claim(self.other, "other", count))
        assert seen(left) == seen(right)
        if left == LOST:
            self.both(lambda room, _: room.join(self.other, "other", 1e6))
            return
        pairs = zip(left.entries, right.entries, strict=True)
        claimed = [Claimed("other", (pair[0].body or b"").partition(b"#")[0].decode(), pair) for pair in pairs]
        ends = list(zip(claimed, how, strict=False))

        def settle(room: Room, side: int) -> Coroutine[Any, Any, int]:
            return room.settle(self.other, "other", [way.outcome(c, side, self.ids[c.id], self.turn) for c, way in ends])

        self.same(settle)
        rest = claimed[len(ends) :]
        self.same(lambda room, side: room.release(self.other, "other", [c.entries[side].ref for c in rest]))

    def settle_and_remember(self, consumer: str, ends: Sequence[tuple[Claimed, Way]]) -> None:
        # an event given again may be beside its retry: which of the two ends first is for no room to say
        super().settle_and_remember(consumer, list({claimed.id: (claimed, way) for claimed, way in ends}.values()))

    @rule()
    def remove_the_other_group(self) -> None:
        self.same(lambda room, _: room.remove_group(self.other))

    @rule(topic=st.sampled_from([TOPIC, FOLLOWED]))
    def begin_to_follow(self, topic: str) -> None:
        positions = [followed.position for followed in self.both(lambda room, _: room.follow(topic, None, 1))]
        self.following.append((topic, positions))

    @rule(new=new_jobs, back=recent, count=st.integers(1, 5))
    def follow(self, new: int, back: int, count: int) -> None:
        self.fill(new)
        topic, positions = self.following[-1 - back % len(self.following)]
        left, right = self.both(lambda room, side: room.follow(topic, positions[side], count))
        positions[:] = [left.position, right.position]
        assert _followed(left) == _followed(right)

    @rule(new=st.integers(1, 5), delay=delays, max_length=max_lengths, keep_count=st.sampled_from([None, 0, 2]))
    def emit_to_those_who_follow(self, new: int, delay: float, max_length: int | None, keep_count: int | None) -> None:
        self.same(lambda room, _: room.open_topic(FOLLOWED, {}, keep_count=keep_count))
        posts = [Post(f"f{n}", f"f{n}".encode(), delay=delay) for n in range(self.emitted, self.emitted + new)]
        self.emitted += new
        self.same(lambda room, _: room.emit(FOLLOWED, posts, max_length=max_length))

    @rule(to=ends_of_the_log)
    def seek(self, to: str) -> None:
        self.move(to)
        self.blurred = False

    @rule(seconds=seconds)
    def seek_a_moment(self, seconds: float) -> None:
        self.move(self.now - seconds)
        self.blurred = True

    @precondition(lambda self: self.places)
    @rule(back=recent)
    def seek_an_earlier_place(self, back: int) -> None:
        self.move(self.places[-1 - back % len(self.places)])
        self.blurred = True

    def move(self, to: Place) -> None:
        self.same(lambda room, _: room.seek(self.queue, to))
        # what is given again belongs to whoever gets it: nobody settles what he was given before
        self.claimed = [claimed for claimed in self.claimed if not claimed.entries[0].ref.startswith(b"L")]
        self.again.clear()

    async def look(self, room: Room, _: int) -> tuple[Any, ...]:
        topic = await room.inspector.topic(TOPIC)
        self.places += [group.place for group in topic.groups if group.name == "g" and group.place not in self.places]
        state, *rest = await super().look(room, _)
        if self.blurred:
            state = msgspec.structs.replace(state, ready=0)
            unknown = [msgspec.structs.replace(group, lag=None, ready=0) for group in topic.groups]
            topic = msgspec.structs.replace(topic, groups=unknown)
        return state, topic, await room.inspector.topic(FOLLOWED), *rest


def walk(left: MakeRoom, right: MakeRoom, steps: int, histories: type[TwoRooms] = TwoRooms, **options: Any) -> int:
    """Walk at least so many steps; how many it were."""

    class Rooms(histories):  # type: ignore[misc, valid-type]
        make_rooms = (left, right)
        walked = 0

    while Rooms.walked < steps:
        examples = max(10, (steps - Rooms.walked) // STEPS)
        profile = settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            report_multiple_bugs=False,
            **options,
        )
        run_state_machine_as_test(Rooms, settings=profile)
    return Rooms.walked


def memory() -> MemoryBroker:
    return MemoryBroker(**OPTIONS)


@pytest.mark.parametrize("histories", [TwoRooms, TwoTopics], ids=["queue", "topic"])
def test_the_redis_room_behaves_as_the_memory_room(histories: type[TwoRooms], request: pytest.FixtureRequest) -> None:
    server = "redis_server" if os.environ.get("MILLSTREAM_MODEL_SERVER") == "redis" else "valkey_server"
    url = request.getfixturevalue(server)

    def redis() -> RedisBroker:
        return RedisBroker(url, namespace=f"model-{uuid.uuid4().hex}", **OPTIONS)

    walked = walk(memory, redis, int(os.environ.get("MILLSTREAM_MODEL_STEPS", TOTAL_STEPS)), histories)
    print(f"{walked} steps walked on {server}")


# -- the machine finds what is planted -------------------------------------------------------------------------------------


class Unfenced(MemoryQueue):
    """Late outcomes count."""

    def settle(self, consumer: str, outcomes: Sequence[Outcome], now: Moment, keeping: Keeping) -> int:
        leased = consumer in self._leases
        self._leases.setdefault(consumer, Lease(now.ms))
        self._held.setdefault(consumer, {})
        try:
            return super().settle(consumer, outcomes, now, keeping)
        finally:
            if not leased:
                del self._leases[consumer]
                self._forget_if_empty(consumer)


class Hasty(MemoryQueue):
    """One look is enough to lapse a lease."""

    def _look_at_leases(self, now_ms: int) -> None:
        for lease in self._leases.values():
            lease.overdue_ms = 0
        super()._look_at_leases(now_ms)


class Resentful(MemoryQueue):
    """A hand-back counts as a crash."""

    def _hand_back(self, jobs: list[Job]) -> int:
        for job in jobs:
            job.claims += 1
        return super()._hand_back(jobs)


class Presumptuous(MemoryQueue):
    """A skipped serial is taken for accepted."""

    def _accept(self, post: Post, sender: Sender, max_length: int | None, now: Moment) -> Receipt:
        sender.gaps.clear()
        return super()._accept(post, sender, max_length, now)


@pytest.mark.parametrize("rules", [Unfenced, Hasty, Resentful, Presumptuous], ids=lambda rules: rules.__name__)
def test_a_planted_bug_is_found(rules: type[MemoryQueue]) -> None:
    class Buggy(MemoryBroker):
        _rules = rules

    with pytest.raises(AssertionError):
        walk(memory, lambda: Buggy(**OPTIONS), steps=30_000, phases=[Phase.generate], derandomize=True)


class Impatient(MemoryTopic):
    """An event leaves the log when every group was given it, settled or not."""

    def _settled(self, group: MemoryGroup) -> int:
        return self._position(group.place)


class Partial(MemoryTopic):
    """Only one group holds the log."""

    def trim(self, now_ms: int) -> None:
        groups = self.groups
        self.groups = dict([*groups.items()][:1])
        super().trim(now_ms)
        self.groups = groups


class Forgetful(MemoryTopic):
    """What left the log before it was read was never there."""

    def follow(self, after: Position | None, count: int, now_ms: int) -> Followed:
        return msgspec.structs.replace(super().follow(after, count, now_ms), missed=0)


@pytest.mark.parametrize("topics", [Impatient, Partial, Forgetful], ids=lambda topics: topics.__name__)
def test_a_bug_planted_in_a_topic_is_found(topics: type[MemoryTopic]) -> None:
    class Buggy(MemoryBroker):
        _topics = topics

    with pytest.raises(AssertionError):
        walk(memory, lambda: Buggy(**OPTIONS), 30_000, TwoTopics, phases=[Phase.generate], derandomize=True)
