"""What a publisher of events can rely on."""

from __future__ import annotations

from millstream.broker import Post, Receipt
from millstream.broker.contract import END
from millstream.outcome import Kind
from millstream.testing.room import START, Promises, Room, eventually, ids, promise
from millstream.testing.topic import TOPIC, begin, claim, emit, emit_serials, end, finish, state, take

CREATED, EXISTS, FULL = Receipt.CREATED, Receipt.EXISTS, Receipt.FULL


class EmittingPromises(Promises):
    @promise()
    async def test_a_serial_sent_again_exists_whoever_sends_it(self, room: Room) -> None:
        await begin(room, "a")
        assert await emit_serials(room, "s", 1, 2) == [CREATED, CREATED]
        other = await room.another()
        assert await other.emit(TOPIC, [Post("s-2", b"s-2", serial=2)], sender="s") == [EXISTS]
        assert await emit_serials(room, "s", 1, 2, 3) == [EXISTS, EXISTS, CREATED]
        assert await finish(room, "a") == ["s-1", "s-2", "s-3"]
        assert await emit_serials(room, "s", 1, 2, 3) == [EXISTS] * 3
        assert await take(room, "a") == []

    @promise()
    async def test_a_serial_of_an_event_skipped_or_refused_is_not_taken_for_accepted(self, room: Room) -> None:
        assert await emit_serials(room, "s", 1, 4) == [CREATED, CREATED]
        assert await emit_serials(room, "s", 2, 3) == [CREATED, CREATED]
        assert await emit_serials(room, "s", 5, 6, max_length=5) == [CREATED, FULL]
        assert await emit_serials(room, "s", 7) == [CREATED]
        assert await emit_serials(room, "s", 6, 5) == [CREATED, EXISTS]

    @promise()
    async def test_senders_of_events_do_not_know_each_other(self, room: Room) -> None:
        await emit_serials(room, "s", 1)
        assert await emit_serials(room, "other", 1) == [CREATED]

    @promise()
    async def test_a_given_id_is_published_once(self, room: Room) -> None:
        await begin(room, "a")
        assert await emit(room, "1", "1") == [CREATED, EXISTS]
        assert await finish(room, "a") == ["1"]
        assert await emit(room, "1", task="another") == [EXISTS]
        other = await room.another()
        assert await other.emit(TOPIC, [Post("1", b"1")]) == [EXISTS]

    @promise(id_ttl=0.05)
    async def test_a_given_id_is_free_id_ttl_after_its_publish(self, room: Room) -> None:
        await emit(room, "1")

        async def free() -> bool:
            return await emit(room, "1") == [CREATED]

        await eventually(free)

    @promise(id_ttl=0.05)
    async def test_a_given_id_exists_while_its_event_is_delayed(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "later", delay=5)
        await emit(room, "now")

        async def forgotten() -> bool:
            return await emit(room, "now") == [CREATED]

        await eventually(forgotten)
        assert await emit(room, "later") == [EXISTS]
        assert await emit(room, "later", delay=9) == [EXISTS]
        await take(room, "a")
        room.at(5)
        assert ids(await take(room, "a")) == ["later"]

    @promise()
    async def test_a_generated_id_of_an_event_given_by_a_publisher_exists(self, room: Room) -> None:
        await emit_serials(room, "s-x", 1)
        assert await emit(room, "s-x-1", "s-x-2", "s-x-01") == [EXISTS, CREATED, CREATED]

    @promise()
    async def test_a_refused_given_id_of_an_event_is_not_remembered(self, room: Room) -> None:
        assert await emit(room, "1", max_length=0) == [FULL]
        assert await emit(room, "1") == [CREATED]

    # -- max_length --------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_full_topic_refuses_until_events_have_left_it(self, room: Room) -> None:
        await begin(room, "a", "b")
        assert await emit(room, "1", max_length=3) == [CREATED]
        assert await emit(room, "2", delay=5, max_length=3) == [CREATED]
        assert await emit(room, "3", "4", max_length=3) == [CREATED, FULL]
        assert await emit(room, "1", max_length=3) == [EXISTS]
        assert await emit_serials(room, "s", 1, max_length=3) == [FULL]
        await finish(room, "a")
        await finish(room, "b")
        room.at(2)
        await claim(room, "a", 0)
        assert await emit_serials(room, "s", 1, 2, 3, max_length=3) == [CREATED, CREATED, FULL]
        assert await finish(room, "a") == ["s-1", "s-2"]

    # -- delay and expiry --------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_delayed_event_waits_and_then_reaches_every_group(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "in", delay=10)
        await emit(room, "at", at=START + 5)
        await emit(room, "now", at=START - 5)
        assert (await state(room)).delayed == 2
        for group in ("a", "b"):
            given = await claim(room, group)
            assert (ids(given.entries), given.next_due) == (["now"], 5)
        room.at(5)
        for group in ("a", "b"):
            given = await claim(room, group)
            assert (ids(given.entries), given.next_due) == (["at"], 5)
        room.at(10)
        for group in ("b", "a"):
            given = await claim(room, group)
            assert (ids(given.entries), given.next_due) == (["in"], None)

    @promise()
    async def test_a_delayed_event_outlives_its_publisher_and_reaches_groups_made_meanwhile(self, room: Room) -> None:
        publisher = await room.another()
        await publisher.emit(TOPIC, [Post("1", b"1", delay=5)])
        await publisher.close()
        await begin(room, "a", start=END)
        room.at(5)
        assert ids(await take(room, "a")) == ["1"]

    @promise()
    async def test_delayed_events_come_in_the_order_they_are_due(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "third", delay=3)
        await emit(room, "first", delay=1)
        await emit(room, "second", delay=2)
        room.at(5)
        assert ids(await take(room, "a")) == ["first", "second", "third"]

    @promise()
    async def test_many_delayed_events_all_come(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, *[f"n{n}" for n in range(600)], delay=5)
        room.at(5)
        seen: list[str] = []
        while entries := await take(room, "a", 50):
            seen += ids(entries)
        assert sorted(seen) == sorted(f"n{n}" for n in range(600))

    @promise()
    async def test_a_claim_says_what_is_due_first_a_retry_or_a_delayed_event(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "event")
        await end(room, "a", await take(room, "a"), Kind.RETRY, delay=5)
        await emit(room, "later", delay=8)
        assert (await claim(room, "a")).next_due == 5
        assert (await claim(room, "b")).next_due == 8
        room.at(5)
        assert (await claim(room, "a")).next_due == 3

    @promise()
    async def test_an_expiry_thousands_of_years_ahead_travels_exactly(self, room: Room) -> None:
        far = 253_402_214_400.123
        await begin(room, "a")
        await emit(room, "now", expires_at=far)
        await emit(room, "later", delay=5, expires_at=far)
        room.at(5)
        assert [entry.expires_ms for entry in await take(room, "a")] == [253_402_214_400_123] * 2

    @promise()
    async def test_an_expiry_travels(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "never")
        await emit(room, "in", expires=30)
        await emit(room, "at", expires_at=START + 40)
        await emit(room, "later", delay=5, expires=50)
        room.at(5)
        expected = [0, *(round((START + seconds) * 1000) for seconds in (30, 40, 50))]
        for group in ("a", "b"):
            assert [entry.expires_ms for entry in await take(room, group)] == expected

    @promise()
    async def test_an_expired_event_is_handed_out_for_a_worker_to_settle(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1", expires=1)
        room.at(2)
        given = await claim(room, "a")
        assert ids(given.entries) == ["1"] and given.now_ms >= given.entries[0].expires_ms
        assert await end(room, "a", given.entries, Kind.EXPIRED) == 1
