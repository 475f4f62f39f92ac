"""What a server does for one call: it does not grow with what happened before, nor with how many others there are."""

from __future__ import annotations

import re

import pytest

from millstream.broker import Listed, Post
from millstream.errors import BrokerError
from millstream.redis.scripts import Script
from millstream.testing.keyed import KEY, finish_all, retry, send, view_id
from millstream.testing.keyed import begin as begin_key
from millstream.testing.room import Room, ids
from millstream.testing.topic import begin, emit_serials
from tests.contract.stories import Server, Tell

# -- publishing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["q"], indirect=True)
@pytest.mark.parametrize("lost", [False, True], ids=["gap", "lost_mark"])
def test_after_a_gap_in_its_serials_a_sender_needs_one_script_per_publish_again(tell: Tell, lost: bool) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.send("s", 1)
        if lost:
            await server.call("DEL", server.keys["sender"] + "s")
        await room.send("s", 5)
        before = await server.scripts()
        for serial in range(6, 16):
            await room.send("s", serial)
        assert await server.scripts() - before == 10
        assert await room.send("s", 3, 7, 15) == [*await room.send("t", 1), *await room.send("s", 7, 15)]

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
@pytest.mark.parametrize("lost", [False, True], ids=["gap", "lost_mark"])
def test_after_a_gap_in_its_serials_a_sender_of_events_needs_one_script_per_publish_again(tell: Tell, lost: bool) -> None:
    async def story(room: Room, server: Server) -> None:
        await begin(room, "a")
        await emit_serials(room, "s", 1)
        if lost:
            await server.call("DEL", server.topic["sender"] + "s")
        await emit_serials(room, "s", 5)
        before = await server.scripts()
        for serial in range(6, 16):
            await emit_serials(room, "s", serial)
        assert await server.scripts() - before == 10
        assert await emit_serials(room, "s", 3, 7) == [*await emit_serials(room, "t", 1), *await emit_serials(room, "s", 7)]

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_after_its_topic_was_full_a_sender_needs_one_script_per_publish_again(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await begin(room, "a")
        await emit_serials(room, "s", 1, max_length=1)
        await emit_serials(room, "s", 2, max_length=1)
        await emit_serials(room, "s", 3, max_length=100)
        before = await server.scripts()
        for serial in range(4, 14):
            await emit_serials(room, "s", serial, max_length=100)
        assert await server.scripts() - before == 10

    tell(story)


# -- consumers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_group", [False, True], ids=["queue", "group"])
@pytest.mark.parametrize("name", ["claim", "settle", "release", "renew", "recover", "join", "around"])
def test_no_script_of_a_worker_lists_all_consumers(name: str, of_group: bool) -> None:
    text = Script(name, of_group=of_group).text
    assert not re.search(r"'XINFO', 'CONSUMERS'|'XPENDING', [\w.\[\]]+, [\w.\[\]]+\)", text)


def test_many_leases_lapse_as_fast_as_one(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("living", lease=1e6)
        await room.join(*[f"dead{n}" for n in range(250)], lease=10)
        for second in (11, 13):
            room.at(second)
            for _ in range(3):
                await room.claim("living", 0)
        assert (await room.totals())["lapsed"] == 250

    tell(story)


def test_what_many_lapsed_consumers_held_is_taken_over_by_claims_that_follow_at_once(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.publish(*[f"n{n}" for n in range(300)])
        for n in range(150):
            await room.join(f"dead{n}", lease=10)
            await room.take(f"dead{n}", 2)
        for n in range(150):
            await room.broker.leave(room.queue, f"dead{n}")
        await room.join("living", lease=1e6)
        found: list[str] = []
        while True:
            claim = await room.claim("living", 20)
            found += ids(claim.entries)
            if not claim.entries and claim.next_due != 0:
                break
        assert sorted(found) == sorted(f"n{n}" for n in range(300))

    tell(story)


def test_a_blameless_leave_with_much_in_hand_takes_several_scripts_and_counts_no_crash(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        names = [f"n{n}" for n in range(450)]
        await room.publish(*names)
        await room.join("c", "d", lease=1e6)
        await room.take("c", 450)
        before = await server.scripts()
        assert await room.broker.leave(room.queue, "c", blameless=True) == 450
        assert await server.scripts() - before >= 3
        again = await room.take("d", 450)
        assert (ids(again), {entry.crashes for entry in again}) == (names, {0})

    tell(story)


def test_entries_that_others_trimmed_are_buried_some_at_a_time(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", "d", lease=1e6)
        await room.publish(*[f"n{n}" for n in range(1000)])
        await room.take("c", 1000)
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        await room.broker.leave(room.queue, "c")
        dead, unfinished = 0, True
        while unfinished:
            claim = await room.claim("d", 200)
            state = await room.broker.inspector.queue(room.queue)
            assert not claim.entries and state.dead - dead <= 200
            dead, unfinished = state.dead, claim.next_due == 0
        assert dead == 1000

    tell(story)


def test_turns_whose_messages_others_trimmed_are_all_passed_on(tell: Tell) -> None:
    """More of them than a script may give to one command."""

    async def story(room: Room, server: Server) -> None:
        await room.join("c", "d", lease=1e6)
        for n in range(9_000):
            await server.call("HSET", server.keys["turns"], f"k{n}", "r" + "0" * 40 + f"gone{n}")
        await send(room, "lost")
        await room.take("c")
        await send(room, "next")
        await room.take("c")
        await server.call("XTRIM", server.keys["log" if ">" in room.queue else "stream"], "MAXLEN", 0)
        await room.broker.leave(room.queue, "c")
        assert await finish_all(room, "d") == ["next"]
        assert await server.call("HLEN", server.keys["turns"]) == 0

    tell(story)


# -- reading ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["scheduled", "blocked"])
def test_a_listing_passes_over_lost_bodies_some_at_a_time(tell: Tell, status: Listed) -> None:
    async def story(room: Room, server: Server) -> None:
        first = await begin_key(room, "1", "2")
        key, member = "blocked", KEY + b"\0\0" + b"0" * 40 + b"lost"
        if status == "scheduled":
            await retry(room, first, delay=1000)
            key, member = "due", b"lost"
        lost = [part for n in range(3_000) for part in (0, member + b"%d" % n)]
        await server.call("ZADD", server.keys[key], *lost)
        before = await server.scripts()
        (view,) = await room.broker.inspector.jobs(room.queue, status)
        assert view_id(view) == ("1" if status == "scheduled" else "2")
        assert await server.scripts() - before >= 3
        assert await room.broker.inspector.jobs(room.queue, status, after=view.cursor) == []

    tell(story)


@pytest.mark.parametrize("setting", [("min-replicas-to-write", "1", "0"), ("maxmemory", "1", "0")], ids=["no_replica", "full"])
def test_a_server_that_refuses_writes_can_be_looked_at(tell: Tell, setting: tuple[str, str, str]) -> None:
    name, on, off = setting

    async def story(room: Room, server: Server) -> None:
        await room.join("c", lease=1e6)
        await send(room, "keyed")
        await room.publish("running", "ready")
        await room.take("c", 1)
        await room.publish("later", delay=5)
        await server.call("CONFIG", "SET", name, on)
        try:
            with pytest.raises(BrokerError):
                await room.broker.publish(room.queue, [Post("no", b"no", "t")])
            inspector = room.broker.inspector
            assert (await inspector.queue(room.queue)).scheduled == 1
            assert await room.status("later") == "scheduled"
            assert await inspector.job(room.queue, "later") is not None
            for status in ("ready", "running", "scheduled", "blocked"):
                await inspector.jobs(room.queue, status)
            await inspector.stopped_keys(room.queue)
            await inspector.due(room.queue)
            if ">" in room.queue:
                await inspector.topic("t")
        finally:
            await server.call("CONFIG", "SET", name, off)

    tell(story)
