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

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from millstream.broker import Claim, Entry, Post, Receipt
from millstream.errors import LeaseLost
from millstream.memory import MemoryBroker
from millstream.memory.queue import Keeping, MemoryQueue
from millstream.memory.state import Job, Lease, Moment, Place
from millstream.outcome import Kind, Outcome
from millstream.redis import RedisBroker
from millstream.testing.room import DEAD_ENDING, DONE_ENDING, LETTER, QUEUE, START

# steps in one history
STEPS = 60
# steps in all, unless the environment says otherwise
TOTAL_STEPS = 1500

OPTIONS: dict[str, Any] = {"id_ttl": 1e6, "dead_max_age": 60.0, "dead_max_count": 4}
LOST = "lease lost"

SENDERS = ["s1", "s2"]
LAST_SERIAL = 12
GIVEN = [*(f"g{n}" for n in range(16)), "g-0", "g-1"]

# how far back a choice among what happened goes: 0 is the latest
recent = st.integers(0, 5)
some = st.lists(st.integers(0, 9), max_size=5)
ids_of_dead = st.lists(st.integers(0, 5), max_size=3)
seconds = st.sampled_from([0.5, 1.0, 1.5, 2.0, 5.0, 12.0])
delays = st.sampled_from([0.0, 0.0, 1.0, 5.0, 20.0])
max_lengths = st.sampled_from([None, None, None, 3, 8])


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
    """The histories. A subclass says which rooms; ``walked`` counts the steps of all its runs."""

    make_left: MakeRoom
    make_right: MakeRoom
    walked = 0

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.now = START
        self.turn = 0
        self.consumers: list[str] = []
        self.ids: dict[str, bool] = {}
        """Every id that was ever sent, and whether a caller gave it."""
        self.serials: set[tuple[str, int]] = set()
        self.claimed: list[Claimed] = []
        self.dead: list[str] = []
        self.again: list[Callable[[], None]] = []
        """The latest call of each kind that may be sent again after a lost reply."""
        kind = type(self)
        self.rooms = (kind.make_left(), kind.make_right())
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
        return self.consumers[-1 - back % len(self.consumers)]

    def pick(self, backs: Iterable[int]) -> list[Claimed]:
        """Some of the latest deliveries, whoever has them now."""
        return [self.claimed[-1 - back % len(self.claimed)] for back in backs] if self.claimed else []

    def held(self, consumer: str, backs: Iterable[int]) -> list[Claimed]:
        """Some of the latest deliveries to one consumer."""
        own = [claimed for claimed in self.claimed if claimed.consumer == consumer]
        return [own[-1 - back % len(own)] for back in backs] if own else []

    # -- producers ---------------------------------------------------------------------------------------------------------

    def send(self, posts: Sequence[Post], sender: str, max_length: int | None) -> None:
        receipts = self.same(lambda room, _: room.publish(QUEUE, posts, sender=sender, max_length=max_length))
        for post, receipt in zip(posts, receipts, strict=True):
            if receipt is Receipt.CREATED:
                self.ids[post.id] = post.serial == 0
            if receipt in (Receipt.CREATED, Receipt.EXISTS) and post.serial:
                self.serials.add((sender, post.serial))
            self.ids.setdefault(post.id, post.serial == 0)

    def post(self, job_id: str, serial: int, delay: float, absolute: bool, expires: float) -> Post:
        self.turn += 1
        due = {"at": self.now + delay} if absolute else {"delay": delay}
        end = {"expires_at": self.now + expires} if absolute and expires else {"expires": expires}
        return Post(job_id, f"{job_id}#{self.turn}".encode(), "" if serial else "t", serial, **due, **end)

    @rule(
        names=st.lists(st.sampled_from(GIVEN), min_size=1, max_size=3),
        delay=delays,
        absolute=st.booleans(),
        expires=delays,
        max_length=max_lengths,
    )
    def publish_given(self, names: list[str], delay: float, absolute: bool, expires: float, max_length: int | None) -> None:
        posts = [self.post(name, 0, delay, absolute, expires) for name in names]
        self.again.append(lambda: self.send(posts, "", max_length))
        self.again[-1]()

    @rule(name=st.sampled_from(GIVEN))
    def publish_for_another_task(self, name: str) -> None:
        if name in self.ids:
            self.same(lambda room, _: room.publish(QUEUE, [Post(name, b"", "another")]))

    @rule(sender=st.sampled_from(SENDERS), serial=st.integers(0, LAST_SERIAL))
    def publish_a_generated_id_as_given(self, sender: str, serial: int) -> None:
        # one that is not accepted yet would be a second job of that id, which no sender's name allows in earnest
        number = serial if (sender, serial) in self.serials or not serial else 99
        self.send([self.post(f"{sender}-{number}", 0, 0.0, False, 0.0)], "", None)

    @rule(
        sender=st.sampled_from(SENDERS),
        first=st.integers(1, LAST_SERIAL),
        steps=st.lists(st.integers(0, 3), max_size=4),
        delay=delays,
        expires=delays,
        max_length=max_lengths,
    )
    def publish_generated(
        self, sender: str, first: int, steps: list[int], delay: float, expires: float, max_length: int | None
    ) -> None:
        serials = [first]
        for step in steps:
            serials.append(min(serials[-1] + step, LAST_SERIAL))
        posts = [self.post(f"{sender}-{serial}", serial, delay, False, expires) for serial in serials]
        self.again.append(lambda: self.send(posts, sender, max_length))
        self.again[-1]()

    @precondition(lambda self: self.again)
    @rule(back=recent)
    def send_again(self, back: int) -> None:
        self.again[-1 - back % len(self.again)]()

    @precondition(lambda self: self.ids)
    @rule(at=st.integers(0, 99))
    def cancel(self, at: int) -> None:
        names = [*self.ids, "never"]
        self.same(lambda room, _: room.cancel(QUEUE, names[at % len(names)]))

    # -- consumers ---------------------------------------------------------------------------------------------------------

    @initialize(leases=st.lists(st.sampled_from([3.0, 10.0]), min_size=2, max_size=3))
    def first_consumers(self, leases: list[float]) -> None:
        for lease in leases:
            self.join(lease)

    @rule(lease=st.sampled_from([3.0, 10.0]))
    def join(self, lease: float) -> None:
        name = f"c{uuid.UUID(int=len(self.consumers)).hex[-2:]}"
        self.consumers.append(name)
        self.same(lambda room, _: room.join(QUEUE, name, lease))

    def claim(self, consumer: str, count: int, alone: bool, suspect_after: int) -> None:
        left, right = self.both(lambda room, _: room.claim(QUEUE, consumer, count, alone=alone, suspect_after=suspect_after))
        assert seen(left) == seen(right)
        if left != LOST:
            self.note(consumer, zip(left.entries, right.entries, strict=True))

    def note(self, consumer: str, entries: Iterable[tuple[Entry, Entry]]) -> None:
        for pair in entries:
            assert pair[0].body is not None
            self.claimed.append(Claimed(consumer, pair[0].body.partition(b"#")[0].decode(), pair))

    @rule(back=recent, count=st.integers(0, 4), suspect_after=st.sampled_from([2, 2, 2, 1, 3]))
    def claim_some(self, back: int, count: int, suspect_after: int) -> None:
        self.claim(self.consumer(back), count, False, suspect_after)

    @rule(back=recent)
    def claim_all(self, back: int) -> None:
        self.claim(self.consumer(back), 100, False, 2)

    @rule(back=recent, count=st.sampled_from([1, 1, 5, 0]))
    def claim_alone(self, back: int, count: int) -> None:
        self.claim(self.consumer(back), count, True, 2)

    def settle(self, consumer: str, ends: Sequence[tuple[Claimed, Way]], turn: int) -> None:
        def verb(room: Room, side: int) -> Coroutine[Any, Any, int]:
            outcomes = [way.outcome(claimed, side, self.ids[claimed.id], turn) for claimed, way in ends]
            return room.settle(QUEUE, consumer, outcomes)

        if self.same(verb) != LOST:
            self.dead += [claimed.id for claimed, way in ends if way.kind is Kind.DEAD]

    @precondition(lambda self: self.claimed)
    @rule(back=recent, which=some, how=st.lists(ways, min_size=5, max_size=5))
    def settle_own(self, back: int, which: list[int], how: list[Way]) -> None:
        consumer = self.consumer(back)
        ends = list(zip(self.held(consumer, which), how, strict=False))
        if ends:
            turn = self.turn
            self.again.append(lambda: self.settle(consumer, ends, turn))
            self.again[-1]()

    @precondition(lambda self: self.claimed)
    @rule(back=recent, which=some, how=ways)
    def settle_anyones(self, back: int, which: list[int], how: Way) -> None:
        ends = [(claimed, how) for claimed in self.pick(which)]
        if ends:
            self.settle(self.consumer(back), ends, self.turn)

    @precondition(lambda self: self.claimed)
    @rule(back=recent, which=some, anyones=st.booleans())
    def release(self, back: int, which: list[int], anyones: bool) -> None:
        consumer = self.consumer(back)
        picked = self.pick(which) if anyones else self.held(consumer, which)
        if picked:
            self.same(lambda room, side: room.release(QUEUE, consumer, [claimed.entries[side].ref for claimed in picked]))

    @rule(back=recent, which=some)
    def recover(self, back: int, which: list[int]) -> None:
        consumer = self.consumer(back)
        holding = self.held(consumer, which)
        left, right = self.both(
            lambda room, side: room.recover(QUEUE, consumer, {claimed.entries[side].ref for claimed in holding})
        )
        if LOST in (left, right):
            assert left == right
            return
        assert _plain(left) == _plain(right)
        self.note(consumer, zip(left, right, strict=True))

    @rule(backs=st.lists(recent, max_size=4), lease=st.sampled_from([3.0, 10.0]))
    def renew(self, backs: list[int], lease: float) -> None:
        self.same(lambda room, _: room.renew(QUEUE, {self.consumer(back): lease for back in backs}))

    @rule(back=recent, blameless=st.booleans())
    def leave(self, back: int, blameless: bool) -> None:
        consumer = self.consumer(back)
        self.same(lambda room, _: room.leave(QUEUE, consumer, blameless=blameless))

    @rule(passed=seconds)
    def time_passes(self, passed: float) -> None:
        self.now += passed
        for room in self.rooms:
            room.set_clock(self.now)

    # -- operators ---------------------------------------------------------------------------------------------------------

    @rule(paused=st.sampled_from([True, False, False]))
    def pause_or_resume(self, paused: bool) -> None:
        self.same(lambda room, _: room.pause(QUEUE) if paused else room.resume(QUEUE))

    @precondition(lambda self: self.dead)
    @rule(which=ids_of_dead, purge=st.booleans())
    def replay_or_purge(self, which: list[int], purge: bool) -> None:
        names = ["never", *(self.dead[-1 - back % len(self.dead)] for back in which)]
        self.same(lambda room, _: room.purge(QUEUE, names) if purge else room.replay(QUEUE, names))

    # -- what is seen ------------------------------------------------------------------------------------------------------

    @invariant()
    def both_rooms_look_the_same(self) -> None:
        type(self).walked += 1
        self.same(self.look)

    async def look(self, room: Room, _: int) -> tuple[Any, ...]:
        everything: list[Awaitable[Any]] = [room.inspector.queue(QUEUE), room.inspector.dead_letters(QUEUE)]
        everything += [room.inspector.status(QUEUE, name) for name in self.ids]
        everything += [room.results.get(QUEUE, name) for name in self.ids]
        state, letters, *rest = await asyncio.gather(*everything)
        named = zip([*self.ids, *self.ids], rest, strict=True)
        return state, [(d.id, d.task, d.queue, d.letter, d.died_at, d.body) for d in letters], list(named)


