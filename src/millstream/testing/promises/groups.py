"""Every group is given every event, and what becomes of it there is no other group's."""

from __future__ import annotations

import asyncio

import pytest

from millstream.address import group_address
from millstream.broker import Post, Receipt
from millstream.broker.contract import BEGINNING, END, SUSPECT_AFTER
from millstream.errors import LeaseLost
from millstream.outcome import Kind
from millstream.testing.room import DONE_ENDING, LONG, START, Promises, Room, ids, outcome, promise
from millstream.testing.topic import TOPIC, A, B, begin, claim, emit, emit_serials, end, finish, group_state, state, take

CREATED = Receipt.CREATED


class GroupPromises(Promises):
    @promise()
    async def test_every_group_is_given_every_event_once_and_in_order(self, room: Room) -> None:
        await begin(room, "a", "b")
        names = [f"n{n}" for n in range(250)]
        assert await emit(room, *names) == [CREATED] * 250
        for group in ("a", "b"):
            seen: list[str] = []
            while entries := await take(room, group, 40):
                seen += ids(entries)
            assert seen == names

    @promise()
    async def test_within_a_group_an_event_goes_to_one_consumer(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("second", queue=A)
        await emit(room, "1", "2", "3")
        assert ids(await take(room, "a", 2)) == ["1", "2"]
        assert ids(await room.take("second", queue=A)) == ["3"]
        assert await take(room, "a") == []

    @promise()
    async def test_an_event_arrives_as_it_was_sent(self, room: Room) -> None:
        await begin(room, "a")
        body = bytes(range(256)) * 300
        await room.broker.emit(TOPIC, [Post("1", body), Post("2", b"")])
        assert [entry.body for entry in await take(room, "a")] == [body, b""]

    @promise()
    async def test_no_events_have_no_receipts(self, room: Room) -> None:
        assert await emit(room) == []
        assert await emit_serials(room, "s") == []
        assert (await state(room)).totals == {"published": 0}

    @promise()
    async def test_a_group_made_later_is_given_what_is_kept(self, room: Room) -> None:
        await emit(room, "1", "2")
        await begin(room, "a")
        await emit(room, "3")
        assert ids(await take(room, "a")) == ["1", "2", "3"]
        await begin(room, "b")
        assert ids(await take(room, "b")) == ["1", "2", "3"]

    @promise()
    async def test_a_consumer_that_joins_makes_its_group(self, room: Room) -> None:
        await emit(room, "1")
        await room.join("a", queue=A)
        assert ids(await take(room, "a")) == ["1"]
        assert await room.broker.open_topic(TOPIC, {"a": END}) == []

    @promise()
    async def test_a_group_may_begin_at_the_end(self, room: Room) -> None:
        await emit(room, "1", "2")
        await begin(room, "a", start=END)
        assert await take(room, "a") == []
        await emit(room, "3")
        assert ids(await take(room, "a")) == ["3"]

    @promise()
    async def test_a_group_may_begin_at_a_moment(self, room: Room) -> None:
        for second in range(5):
            room.at(second)
            await emit(room, f"{second}-1", f"{second}-2")
        await begin(room, "a", start=START + 3)
        assert ids(await take(room, "a")) == ["3-1", "3-2", "4-1", "4-2"]

    @promise()
    async def test_a_group_may_begin_where_another_is(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1", "2", "3")
        await take(room, "a", 2)
        await begin(room, "b", start=(await group_state(room, "a")).place)
        assert ids(await take(room, "b")) == ["3"]

    @promise()
    async def test_opening_a_topic_tells_which_groups_are_new_and_moves_no_other(self, room: Room) -> None:
        assert await room.broker.open_topic(TOPIC, {"b": BEGINNING, "a": BEGINNING}) == ["b", "a"]
        await begin(room, "a")
        await emit(room, "1", "2")
        await take(room, "a", 1)
        assert await room.broker.open_topic(TOPIC, {"a": END, "c": END, "b": END}) == ["c"]
        assert ids(await take(room, "a")) == ["2"]

    @promise()
    async def test_a_topic_and_a_queue_of_one_name_do_not_know_each_other(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("c", queue=TOPIC)
        await emit(room, "event")
        await room.publish("job", queue=TOPIC)
        assert ids(await take(room, "a")) == ["event"]
        assert ids(await room.take("c", queue=TOPIC)) == ["job"]

    @promise()
    async def test_topics_do_not_know_each_other(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("c", queue=group_address("other", "a"))
        await emit(room, "1")
        await emit_serials(room, "s", 1)
        assert await emit(room, "1", topic="other") == [CREATED]
        assert await emit_serials(room, "s", 1, topic="other") == [CREATED]
        assert ids(await room.take("c", queue=group_address("other", "a"))) == ["1", "s-1"]
        assert ids(await take(room, "a")) == ["1", "s-1"]

    @promise()
    async def test_a_paused_group_is_given_nothing_and_the_others_go_on(self, room: Room) -> None:
        await begin(room, "a", "b")
        await room.broker.pause(A)
        await emit(room, "1")
        given = await claim(room, "a")
        assert (given.entries, given.paused) == ([], True)
        assert ids(await take(room, "b")) == ["1"]
        await room.broker.resume(A)
        assert ids(await take(room, "a")) == ["1"]

    @promise()
    async def test_a_claim_of_a_group_without_a_lease_is_refused(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1")
        with pytest.raises(LeaseLost):
            await room.claim("a", queue=B)
        assert ids(await take(room, "b")) == ["1"]

    # -- waiting -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_an_event_ends_the_waits_of_every_group(self, room: Room) -> None:
        await begin(room, "a", "b")
        waiting = [await room.begun(room.wait_for_work(group, queue=group_address(TOPIC, group))) for group in ("a", "b")]
        await emit(room, "1")
        assert [ids(entries) for entries in await asyncio.gather(*waiting)] == [["1"], ["1"]]

    @promise()
    async def test_generated_ids_from_another_process_end_a_wait_too(self, room: Room) -> None:
        await begin(room, "a")
        other = await room.another()
        waiting = await room.begun(room.wait_for_work("a", queue=A))
        await other.emit(TOPIC, [Post("s-1", b"s-1", serial=1)], sender="s")
        assert ids(await waiting) == ["s-1"]

    @promise()
    async def test_events_feed_every_waiting_consumer_of_a_group(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("second", "third", queue=A)
        waiting = [await room.begun(room.wait_for_work(name, 1, queue=A)) for name in ("a", "second", "third")]
        await emit(room, "1", "2", "3")
        assert sorted(ids([entry for entries in await asyncio.gather(*waiting) for entry in entries])) == ["1", "2", "3"]

    @promise()
    async def test_what_was_kept_for_a_new_group_is_found_at_once(self, room: Room) -> None:
        await emit(room, "1", "2")
        await begin(room, "a")
        assert ids(await take(room, "a", 1, wait=LONG)) == ["1"]
        assert ids(await take(room, "a", 1, wait=LONG)) == ["2"]

    @promise()
    async def test_an_event_that_is_due_earlier_ends_a_wait(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "late", delay=1000)

        async def until_due_in(seconds: float) -> None:
            while (await claim(room, "a", wait=LONG)).next_due != seconds:
                pass

        waiting = await room.begun(until_due_in(10))
        await emit(room, "soon", delay=10)
        await waiting

    @promise()
    async def test_who_waits_as_long_as_told_gets_the_event_that_is_due(self, room: Room) -> None:
        room.run_clock()
        await begin(room, "a")
        await emit(room, "1", delay=0.2)
        given = await claim(room, "a")
        while not given.entries:
            assert given.next_due is not None
            given = await claim(room, "a", wait=given.next_due)
        assert ids(given.entries) == ["1"]

    # -- one group's events are no other's ---------------------------------------------------------------------------------

    @promise()
    async def test_an_event_may_end_in_every_way(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "done", "retry", "dead", "expired")
        entries = await take(room, "a")
        outcomes = [outcome(entry, kind, delay=5) for entry, kind in zip(entries, Kind, strict=True)]
        assert await room.broker.settle(A, "a", outcomes) == 4
        assert await room.broker.settle(A, "a", outcomes) == 0
        queue = await room.broker.inspector.queue(A)
        assert (queue.ready, queue.running, queue.scheduled, queue.dead) == (0, 0, 1, 1)
        assert {name: count for name, count in queue.totals.items() if count} == {
            "done": 1,
            "retried": 1,
            "dead": 1,
            "expired": 1,
        }
        assert ids(await take(room, "b")) == ["done", "retry", "dead", "expired"]

    @promise()
    async def test_a_retry_comes_back_to_its_group_alone(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1", "2", expires=60)
        first, second = await take(room, "a")
        await end(room, "a", [first], Kind.RETRY, delay=5, body=b"1#again")
        await end(room, "a", [second])
        assert await finish(room, "b") == ["1", "2"]
        assert await room.status("1", A) == "scheduled"
        room.at(5)
        (again,) = await take(room, "a")
        assert (again.body, again.crashes, again.expires_ms) == (b"1#again", 0, first.expires_ms)
        assert again.ref != first.ref
        assert await take(room, "b") == []

    @promise()
    async def test_what_is_tried_again_comes_before_what_is_new(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1", "2", "3")
        await end(room, "a", await take(room, "a", 1), Kind.RETRY, delay=5)
        room.at(5)
        assert ids(await take(room, "a", 2)) == ["1", "2"]
        assert ids(await take(room, "a", 2)) == ["3"]

    @promise()
    async def test_an_event_dies_in_its_group_alone_and_is_replayed_to_it_alone(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1")
        await end(room, "a", await take(room, "a"), Kind.DEAD, body=b"1#again")
        assert await finish(room, "b") == ["1"]
        dead = await room.broker.inspector.dead_letter(A, "1")
        assert dead is not None and (dead.queue, dead.body) == (A, b"1#again")
        assert dead.source
        assert await room.broker.inspector.dead_letters(B) == []
        assert await room.broker.replay(B, ["1"]) == []
        assert await room.broker.replay(A, ["1"]) == ["1"]
        assert [entry.body for entry in await take(room, "a")] == [b"1#again"]
        assert await take(room, "b") == []

    @promise()
    async def test_released_events_come_first_in_order_and_count_no_crash(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1", "2", "3", "4")
        first, second, third = await take(room, "a", 3)
        for entry in (third, first):
            assert await room.release("a", [entry], queue=A) == 1
        assert await room.release("a", [first], queue=A) == 0
        again = await take(room, "a")
        assert [(entry.body, entry.crashes) for entry in again] == [(b"1", 0), (b"3", 0), (b"4", 0)]
        assert await end(room, "a", [second, *again]) == 4
        assert ids(await take(room, "b")) == ["1", "2", "3", "4"]

    @promise()
    async def test_a_crash_in_one_group_is_none_in_another(self, room: Room) -> None:
        await begin(room, "a", "b")
        await room.join("next", queue=A)
        await emit(room, "1", "2")
        await take(room, "a")
        assert await room.broker.leave(A, "a") == 2
        assert [(entry.body, entry.crashes) for entry in await room.take("next", queue=A)] == [(b"1", 1), (b"2", 1)]
        assert [(entry.body, entry.crashes) for entry in await take(room, "b")] == [(b"1", 0), (b"2", 0)]

    @promise()
    async def test_the_events_of_a_consumer_that_lapsed_are_taken_over(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("dead", lease=10, queue=A)
        await emit(room, "1", "2")
        entries = await room.take("dead", queue=A)
        for seconds in (11, 13):
            room.at(seconds)
            await claim(room, "a", 0)
        with pytest.raises(LeaseLost):
            await room.settle("dead", entries, queue=A)
        taken_over = await take(room, "a")
        assert [(entry.body, entry.crashes) for entry in taken_over] == [(b"1", 1), (b"2", 1)]
        assert await end(room, "a", taken_over) == 2

    @promise()
    async def test_a_blameless_leave_hands_events_back(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("next", queue=A)
        await emit(room, "1", "2")
        await take(room, "a")
        assert await room.broker.leave(A, "a", blameless=True) == 2
        assert [(entry.body, entry.crashes) for entry in await room.take("next", queue=A)] == [(b"1", 0), (b"2", 0)]

    @promise()
    async def test_an_event_that_kills_is_set_aside_to_run_alone(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1")
        for life in range(SUSPECT_AFTER):
            await room.join(f"x{life}", queue=A)
            await room.claim(f"x{life}", queue=A, suspect_after=1000)
            await room.broker.leave(A, f"x{life}")
        await emit(room, "2")
        given = await claim(room, "a")
        assert (ids(given.entries), given.suspects) == (["2"], True)
        assert (await room.broker.inspector.queue(A)).suspects == 1
        alone = await claim(room, "a", alone=True)
        assert ([(e.body, e.crashes) for e in alone.entries], alone.suspects) == ([(b"1", SUSPECT_AFTER)], False)
        assert await end(room, "a", alone.entries) == 1

    @promise()
    async def test_a_lost_claim_of_events_is_recovered(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "0")
        await end(room, "a", await take(room, "a"), Kind.RETRY)
        await emit(room, "1", "2", "3", expires=60)
        retried, first, second, third = await take(room, "a")
        assert await room.broker.recover(A, "a", {first.ref}) == [retried, second, third]
        assert await room.broker.recover(A, "a", {e.ref for e in (retried, first, second, third)}) == []

    @promise()
    async def test_how_an_event_ended_can_be_kept(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1", "2")
        await end(room, "a", await take(room, "a"), result=DONE_ENDING, result_ttl=60)
        assert await room.broker.results.get(A, "2") == DONE_ENDING
        assert await room.broker.results.get(B, "2") is None

    @promise()
    async def test_a_group_knows_an_event_by_its_id_once_it_was_retried_or_is_dead(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "retried", "dead", "running")
        retried, dead, _ = await take(room, "a")
        await end(room, "a", [retried], Kind.RETRY, delay=60)
        await end(room, "a", [dead], Kind.DEAD)
        assert [await room.status(name, A) for name in ("retried", "dead", "running")] == ["scheduled", "dead", "unknown"]
        assert await room.broker.promote(A, ["retried"]) == ["retried"]
        assert ids(await take(room, "a")) == ["retried"]
