"""Nobody is appointed to look after a topic: whoever claims does so, and however many they are, it is done once."""

from __future__ import annotations

from millstream.broker import Entry, Post
from millstream.outcome import Kind, Outcome
from millstream.testing.room import Promises, Room, ids, promise
from millstream.testing.topic import TOPIC, A, begin, claim, emit, end, finish, state, take


class UpkeepPromises(Promises):
    @promise()
    async def test_what_is_due_or_left_behind_waits_while_nobody_is_there_and_goes_on_with_the_next_consumer(
        self, room: Room
    ) -> None:
        await begin(room, "a")
        await emit(room, "done", "retried", "left")
        await emit(room, "later", delay=5)
        done, retried, _ = await take(room, "a")
        await end(room, "a", [done])
        await end(room, "a", [retried], Kind.RETRY, delay=5)
        await room.broker.leave(A, "a")
        room.at(60)
        before = await state(room)
        assert (before.length, before.delayed, before.groups[0].scheduled) == (3, 1, 1)
        await room.join("next", queue=A)
        entries = await room.take("next", queue=A)
        assert sorted(ids(entries)) == ["later", "left", "retried"]
        await room.settle("next", entries, queue=A)
        room.at(62)
        await room.claim("next", 0, queue=A)
        assert (await state(room)).length == 0

    @promise()
    async def test_what_is_due_comes_once_however_many_consumers_look(self, room: Room) -> None:
        names = [f"c{n}" for n in range(10)]
        await begin(room, "a")
        await room.join(*names, queue=A)
        others = [await room.another() for _ in names]
        events = [f"n{n}" for n in range(60)]
        await emit(room, *events)
        await end(room, "a", await take(room, "a"), Kind.RETRY, delay=5)
        await emit(room, *[f"later-{n}" for n in range(20)], delay=5)
        room.at(5)
        seen: list[str] = []
        while True:
            before = len(seen)
            for broker, name in zip(others, names, strict=True):
                seen += ids((await broker.claim(A, name, 3)).entries)
            if len(seen) == before:
                break
        assert sorted(seen) == sorted(events + [f"later-{n}" for n in range(20)])

    @promise()
    async def test_a_dead_consumers_events_come_once_however_many_consumers_look(self, room: Room) -> None:
        names = [f"c{n}" for n in range(10)]
        await begin(room, "a")
        await room.join(*names, queue=A)
        await room.join("dead", lease=10, queue=A)
        await emit(room, *[f"n{n}" for n in range(30)])
        await room.take("dead", queue=A)
        for second in (11, 13):
            room.at(second)
            for name in names:
                await room.claim(name, 0, queue=A)
        seen: list[Entry] = []
        for _ in range(2):
            for name in names:
                seen += await room.take(name, 3, queue=A)
        assert sorted(ids(seen)) == sorted(f"n{n}" for n in range(30))
        assert {entry.crashes for entry in seen} == {1}
        assert (await room.broker.inspector.queue(A)).totals["lapsed"] == 1

    @promise()
    async def test_a_short_lease_beside_a_long_one_cuts_neither_short(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("short", lease=2, queue=A)
        await room.join("long", lease=100, queue=A)
        await emit(room, "1", "2")
        held = {name: await room.take(name, 1, queue=A) for name in ("short", "long")}
        for second in range(1, 60):
            room.at(second)
            if second < 30:
                await room.broker.renew(A, {"short": 2.0})
            for name in ("a", "long"):
                await room.claim(name, 0, queue=A)
        assert ids(await take(room, "a")) == ids(held["short"]), "it was not renewed any more; the other need not be yet"
        assert await room.settle("long", held["long"], queue=A) == 1

    @promise()
    async def test_events_alike_in_every_byte_are_each_tried_again(self, room: Room) -> None:
        await begin(room, "a")
        await room.broker.emit(TOPIC, [Post("one", b"same"), Post("two", b"same"), Post("three", b"same")])
        entries = await take(room, "a")
        outcomes = [
            Outcome(Kind.RETRY, entry.ref, name, body=b"same", delay=5)
            for entry, name in zip(entries, ("one", "two", "three"), strict=True)
        ]
        assert await room.broker.settle(A, "a", outcomes) == 3
        room.at(5)
        assert [entry.body for entry in await take(room, "a")] == [b"same"] * 3

    @promise()
    async def test_what_is_held_keeps_what_came_after_it_in_the_same_moment(self, room: Room) -> None:
        """As text, the tenth entry of a millisecond would come before the third."""
        await begin(room, "a")
        await emit(room, *[f"n{n}" for n in range(12)])
        entries = await take(room, "a")
        await end(room, "a", entries[:9] + entries[10:])
        room.at(2)
        await claim(room, "a", 0)
        assert (await state(room)).length == 3
        assert await end(room, "a", entries[9:10]) == 1
        room.at(4)
        await claim(room, "a", 0)
        assert (await state(room)).length == 0

    @promise()
    async def test_a_group_that_was_given_nothing_holds_everything(self, room: Room) -> None:
        await begin(room, "a", "idle")
        await emit(room, "1", "2")
        await finish(room, "a")
        room.at(1000)
        await claim(room, "a", 0)
        assert (await state(room)).length == 2
        assert ids(await take(room, "idle")) == ["1", "2"]
