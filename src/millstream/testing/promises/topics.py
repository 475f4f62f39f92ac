"""What publishers and groups of a topic can rely on."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from millstream.address import group_address
from millstream.broker import Claim, Entry, GroupState, JobView, Listed, Post, Receipt, TopicState
from millstream.broker.contract import BEGINNING, END, SUSPECT_AFTER, Place
from millstream.errors import LeaseLost
from millstream.message import Message, encode_message
from millstream.outcome import Kind, Outcome
from millstream.testing.room import DONE_ENDING, LONG, START, Promises, Room, eventually, ids, outcome, promise

CREATED, EXISTS, FULL = Receipt.CREATED, Receipt.EXISTS, Receipt.FULL

TOPIC = "orders"
A, B = group_address(TOPIC, "a"), group_address(TOPIC, "b")


async def emit(room: Room, *event_ids: str, topic: str = TOPIC, **options: Any) -> list[Receipt]:
    """Events whose ids the publisher gave."""
    bounds = {name: options.pop(name) for name in ("max_length", "lossy") if name in options}
    return await room.broker.emit(topic, [Post(i, i.encode(), **options) for i in event_ids], **bounds)


async def emit_serials(room: Room, sender: str, *serials: int, topic: str = TOPIC, **bounds: Any) -> list[Receipt]:
    """Events with generated ids."""
    posts = [Post(f"{sender}-{n}", f"{sender}-{n}".encode(), serial=n) for n in serials]
    return await room.broker.emit(topic, posts, sender=sender, **bounds)


async def begin(room: Room, *groups: str, start: Place = BEGINNING, **retention: Any) -> None:
    """Groups of the topic, each with one consumer of its name."""
    await room.broker.open_topic(TOPIC, dict.fromkeys(groups, start), **retention)
    for group in groups:
        await room.join(group, lease=1e6, queue=group_address(TOPIC, group))


async def claim(room: Room, group: str, count: int = 1000, **options: Any) -> Claim:
    return await room.claim(group, count, queue=group_address(TOPIC, group), **options)


async def take(room: Room, group: str, count: int = 1000, **options: Any) -> list[Entry]:
    return (await claim(room, group, count, **options)).entries


async def end(room: Room, group: str, entries: list[Entry], kind: Kind = Kind.DONE, **fields: Any) -> int:
    return await room.settle(group, entries, kind, queue=group_address(TOPIC, group), **fields)


async def finish(room: Room, group: str, count: int = 1000) -> list[str]:
    """Claim, and settle as done; whose events these were."""
    entries = await take(room, group, count)
    await end(room, group, entries)
    return ids(entries)


async def state(room: Room) -> TopicState:
    return await room.broker.inspector.topic(TOPIC)


async def group_state(room: Room, name: str) -> GroupState:
    return next(group for group in (await state(room)).groups if group.name == name)


async def listed(room: Room, status: Listed, limit: int) -> list[str]:
    """The ids of all jobs of one state in the first group, read in pages."""
    found: list[JobView] = []
    while page := await room.broker.inspector.jobs(A, status, after=found[-1].cursor if found else "", limit=limit):
        assert len(page) <= limit
        found += page
    return [view.id for view in found]


class TopicPromises(Promises):
    # -- groups ------------------------------------------------------------------------------------------------------------

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

    # -- ids ---------------------------------------------------------------------------------------------------------------

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

    @promise()
    async def test_a_lossy_topic_drops_its_oldest_events(self, room: Room) -> None:
        await begin(room, "a")
        names = [f"n{n}" for n in range(500)]
        for at in range(0, 500, 50):
            assert await emit(room, *names[at : at + 50], max_length=120, lossy=True) == [CREATED] * 50
        assert (await state(room)).length == 120
        assert (await group_state(room, "a")).lag == 120
        assert ids(await take(room, "a")) == names[-120:]

    @promise()
    async def test_a_lossy_topic_knows_generated_ids(self, room: Room) -> None:
        assert await emit_serials(room, "s", 1, 2, 3, max_length=2, lossy=True) == [CREATED] * 3
        assert await emit_serials(room, "s", 1, 3, max_length=2, lossy=True) == [EXISTS, EXISTS]
        assert (await state(room)).length == 2

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

    # -- what is kept ------------------------------------------------------------------------------------------------------

    @promise()
    async def test_an_event_stays_until_every_group_has_settled_it(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1", "2", "3")
        await finish(room, "a")
        held = await take(room, "b")
        room.at(2)
        await claim(room, "a")
        assert (await state(room)).length == 3
        await end(room, "b", held[:1] + held[2:])
        room.at(4)
        await claim(room, "a")
        assert (await state(room)).length == 2
        await end(room, "b", held[1:2])
        room.at(6)
        await claim(room, "a")
        assert (await state(room)).length == 0

    @promise()
    async def test_a_claim_a_second_after_the_last_trim_is_enough(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1")
        await finish(room, "a")
        room.at(1)
        await claim(room, "a", 0)
        assert (await state(room)).length == 0

    @promise()
    async def test_many_events_leave_too(self, room: Room) -> None:
        await begin(room, "a")
        for n in range(10):
            await emit(room, *[f"{n}-{m}" for m in range(150)])
        while len(await finish(room, "a", 200)):
            pass
        await emit(room, "held", "next")
        held = await take(room, "a", 1)
        await finish(room, "a")
        room.at(2)
        await claim(room, "a", 0)
        assert (await state(room)).length == 2
        assert await end(room, "a", held) == 1

    @promise()
    async def test_what_waits_for_a_retry_or_is_dead_does_not_stay_in_the_log(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "retried", "dead")
        retried, dead = await take(room, "a")
        await end(room, "a", [retried], Kind.RETRY, delay=60)
        await end(room, "a", [dead], Kind.DEAD)
        room.at(2)
        await claim(room, "a")
        assert (await state(room)).length == 0
        room.at(60)
        assert ids(await take(room, "a")) == ["retried"]

    @promise()
    async def test_a_topic_without_groups_keeps_everything(self, room: Room) -> None:
        await emit(room, "1", "2")
        room.at(1000)
        await emit_serials(room, "s", 1)
        assert (await state(room)).length == 3

    @promise()
    async def test_a_topic_without_groups_keeps_no_more_than_its_retention(self, room: Room) -> None:
        await room.broker.open_topic(TOPIC, {}, keep_count=2)
        await emit(room, "1", "2", "3")
        room.at(2)
        await emit_serials(room, "s", 1)
        await begin(room, "a", keep_count=2)
        assert ids(await take(room, "a")) == ["3", "s-1"]

    @promise()
    async def test_history_is_kept_by_age(self, room: Room) -> None:
        await begin(room, "a", keep=10)
        for second in (0, 5, 10):
            room.at(second)
            await emit(room, str(second))
            await finish(room, "a")
        room.at(12)
        await claim(room, "a")
        await begin(room, "b", keep=10)
        assert await finish(room, "b") == ["5", "10"]
        room.at(30)
        await claim(room, "b")
        assert (await state(room)).length == 0

    @promise()
    async def test_history_is_kept_by_count(self, room: Room) -> None:
        await begin(room, "a", keep_count=3)
        await emit(room, *"123456789")
        await finish(room, "a")
        room.at(2)
        await claim(room, "a")
        await begin(room, "b", keep_count=3)
        assert ids(await take(room, "b")) == ["7", "8", "9"]

    @promise()
    async def test_history_of_bounded_age_and_count_is_kept_while_both_allow_it(self, room: Room) -> None:
        await begin(room, "a", keep=10, keep_count=3)
        await emit(room, "1", "2")
        room.at(5)
        await emit(room, "3", "4")
        await finish(room, "a")
        room.at(7)
        await claim(room, "a")
        assert (await state(room)).length == 3
        room.at(12)
        await claim(room, "a")
        assert (await state(room)).length == 2

    @promise()
    async def test_history_never_includes_less_than_what_is_not_settled(self, room: Room) -> None:
        await begin(room, "a", "b", keep=0.0, keep_count=0)
        await emit(room, "1", "2", "3")
        await finish(room, "a")
        room.at(100)
        await claim(room, "a")
        assert ids(await take(room, "b")) == ["1", "2", "3"]

    @promise()
    async def test_a_consumer_that_joins_changes_no_retention(self, room: Room) -> None:
        await begin(room, "a", keep_count=2)
        await room.join("second", queue=A)
        await emit(room, "1", "2", "3")
        await finish(room, "a")
        room.at(2)
        await claim(room, "a")
        assert (await state(room)).length == 2

    @promise()
    async def test_a_group_that_is_removed_holds_nothing_back_and_leaves_nothing(self, room: Room) -> None:
        await begin(room, "a", "slow")
        await emit(room, "1", "2", "3", "4")
        await finish(room, "a")
        slow = group_address(TOPIC, "slow")
        dead, retried, _ = await take(room, "slow", 3)
        await end(room, "slow", [dead], Kind.DEAD)
        await end(room, "slow", [retried], Kind.RETRY, delay=5)
        assert await room.broker.remove_group(slow)
        assert not await room.broker.remove_group(slow)
        with pytest.raises(LeaseLost):
            await claim(room, "slow")
        room.at(2)
        await claim(room, "a")
        assert (await state(room)).length == 0
        assert [group.name for group in (await state(room)).groups] == ["a"]
        assert await room.broker.inspector.dead_letters(slow) == []
        await begin(room, "slow")
        await emit(room, "5")
        room.at(10)
        assert ids(await take(room, "slow")) == ["5"]

    @promise()
    async def test_only_a_group_can_be_removed_or_moved(self, room: Room) -> None:
        assert not await room.broker.remove_group(group_address("none", "none"))
        assert not await room.broker.seek(group_address("none", "none"), END)
        for address in ("q", "t>"):
            with pytest.raises(ValueError, match="group"):
                await room.broker.remove_group(address)
            with pytest.raises(ValueError, match="group"):
                await room.broker.seek(address, END)

    # -- seek --------------------------------------------------------------------------------------------------------------

    @promise()
    async def test_a_group_moved_back_is_given_again_what_is_kept(self, room: Room) -> None:
        await begin(room, "a", "b", keep_count=3)
        await emit(room, "1", "2", "3", "4", "5")
        await finish(room, "a")
        await finish(room, "b")
        room.at(2)
        await claim(room, "a")
        assert await room.broker.seek(A, BEGINNING)
        await emit(room, "6")
        assert await finish(room, "a") == ["3", "4", "5", "6"]
        assert await finish(room, "b") == ["6"]

    @promise()
    async def test_a_group_can_be_moved_to_a_moment_or_after_an_entry(self, room: Room) -> None:
        await begin(room, "a", keep_count=100)
        places = {}
        for second in range(5):
            room.at(second)
            await emit(room, str(second))
            await finish(room, "a")
            places[second] = (await group_state(room, "a")).place
        await room.broker.seek(A, START + 3)
        assert await finish(room, "a") == ["3", "4"]
        await room.broker.seek(A, places[1])
        assert await finish(room, "a") == ["2", "3", "4"]

    @promise()
    async def test_a_group_moved_forward_is_not_given_what_lies_between(self, room: Room) -> None:
        await begin(room, "a", "b")
        await emit(room, "1", "2", "3")
        held = await take(room, "a", 1)
        assert await room.broker.seek(A, END)
        await emit(room, "4")
        assert ids(await take(room, "a")) == ["4"]
        assert await end(room, "a", held) == 1
        assert ids(await take(room, "b")) == ["1", "2", "3", "4"]

    @promise()
    async def test_a_group_moved_to_a_moment_lets_go_of_what_is_older(self, room: Room) -> None:
        await begin(room, "a")
        await emit(room, "1", "2")
        await room.broker.seek(A, START + 5)
        room.at(5)
        await emit(room, "3")
        await claim(room, "a", 0)
        assert (await state(room)).length == 1
        assert ids(await take(room, "a")) == ["3"]

    @promise()
    async def test_a_place_that_is_none_is_refused(self, room: Room) -> None:
        await begin(room, "a")
        for place in ("", "start", "1-2-3", "-1", "1-"):
            with pytest.raises(ValueError, match="place"):
                await room.broker.seek(A, place)
            with pytest.raises(ValueError, match="place"):
                await room.broker.open_topic(TOPIC, {"new": place})

    @promise()
    async def test_moving_a_group_back_ends_a_wait(self, room: Room) -> None:
        await begin(room, "a", keep_count=10)
        await emit(room, "1")
        await finish(room, "a")
        waiting = await room.begun(room.wait_for_work("a", queue=A))
        await room.broker.seek(A, BEGINNING)
        assert ids(await waiting) == ["1"]

    @promise()
    async def test_a_moved_group_holds_the_log_again(self, room: Room) -> None:
        await begin(room, "a", "b", keep_count=2)
        await emit(room, "1", "2")
        await finish(room, "a")
        await finish(room, "b")
        await room.broker.seek(A, BEGINNING)
        await emit(room, "3", "4", "5")
        await finish(room, "b")
        room.at(2)
        await claim(room, "b")
        assert await finish(room, "a") == ["1", "2", "3", "4", "5"]

    @promise()
    async def test_an_event_given_again_while_it_runs_is_a_new_delivery(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("second", queue=A)
        await emit(room, "1")
        await take(room, "a")
        await room.broker.seek(A, BEGINNING)
        again = await room.take("second", queue=A)
        assert [(entry.body, entry.crashes) for entry in again] == [(b"1", 0)]
        assert await room.settle("second", again, queue=A) == 1
        queue = await room.broker.inspector.queue(A)
        assert (queue.ready, queue.running) == (0, 0)

    @promise()
    async def test_the_letter_of_an_event_that_is_given_again_stays_until_it_dies_again(self, room: Room) -> None:
        await begin(room, "a", keep_count=10)
        await emit(room, "1")
        await end(room, "a", await take(room, "a"), Kind.DEAD, body=b"1#first")
        await room.broker.seek(A, BEGINNING)
        await finish(room, "a")
        assert [dead.body for dead in await room.broker.inspector.dead_letters(A)] == [b"1#first"]
        await room.broker.seek(A, BEGINNING)
        await end(room, "a", await take(room, "a"), Kind.DEAD, body=b"1#second")
        assert [dead.body for dead in await room.broker.inspector.dead_letters(A)] == [b"1#second"]
        assert await room.broker.replay(A, ["1"]) == ["1"]
        assert [entry.body for entry in await take(room, "a")] == [b"1#second"]
        assert await room.broker.inspector.dead_letters(A) == []

    @promise()
    async def test_an_event_given_again_and_retried_again_waits_once(self, room: Room) -> None:
        await begin(room, "a", keep_count=10)
        await emit(room, "1")
        await end(room, "a", await take(room, "a"), Kind.RETRY, delay=5, body=b"1#first")
        await room.broker.seek(A, BEGINNING)
        await end(room, "a", await take(room, "a"), Kind.RETRY, delay=9, body=b"1#second")
        room.at(5)
        assert await take(room, "a") == []
        room.at(9)
        assert [entry.body for entry in await take(room, "a")] == [b"1#second"]

    @promise()
    async def test_a_retry_that_waits_gives_way_to_the_letter_of_a_later_delivery(self, room: Room) -> None:
        await begin(room, "a", keep_count=10)
        await emit(room, "1")
        await end(room, "a", await take(room, "a"), Kind.RETRY, delay=5)
        await room.broker.seek(A, BEGINNING)
        await end(room, "a", await take(room, "a"), Kind.DEAD)
        assert await room.status("1", A) == "dead"
        room.at(5)
        given = await claim(room, "a")
        assert (given.entries, given.next_due) == ([], None)
        assert await room.broker.replay(A, ["1"]) == ["1"]

    # -- reading -----------------------------------------------------------------------------------------------------------

    @promise()
    async def test_topics_are_listed_in_order_and_are_no_queues(self, room: Room) -> None:
        await room.broker.open_topic("z", {})
        await room.join("c", queue=group_address("m", "g"))
        await room.broker.open_topic("b", {"y": END, "x": BEGINNING})
        assert [name for name in await room.broker.inspector.topics() if name in ("b", "m", "z")] == ["b", "m", "z"]
        assert not {"b", "m", "z"} & set(await room.broker.inspector.queues())
        assert [group.name for group in (await room.broker.inspector.topic("b")).groups] == ["x", "y"]

    @promise()
    async def test_a_topic_nobody_used_is_empty(self, room: Room) -> None:
        before = await room.broker.inspector.topics()
        assert await room.broker.inspector.topic("none") == TopicState("none", 0, 0, {"published": 0}, [])
        assert await room.broker.inspector.topics() == before

    @promise()
    async def test_a_topic_in_numbers(self, room: Room) -> None:
        await begin(room, "b", "a")
        await room.join("second", queue=A)
        await emit(room, *"12345678")
        await emit(room, "later", delay=60)
        dead, retried, done, released, _, _ = await take(room, "a", 6)
        await end(room, "a", [dead], Kind.DEAD)
        await end(room, "a", [retried], Kind.RETRY, delay=60)
        await end(room, "a", [done])
        await room.release("a", [released], queue=A)
        await room.broker.pause(B)
        seen = await state(room)
        assert (seen.name, seen.length, seen.delayed, seen.totals) == (TOPIC, 8, 1, {"published": 9})
        a, b = seen.groups
        assert a == GroupState("a", a.place, 2, ready=3, running=2, scheduled=1, dead=1, paused=False, consumers=2)
        assert b == GroupState("b", b.place, 8, ready=8, running=0, scheduled=0, dead=0, paused=True, consumers=1)
        for group in (a, b):
            queue = await room.broker.inspector.queue(group_address(TOPIC, group.name))
            assert (queue.ready, queue.running, queue.scheduled, queue.dead) == (
                group.ready,
                group.running,
                group.scheduled,
                group.dead,
            )

    @promise()
    async def test_a_lag_is_what_a_group_was_not_given_yet(self, room: Room) -> None:
        await begin(room, "a")
        await begin(room, "new", start=END)
        seen = []
        for count in (0, 2, 1, 2):
            await take(room, "a", count)
            seen.append((await group_state(room, "a")).lag)
            await emit(room, *[f"{len(seen)}-{n}" for n in range(2)])
        assert seen == [0, 0, 1, 1]
        assert (await group_state(room, "new")).lag == 8
        await room.broker.seek(A, END)
        assert (await group_state(room, "a")).lag == 0
        await room.broker.seek(A, BEGINNING)
        assert (await group_state(room, "a")).lag == 8

    @promise()
    async def test_a_groups_events_are_listed_by_their_state(self, room: Room) -> None:
        await begin(room, "a")
        await room.join("second", queue=A)
        names = ["retried", "mine1", "mine2", "released", "theirs", "new1", "new2"]
        args = msgspec.Raw(b"\xc0")
        await room.broker.emit(TOPIC, [Post(i, encode_message(Message(i, "t", args, 17))) for i in names])
        (retried,) = await take(room, "a", 1)
        await room.broker.settle(A, "a", [Outcome(Kind.RETRY, retried.ref, "retried", body=retried.body or b"")])
        released = (await take(room, "a", 4))[-1]
        await room.take("second", 1, queue=A)
        await room.release("a", [released], queue=A)
        for limit in (1, 2, 100):
            assert await listed(room, "running", limit) == ["retried", "mine1", "mine2", "theirs"]
            assert await listed(room, "ready", limit) == ["released", "new1", "new2"]
