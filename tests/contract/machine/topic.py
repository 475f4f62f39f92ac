"""Random histories of a group: those of a queue, published as events to a topic that has a second, working group."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from millstream.broker import Entry, Followed, Position, Post, Receipt
from millstream.broker.letters import without_letter
from millstream.broker.values import BEGINNING, END, LogPosition
from millstream.model.address import Address
from millstream.model.message import decode_message, encode_message
from millstream.model.outcome import Kind, Outcome
from millstream.testing.backend import LETTER
from tests.contract.machine.backends import (
    LOST,
    BackendUnderTest,
    Claimed,
    Way,
    claim,
    claimed_letters,
    delays,
    max_lengths,
    pairs,
    plain,
    recent,
    seconds,
    seen,
    ways,
)
from tests.contract.machine.queue import TwoBackends, new_keys

TOPIC = "t"
FOLLOWED = "f"
"""A topic without groups."""

DIES = Way(Kind.DEAD, 0.0, kept=False)

ends_of_the_log = st.sampled_from([BEGINNING, END])


def _followed(answer: Followed) -> tuple[Any, ...]:
    return plain(answer.entries), answer.missed, answer.position.entry, answer.position.number, answer.next_due


class TwoTopics(TwoBackends):
    """Histories of a queue in a group of a topic. A second group works on the same events."""

    queue = Address.of_group(TOPIC, "g")
    other = Address.of_group(TOPIC, "h")
    letters = queue.dead

    def __init__(self) -> None:
        super().__init__()
        self.blurred = False
        """The group was moved to a position after which a server cannot count the events."""
        self.moved = False
        """The group was moved, so it may receive events that a consumer still holds."""
        self.positions: list[str] = []
        self.following: list[tuple[str, list[Position]]] = []
        """The followers: a topic, and the position in each backend."""
        self.emitted = 0
        self.handlers = 0
        """Number of consumers of the dead letters so far."""
        self.handled: list[tuple[Entry, Entry]] = []
        """The dead letters that the current handler holds, as one entry per backend."""

    async def accept(
        self, backend: BackendUnderTest, posts: Sequence[Post], sender: str, max_length: int | None
    ) -> list[Receipt]:
        return await backend.emit(TOPIC, posts, sender=sender, max_length=max_length)

    @initialize(position=ends_of_the_log, keep=st.sampled_from([None, 5.0]), keep_count=st.sampled_from([None, 4]))
    def open_topic(self, position: LogPosition, keep: float | None, keep_count: int | None) -> None:
        groups: dict[str, LogPosition] = {"g": BEGINNING, "h": position}
        self.same(lambda backend, _: backend.open_topic(TOPIC, groups, keep=keep, keep_count=keep_count))
        for topic in (TOPIC, FOLLOWED):
            self.begin_to_follow(topic)
        self.same(lambda backend, _: backend.join(self.other, "other", 1e6))
        self.join_as_handler()

    # -- handlers of dead letters ------------------------------------------------------------------------------------------

    @property
    def handler(self) -> str:
        return f"handler-{self.handlers}"

    def join_as_handler(self) -> None:
        self.handlers += 1
        self.handled.clear()
        self.same(lambda backend, _: backend.join(self.letters, self.handler, 1e6))

    @rule(new=new_keys, count=st.integers(0, 5), alone=st.sampled_from([False, False, True]), how=st.lists(ways, max_size=5))
    def handle_letters(self, new: list[int], count: int, alone: bool, how: list[Way]) -> None:
        """Let events die, claim dead letters, and settle some of those that are held."""
        self.work(new, 0, 2, False, [DIES, DIES])
        left, right = self.both(lambda backend, _: claim(backend, self.letters, self.handler, count, alone=alone))
        assert claimed_letters(left.entries) == claimed_letters(right.entries)
        assert (left.next_due, left.paused) == (right.next_due, right.paused)
        self.handled += zip(left.entries, right.entries, strict=True)
        self.settle_letters(how)

    @rule(how=st.lists(ways, min_size=1, max_size=5))
    def settle_letters(self, how: list[Way]) -> None:
        held, self.handled[:] = self.handled[: len(how)], self.handled[len(how) :]
        ends = list(zip(held, how, strict=False))
        self.same(
            lambda backend, side: backend.settle(self.letters, self.handler, [_ended(pair[side], way) for pair, way in ends])
        )

    @rule(count=st.integers(0, 3))
    def release_letters(self, count: int) -> None:
        held, self.handled[:] = self.handled[:count], self.handled[count:]
        self.same(lambda backend, side: backend.release(self.letters, self.handler, [pair[side].ref for pair in held]))

    @rule(blameless=st.sampled_from([False, False, True]))
    def another_handles_letters(self, blameless: bool) -> None:
        self.same(lambda backend, _: backend.leave(self.letters, self.handler, blameless=blameless))
        self.join_as_handler()

    @rule()
    def recover_letters(self) -> None:
        left, right = self.both(lambda backend, _: backend.recover(self.letters, self.handler, ()))
        assert claimed_letters(left) == claimed_letters(right)
        self.handled[:] = zip(left, right, strict=True)

    @rule(new=new_keys, count=st.integers(0, 5), how=st.lists(ways, max_size=5))
    def other_group_works(self, new: list[int], count: int, how: list[Way]) -> None:
        self.fill(new)
        left, right = self.both(lambda backend, _: claim(backend, self.other, "other", count))
        assert seen(left) == seen(right)
        if left == LOST:
            self.same(lambda backend, _: backend.join(self.other, "other", 1e6))
            return
        claimed = pairs((left, right), "other")
        ends = list(zip(claimed, how, strict=False))
        ends.sort(key=lambda end: not end[1].in_bulk(self.ids[end[0].id]))

        def settle(backend: BackendUnderTest, side: int) -> Coroutine[Any, Any, int]:
            return backend.settle(self.other, "other", [way.outcome(c, side, self.ids[c.id], self.turn) for c, way in ends])

        self.same(settle)
        rest = claimed[len(ends) :]
        self.same(lambda backend, side: backend.release(self.other, "other", [c.entries[side].ref for c in rest]))

    def claim(self, consumer: str, count: int, alone: bool = False, suspect_after: int = 2) -> list[Claimed]:
        noted = super().claim(consumer, count, alone, suspect_after)
        if self.moved:  # this consumer now has entries that another one had recovered
            given = {claimed.entries[0].ref for claimed in noted}
            self.claimed = [c for c in self.claimed if c.consumer == consumer or c.entries[0].ref not in given]
        return noted

    def settle_and_remember(self, consumer: str, ends: Sequence[tuple[Claimed, Way]]) -> None:
        # An event that is read again may run beside its retry. The order of their ends is undefined.
        super().settle_and_remember(consumer, list({claimed.id: (claimed, way) for claimed, way in ends}.values()))

    @rule()
    def remove_the_other_group(self) -> None:
        self.same(lambda backend, _: backend.remove_group(self.other))

    @rule(topic=st.sampled_from([TOPIC, FOLLOWED]))
    def begin_to_follow(self, topic: str) -> None:
        positions = [followed.position for followed in self.both(lambda backend, _: backend.follow(topic, None, 1))]
        self.following.append((topic, positions))

    @rule(new=new_keys, back=recent, count=st.integers(1, 5))
    def follow(self, new: list[int], back: int, count: int) -> None:
        self.fill(new)
        topic, positions = self.following[-1 - back % len(self.following)]
        left, right = self.both(lambda backend, side: backend.follow(topic, positions[side], count))
        positions[:] = [left.position, right.position]
        assert _followed(left) == _followed(right)

    @rule(new=st.integers(1, 5), delay=delays, max_length=max_lengths, keep_count=st.sampled_from([None, 0, 2]))
    def emit_to_those_who_follow(self, new: int, delay: float, max_length: int | None, keep_count: int | None) -> None:
        self.same(lambda backend, _: backend.open_topic(FOLLOWED, {}, keep_count=keep_count))
        posts = [Post(f"f{n}", f"f{n}".encode(), delay=delay) for n in range(self.emitted, self.emitted + new)]
        self.emitted += new
        self.same(lambda backend, _: backend.emit(FOLLOWED, posts, max_length=max_length))

    @rule(to=ends_of_the_log)
    def seek(self, to: str) -> None:
        self.move(to)
        self.blurred = False

    @rule(seconds=seconds)
    def seek_a_moment(self, seconds: float) -> None:
        self.move(self.now - seconds)
        self.blurred = True

    @precondition(lambda self: self.positions)
    @rule(back=recent)
    def seek_an_earlier_position(self, back: int) -> None:
        self.move(self.positions[-1 - back % len(self.positions)])
        self.blurred = True

    def move(self, to: LogPosition) -> None:
        self.same(lambda backend, _: backend.seek(self.queue, to))
        self.moved = True
        # Events that are read again belong to their new consumer: nobody settles an earlier delivery.
        self.claimed = [claimed for claimed in self.claimed if not claimed.entries[0].ref.startswith(b"L")]
        self.again.clear()

    async def look(self, backend: BackendUnderTest, _: int) -> tuple[Any, ...]:
        topic = await backend.inspector.topic(TOPIC)
        self.positions += [
            group.position for group in topic.groups if group.name == "g" and group.position not in self.positions
        ]
        state, *rest = await super().look(backend, _)
        if self.blurred:
            state = msgspec.structs.replace(state, ready=0)
            unknown = [msgspec.structs.replace(group, lag=None, ready=0) for group in topic.groups]
            topic = msgspec.structs.replace(topic, groups=unknown)
        letters = await backend.inspector.queue(self.letters)
        # A server cannot count dead letters that were never delivered, and notices later that released ones are gone.
        letters = msgspec.structs.replace(letters, ready=0, suspects=0)
        return state, topic, letters, await backend.inspector.topic(FOLLOWED), *rest


def _ended(entry: Entry, way: Way) -> Outcome:
    """Return the outcome of handling a dead letter."""
    message = without_letter(decode_message(entry.body or b""))
    body = encode_message(msgspec.structs.replace(message, attempt=message.attempt + 1))
    letter = LETTER if way.kind is Kind.DEAD and way.kept else None
    return Outcome(way.kind, entry.ref, message.id, body=body, delay=way.delay, letter=letter)
