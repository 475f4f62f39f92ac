"""Promises about publishing events."""

from __future__ import annotations

from millstream.broker import Post, Receipt
from millstream.broker.values import END
from millstream.model.outcome import Kind
from millstream.testing.backend import START, BackendUnderTest, Promises, eventually, ids, promise
from millstream.testing.topic import TOPIC, begin, claim, emit, emit_serials, end, finish, state, take

CREATED, EXISTS, FULL = Receipt.CREATED, Receipt.EXISTS, Receipt.FULL


class EmittingPromises(Promises):
    @promise()
    async def test_an_event_serial_sent_again_by_any_process_returns_exists(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        assert await emit_serials(backend, "s", 1, 2) == [CREATED, CREATED]
        other = await backend.another()
        assert await other.emit(TOPIC, [Post("s-2", b"s-2", serial=2)], sender="s") == [EXISTS]
        assert await emit_serials(backend, "s", 1, 2, 3) == [EXISTS, EXISTS, CREATED]
        assert await finish(backend, "a") == ["s-1", "s-2", "s-3"]
        assert await emit_serials(backend, "s", 1, 2, 3) == [EXISTS] * 3
        assert await take(backend, "a") == []

    @promise()
    async def test_a_skipped_or_refused_event_serial_can_still_be_created(self, backend: BackendUnderTest) -> None:
        assert await emit_serials(backend, "s", 1, 4) == [CREATED, CREATED]
        assert await emit_serials(backend, "s", 2, 3) == [CREATED, CREATED]
        assert await emit_serials(backend, "s", 5, 6, max_length=5) == [CREATED, FULL]
        assert await emit_serials(backend, "s", 7) == [CREATED]
        assert await emit_serials(backend, "s", 6, 5) == [CREATED, EXISTS]

    @promise()
    async def test_each_sender_of_events_has_its_own_serials(self, backend: BackendUnderTest) -> None:
        await emit_serials(backend, "s", 1)
        assert await emit_serials(backend, "other", 1) == [CREATED]

    @promise()
    async def test_an_event_with_a_given_id_is_published_once(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        assert await emit(backend, "1", "1") == [CREATED, EXISTS]
        assert await finish(backend, "a") == ["1"]
        assert await emit(backend, "1", task="another") == [EXISTS]
        other = await backend.another()
        assert await other.emit(TOPIC, [Post("1", b"1")]) == [EXISTS]

    @promise(id_ttl=0.05)
    async def test_the_given_id_of_an_event_becomes_free_id_ttl_after_publishing(self, backend: BackendUnderTest) -> None:
        await emit(backend, "1")

        async def free() -> bool:
            return await emit(backend, "1") == [CREATED]

        await eventually(free)

    @promise(id_ttl=0.05)
    async def test_the_given_id_of_a_delayed_event_is_in_use(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "later", delay=5)
        await emit(backend, "now")

        async def forgotten() -> bool:
            return await emit(backend, "now") == [CREATED]

        await eventually(forgotten)
        assert await emit(backend, "later") == [EXISTS]
        assert await emit(backend, "later", delay=9) == [EXISTS]
        await take(backend, "a")
        backend.at(5)
        assert ids(await take(backend, "a")) == ["later"]

    @promise()
    async def test_a_publisher_cannot_reuse_a_generated_event_id(self, backend: BackendUnderTest) -> None:
        await emit_serials(backend, "s-x", 1)
        assert await emit(backend, "s-x-1", "s-x-2", "s-x-01") == [EXISTS, CREATED, CREATED]

    @promise()
    async def test_the_given_id_of_a_refused_event_is_not_remembered(self, backend: BackendUnderTest) -> None:
        assert await emit(backend, "1", max_length=0) == [FULL]
        assert await emit(backend, "1") == [CREATED]

    # -- max_length --------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_full_topic_refuses_events_until_older_ones_have_left_it(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        assert await emit(backend, "1", max_length=3) == [CREATED]
        assert await emit(backend, "2", delay=5, max_length=3) == [CREATED]
        assert await emit(backend, "3", "4", max_length=3) == [CREATED, FULL]
        assert await emit(backend, "1", max_length=3) == [EXISTS]
        assert await emit_serials(backend, "s", 1, max_length=3) == [FULL]
        await finish(backend, "a")
        await finish(backend, "b")
        backend.at(2)
        await claim(backend, "a", 0)
        assert await emit_serials(backend, "s", 1, 2, 3, max_length=3) == [CREATED, CREATED, FULL]
        assert await finish(backend, "a") == ["s-1", "s-2"]

    # -- delay and expiry --------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_delayed_event_reaches_every_group_when_it_is_due(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "in", delay=10)
        await emit(backend, "at", at=START + 5)
        await emit(backend, "now", at=START - 5)
        assert (await state(backend)).delayed == 2
        for group in ("a", "b"):
            given = await claim(backend, group)
            assert (ids(given.entries), given.next_due) == (["now"], 5)
        backend.at(5)
        for group in ("a", "b"):
            given = await claim(backend, group)
            assert (ids(given.entries), given.next_due) == (["at"], 5)
        backend.at(10)
        for group in ("b", "a"):
            given = await claim(backend, group)
            assert (ids(given.entries), given.next_due) == (["in"], None)

    @promise()
    async def test_a_delayed_event_outlives_its_publisher_and_reaches_groups_created_later(
        self, backend: BackendUnderTest
    ) -> None:
        publisher = await backend.another()
        await publisher.emit(TOPIC, [Post("1", b"1", delay=5)])
        await publisher.close()
        await begin(backend, "a", start=END)
        backend.at(5)
        assert ids(await take(backend, "a")) == ["1"]

    @promise()
    async def test_delayed_events_are_delivered_in_the_order_of_their_due_times(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "third", delay=3)
        await emit(backend, "first", delay=1)
        await emit(backend, "second", delay=2)
        backend.at(5)
        assert ids(await take(backend, "a")) == ["first", "second", "third"]

    @promise()
    async def test_six_hundred_delayed_events_are_all_delivered(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, *[f"n{n}" for n in range(600)], delay=5)
        backend.at(5)
        seen: list[str] = []
        while entries := await take(backend, "a", 50):
            seen += ids(entries)
        assert sorted(seen) == sorted(f"n{n}" for n in range(600))

    @promise()
    async def test_next_due_is_the_earlier_of_a_retry_and_a_delayed_event(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "event")
        await end(backend, "a", await take(backend, "a"), Kind.RETRY, delay=5)
        await emit(backend, "later", delay=8)
        assert (await claim(backend, "a")).next_due == 5
        assert (await claim(backend, "b")).next_due == 8
        backend.at(5)
        assert (await claim(backend, "a")).next_due == 3

    @promise()
    async def test_an_event_expiry_thousands_of_years_ahead_is_kept_exactly(self, backend: BackendUnderTest) -> None:
        far = 253_402_214_400.123
        await begin(backend, "a")
        await emit(backend, "now", expires_at=far)
        await emit(backend, "later", delay=5, expires_at=far)
        backend.at(5)
        assert [entry.expires_ms for entry in await take(backend, "a")] == [253_402_214_400_123] * 2

    @promise()
    async def test_every_group_receives_the_expiry_of_an_event(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "never")
        await emit(backend, "in", expires=30)
        await emit(backend, "at", expires_at=START + 40)
        await emit(backend, "later", delay=5, expires=50)
        backend.at(5)
        expected = [0, *(round((START + seconds) * 1000) for seconds in (30, 40, 50))]
        for group in ("a", "b"):
            assert [entry.expires_ms for entry in await take(backend, group)] == expected

    @promise()
    async def test_an_expired_event_is_still_delivered_so_that_a_worker_can_settle_it(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a")
        await emit(backend, "1", expires=1)
        backend.at(2)
        given = await claim(backend, "a")
        assert ids(given.entries) == ["1"] and given.now_ms >= given.entries[0].expires_ms
        assert await end(backend, "a", given.entries, Kind.EXPIRED) == 1

    @promise()
    async def test_an_event_has_one_location_in_the_log_and_another_after_a_retry(self, backend: BackendUnderTest) -> None:
        await begin(backend, "a", "b")
        await emit(backend, "1")
        (for_a,), (for_b,) = await take(backend, "a"), await take(backend, "b")
        first = backend.broker.locate(for_a.ref)
        assert first.in_log and first == backend.broker.locate(for_b.ref)
        await end(backend, "a", [for_a], Kind.RETRY, body=b"1")
        (again,) = await take(backend, "a")
        assert not backend.broker.locate(again.ref).in_log