def walk(left: MakeRoom, right: MakeRoom, steps: int, **options: Any) -> int:
    """Walk at least so many steps; how many it were."""

    class Rooms(TwoRooms):
        make_left = staticmethod(left)
        make_right = staticmethod(right)

    while Rooms.walked < steps:
        examples = max(10, (steps - Rooms.walked) // STEPS)
        profile = settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            **options,
        )
        run_state_machine_as_test(Rooms, settings=profile)
    return Rooms.walked


def memory() -> MemoryBroker:
    return MemoryBroker(**OPTIONS)


def test_the_redis_room_behaves_as_the_memory_room(request: pytest.FixtureRequest) -> None:
    server = "redis_server" if os.environ.get("MILLSTREAM_MODEL_SERVER") == "redis" else "valkey_server"
    url = request.getfixturevalue(server)

    def redis() -> RedisBroker:
        return RedisBroker(url, namespace=f"model-{uuid.uuid4().hex}", **OPTIONS)

    walked = walk(memory, redis, int(os.environ.get("MILLSTREAM_MODEL_STEPS", TOTAL_STEPS)))
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


class Forgetful(MemoryQueue):
    """A job that is cancelled while it waits for a takeover is gone, but not from the count."""

    def cancel(self, job_id: str, now: Moment, keeping: Keeping) -> Any:
        job = self.jobs.get(job_id)
        answer = super().cancel(job_id, now, keeping)
        if job is not None and job.place is Place.HELD and job_id not in self.jobs:
            self.totals["cancelled"] -= 1
        return answer


@pytest.mark.parametrize("rules", [Unfenced, Hasty, Resentful, Forgetful], ids=lambda rules: rules.__name__)
def test_a_planted_bug_is_found(rules: type[MemoryQueue]) -> None:
    class Buggy(MemoryBroker):
        _rules = rules

    with pytest.raises(AssertionError):
        walk(memory, lambda: Buggy(**OPTIONS), steps=60_000, phases=[Phase.generate])
