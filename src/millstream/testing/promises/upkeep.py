"""Promises about the upkeep of topics: claims do it, and each step happens once, however many consumers claim."""

from __future__ import annotations

from millstream.broker import Entry, Post
from millstream.model.outcome import Kind, Outcome
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise
from millstream.testing.topic import TOPIC, A, begin, claim, emit, end, finish, state, take


class UpkeepPromises(Promises):
    @promise()
    async def test_due_and_abandoned_events_wait_for_the_next_consumer_if_there_is_none(
        self, backend: BackendUnderTest
    ) -> None:
        await begin(backend, "a")
        await emit(backend, "done", "retried", "left")
        await emit(backend, "later", delay=5)
        done, retried, _ = await take(backend, "a")
        await end(backend, "a", [done])
        await end(backend, "a", [retried], Kind.RETRY, delay=5)
        await backend.broker.leave(A, "a")
        backend.at(60)
        before = await state(backend)
        assert (before.length, before.delayed, before.groups[0].scheduled) == (3, 1, 1)
        await backend.join("next", queue=A)
        entries = await backend.take("next", queue=A)
        assert sorted(ids(entries)) == ["later", "left", "retried"]
        await backend.settle("next", entries, queue=A)
        backend.at(62)
        await backend.claim("next", 0, queue=A)
        assert (await state(backend)).length == 0

    @promise()
    async def test_due_events_are_delivered_once_however_many_consumers_claim(self, backend: BackendUnderTest) -> None:
        names = [f"c{n}" for n in range(10)]
        await begin(backend, "a")
        await backend.join(*names, queue=A)
        others = [await backend.another() for _ in names]
        events = [f"n{n}" for n in range(60)]
        await emit(backend, *events)
        await end(backend, "a", await take(backend, "a"), Kind.RETRY, delay=5)
        await emit(backend, *[f"later-{n}" for n in range(20)], delay=5)
        backend.at(5)
        seen: list[str] = []
        while True:
            before = len(seen)
            for broker, name in zip(others, names, strict=True):
                seen += ids((await broker.claim(A, name, 3)).entries)
            if len(seen) == before:
                break
        assert sorted(seen) == sorted(events + [f"later-{n}" for n in range(20)])

    @promise()
    async def test_events_of_a_dead_consumer_are_delivered_once_however_many_consumers_claim(
        self, backend: BackendUnderTest
    ) -> None:
        names = [f"c{n}" for n in range(10)]
        await begin(backend, "a")
        await backend.join(*names, queue=A)
        await backend.join("dead", lease=10, queue=A)
        await emit(backend, *[f"n{n}" for n in range(30)])
        await backend.take("dead", queue=A)
        for second in (11, 13):
            backend.at(second)
            for name in names:
                await backend.claim(name, 0, queue=A)
        seen: list[Entry] = []
        for _ in range(2):
            for name in names:
                seen += await backend.take(name, 3, queue=A)
        assert sorted(ids(seen)) == sorted(f"n{n}" for n in range(30))
        assert {entry.crashes for entry in seen} == {1}
        assert (await backend.broker.inspector.queue(A)).totals["lapsed"] == 1

    @promise()
    async def test_short_and_long_leases_of_one_group_do_not_affect_each_other(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.join("short", lease=2, queue=A)
        await backend.join("long", lease=100, queue=A)
        await emit(backend, "1", "2")
        held = {name: await backend.take(name, 1, queue=A) for name in ("short", "long")}
        for second in range(1, 60):
            backend.at(second)
            if second < 30:
                await backend.broker.renew(A, {"short": 2.0})
            for name in ("a", "long"):
                await backend.claim(name, 0, queue=A)
        assert ids(await take(backend, "a")) == ids(held["short"]), "only the short lease, no longer renewed, must lapse"
        assert await backend.settle("long", held["long"], queue=A) == 1

    @promise()
    async def test_events_with_identical_bodies_are_each_retried(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await backend.broker.emit(TOPIC, [Post("one", b"same"), Post("two", b"same"), Post("three", b"same")])
        entries = await take(backend, "a")
        outcomes = [
            Outcome(Kind.RETRY, entry.ref, name, body=b"same", delay=5)
            for entry, name in zip(entries, ("one", "two", "three"), strict=True)
        ]
        assert await backend.broker.settle(A, "a", outcomes) == 3
        backend.at(5)
        assert [entry.body for entry in await take(backend, "a")] == [b"same"] * 3

    @promise()
    async def test_an_unsettled_event_keeps_later_events_of_the_same_millisecond_in_the_log(
        self, backend: BackendUnderTest
    ) -> None:
        """The order of entry ids is numeric: as text, the tenth entry of a millisecond would come before the third."""
        await begin(backend, "a")
        await emit(backend, *[f"n{n}" for n in range(12)])
        entries = await take(backend, "a")
        await end(backend, "a", entries[:9] + entries[10:])
        backend.at(2)
        await claim(backend, "a", 0)
        assert (await state(backend)).length == 3
        assert await end(backend, "a", entries[9:10]) == 1
        backend.at(4)
        await claim(backend, "a", 0)
        assert (await state(backend)).length == 0

    @promise()
    async def test_a_group_that_has_claimed_nothing_keeps_every_event_in_the_log(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "idle")
        await emit(backend, "1", "2")
        await finish(backend, "a")
        backend.at(1000)
        await claim(backend, "a", 0)
        assert (await state(backend)).length == 2
        assert ids(await take(backend, "idle")) == ["1", "2"]
