"""Keys that other hands delete, or a server evicts: what they held goes on if it can, and is told if it cannot."""

from __future__ import annotations

import time
from typing import cast

import pytest

from millstream.broker import OrderRules
from millstream.outcome import Kind
from millstream.redis import RedisBroker
from millstream.testing.keyed import KEY, begin, dead, finish_all, send, take_all
from millstream.testing.room import Room, ids
from tests.contract.stories import Server, Tell

LOOK = 3
"""Seconds after which the next claim looks around."""


# -- who holds what --------------------------------------------------------------------------------------------------------


def test_what_ran_when_the_leases_were_lost_is_taken_over_by_the_next_consumer(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", lease=1e6)
        await send(room, "1", "2", key=None)
        await room.take("c")
        await server.lose("leases")
        await room.join("d", lease=1e6)
        taken = await take_all(room, "d")
        assert [(entry.body, entry.crashes) for entry in taken] == [(b"1", 1), (b"2", 1)]

    tell(story)


def test_what_one_held_whose_lease_was_deleted_is_taken_over(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", "d", lease=1e6)
        await send(room, "1", key=None)
        await room.take("c")
        await server.call("ZREM", server.keys["leases"], "c")
        await take_all(room, "d")
        room.at(LOOK)
        assert ids(await take_all(room, "d")) == ["1"]

    tell(story)


@pytest.mark.parametrize("blameless", [False, True])
def test_one_whose_lease_was_deleted_leaves_what_it_held_to_others(tell: Tell, blameless: bool) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", "d", lease=1e6)
        await send(room, "1", key=None)
        await room.take("c")
        await server.lose("leases")
        assert await room.broker.leave(room.queue, "c", blameless=blameless) == 1
        await room.join("d", lease=1e6)
        assert [entry.crashes for entry in await room.take("d")] == [0 if blameless else 1]

    tell(story)


@pytest.mark.parametrize("how", ["left", "released", "suspect"])
def test_what_waits_to_be_taken_over_when_the_lapsed_names_are_lost_is_taken_over(tell: Tell, how: str) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", "d", lease=1e6)
        await send(room, "1", key=None)
        entries = await room.take("c")
        if how == "released":
            await room.release("c", entries)
        else:
            await room.broker.leave(room.queue, "c")
        if how == "suspect":
            assert (await room.claim("d", suspect_after=1)).entries == []
        await server.lose("lapsed")
        assert await room.take("d") == []
        room.at(LOOK)
        found = await take_all(room, "d")
        if how == "suspect":
            assert found == []
            found = await room.take("d", alone=True)
        assert ids(found) == ["1"]

    tell(story)


# -- what waits ------------------------------------------------------------------------------------------------------------


def test_what_was_scheduled_when_the_moments_were_lost_is_due(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", lease=1e6)
        await send(room, "1", key=None)
        await room.settle("c", await room.take("c"), Kind.RETRY, delay=1000)
        await server.lose("due")
        room.at(LOOK)
        assert ids(await take_all(room)) == ["1"]

    tell(story)


@pytest.mark.parametrize("address", ["t>g"], indirect=True)
def test_what_was_delayed_when_the_moments_of_the_topic_were_lost_is_published(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", lease=1e6)
        await send(room, "1", key=None, delay=1000)
        await server.lose("log_due")
        room.at(LOOK)
        assert ids(await take_all(room)) == ["1"]

    tell(story)


def test_what_was_blocked_when_the_order_was_lost_follows_in_order(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        first = await begin(room, "1", "2", "3")
        await server.lose("blocked")
        room.at(LOOK)
        assert await take_all(room) == []
        await room.settle("c", [first])
        assert await finish_all(room) == ["2", "3"]

    tell(story)


@pytest.mark.parametrize("key", [b"k", b"a\0b", b"\0"])
def test_what_was_blocked_when_the_turns_were_lost_goes_on(tell: Tell, key: bytes) -> None:
    async def story(room: Room, server: Server) -> None:
        first = await begin(room, "1", "2", "3", key=key)
        await server.lose("turns")
        await room.settle("c", [first])
        room.at(LOOK)
        assert await finish_all(room) == ["2", "3"]

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_a_key_goes_on_although_the_job_that_has_its_turn_is_known_as_dead(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await begin(room, "1", "2", "3")
        await server.call("HSET", server.keys["index"], "1", "d5-5")
        room.at(LOOK)
        assert await finish_all(room) == ["2", "3"]

    tell(story)


def test_a_key_goes_on_although_the_bodies_of_many_that_were_blocked_are_lost(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        first = await begin(room, "1", *[f"n{n}" for n in range(90)])
        await server.lose("held")
        await send(room, "newer")
        assert await take_all(room) == []
        await room.settle("c", [first])
        found: list[str] = []
        for look in range(1, 4):
            room.at(LOOK * look)
            found += await finish_all(room)
        assert found == ["newer"]

    tell(story)


# -- stopped keys ----------------------------------------------------------------------------------------------------------


async def stop(room: Room, *names: str, key: bytes = KEY) -> None:
    """The first of these messages is dead and has stopped its key; the others died of it."""
    await room.broker.join(room.queue, "c", 1e6, order=OrderRules(stop=True))
    await send(room, *names, key=key)
    assert await room.settle("c", await take_all(room), Kind.DEAD) == 1
    assert await take_all(room) == []
    assert await dead(room) == [*names]


@pytest.mark.parametrize("key", [b"k", b"a\0b", b"\0"])
def test_a_key_that_was_stopped_when_the_turns_were_lost_is_stopped_again(tell: Tell, key: bytes) -> None:
    async def story(room: Room, server: Server) -> None:
        await stop(room, "1", "2", key=key)
        await server.lose("turns")
        room.at(LOOK)
        assert await take_all(room) == []
        await send(room, "3", key=key)
        assert await take_all(room) == []
        assert await dead(room, "stopped") == ["2", "3"]
        assert await room.broker.clear_key(room.queue, key, replay=True) == 3
        assert await finish_all(room) == ["1", "2", "3"]

    tell(story)


def test_what_is_blocked_of_a_stopped_key_when_the_turns_are_lost_dies_of_it(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await stop(room, "1")
        await server.lose("turns")
        await send(room, "2", "3", "4")
        running = await take_all(room)  # before the next look
        assert ids(running) == ["2"]
        room.at(LOOK)
        assert await take_all(room) == []
        await room.settle("c", running)
        assert await take_all(room) == []
        assert await dead(room, "stopped") == ["3", "4"]
        assert await room.broker.clear_key(room.queue, KEY, replay=True) == 3
        assert await finish_all(room) == ["1", "3", "4"]

    tell(story)


def test_all_keys_that_were_stopped_when_the_turns_were_lost_are_stopped_again(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        keys = [b"k%d" % n for n in range(700)]
        await stop(room, "1")
        await server.call("HSET", server.keys["stopped"], *[part for key in keys for part in (key, "0 1")])
        await server.lose("turns")
        room.at(LOOK)
        assert await take_all(room) == []
        assert await server.call("HLEN", server.keys["turns"]) == 701

    tell(story)


@pytest.mark.parametrize("lost", ["turns", "messages"])
def test_no_search_for_what_was_lost_passes_on_the_turn_of_a_stopped_key(
    tell: Tell, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are so many keys that claims come between the looks."""
    monkeypatch.setattr("millstream.redis.broker.LOOKS", 1)

    async def story(room: Room, server: Server) -> None:
        keys = [b"k%d" % n for n in range(600)]
        await room.join("c", lease=1e6)
        for key in keys:
            await send(room, key.decode() + "a", key.decode() + "b", key=key)
        assert len(await take_all(room, count=1000)) == 600
        assert (await room.broker.inspector.queue(room.queue)).blocked == 600
        await server.call("HSET", server.keys["stopped"], *[part for key in keys for part in (key, "0 1")])
        if lost == "turns":
            await server.lose("turns")
        else:
            await server.call("XTRIM", server.keys["log" if ">" in room.queue else "stream"], "MAXLEN", 0)
            await room.broker.leave(room.queue, "c")
            await room.join("c", lease=1e6)
        room.at(LOOK)
        assert await take_all(room, count=1000) == []
        letters = await room.broker.inspector.dead_letters(room.queue, limit=2000)
        followers = [letter.id for letter in letters if letter.letter.reason == "stopped"]
        assert sorted(followers) == sorted(key.decode() + "b" for key in keys)

    tell(story)


@pytest.mark.parametrize("replay", [False, True])
def test_a_key_that_was_stopped_when_the_turns_were_lost_can_be_cleared_at_once(tell: Tell, replay: bool) -> None:
    async def story(room: Room, server: Server) -> None:
        await stop(room, "1", "2")
        await server.lose("turns")
        assert await room.broker.clear_key(room.queue, KEY, replay=replay) == (2 if replay else 0)
        assert await room.broker.inspector.stopped_keys(room.queue) == []
        await send(room, "3")
        assert await finish_all(room) == (["1", "2", "3"] if replay else ["3"])
        assert await room.broker.clear_key(room.queue, KEY, replay=replay) is None

    tell(story)


def test_a_clear_after_the_turns_were_lost_waits_for_the_message_that_runs(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await stop(room, "1", "2")
        await server.lose("turns")
        await send(room, "3")
        running = await take_all(room)
        assert ids(running) == ["3"]
        assert await room.broker.clear_key(room.queue, KEY, replay=True) == 2
        assert await take_all(room) == []
        await room.settle("c", running)
        assert await finish_all(room) == ["1", "2"]

    tell(story)


def test_dead_letters_of_a_key_that_was_stopped_when_the_turns_were_lost_are_not_replayed_one_by_one(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await stop(room, "1", "2")
        await server.lose("turns")
        assert await room.broker.replay(room.queue, ["2"]) == []
        assert await take_all(room) == []

    tell(story)


# -- jobs that are gone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_ready_jobs_that_others_trimmed_are_dead_and_their_ids_are_forgotten_in_time(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", lease=1e6)
        await room.publish("gone")
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        assert await server.call("PTTL", server.keys["given"] + "gone") == -1
        await room.publish("there")
        room.at(LOOK)
        assert ids(await take_all(room)) == ["there"]
        assert await take_all(room) == []
        assert await room.status("gone") == "dead"
        assert await server.call("PTTL", server.keys["given"] + "gone") > 0
        assert await server.call("PTTL", server.keys["given"] + "there") == -1

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_scheduled_jobs_whose_bodies_are_lost_are_dead(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", lease=1e6)
        await room.publish("gone", delay=1000)
        await server.lose("held")
        room.at(LOOK)
        assert await take_all(room) == []
        assert await room.status("gone") == "dead"

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_a_claimed_job_that_others_trimmed_is_told_once(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", "d", lease=1e6)
        await room.publish("gone")
        await room.take("c")
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        await room.broker.leave(room.queue, "c")
        for look in range(1, 4):
            room.at(LOOK * look)
            assert await take_all(room, "d") == []
        assert len(await room.broker.inspector.dead_letters(room.queue)) == 1
        assert await server.call("PTTL", server.keys["given"] + "gone") > 0

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
@pytest.mark.parametrize("claimed", [False, True])
def test_jobs_that_others_trimmed_leave_no_more_dead_letters_than_are_kept(
    tell: Tell, claimed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(room: Room, server: Server) -> None:
        monkeypatch.setattr(room.broker, "_dead_max_count", 10)
        await room.join("c", "d", lease=1e6)
        names = [f"n{n}" for n in range(250)]
        await room.publish(*names)
        if claimed:
            await room.take("c", 250)
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        await room.broker.leave(room.queue, "c")
        room.at(LOOK)
        assert await take_all(room, "d") == []
        assert (await room.totals())["dead"] == 250
        assert len(await room.broker.inspector.dead_letters(room.queue)) == 10

    tell(story)


# -- the clock and the server ----------------------------------------------------------------------------------------------


def test_after_the_clock_was_set_back_a_lease_from_before_ends_within_its_length(tell: Tell) -> None:
    hour_ms = 3_600_000

    async def story(room: Room, server: Server) -> None:
        room.run_clock()
        await room.join("living", "dead", "late", lease=60)
        await room.claim("living", 0)
        ahead = time.time() * 1000 + hour_ms
        await server.call("ZADD", server.keys["leases"], ahead + 60_000, "dead", ahead - 1e15, "late")
        await server.call("HSET", server.keys["meta"], "seen", round(ahead), "calm", round(ahead + 60_000))
        await room.claim("living", 0)
        deadline, mark = [float(await server.call("ZSCORE", server.keys["leases"], name)) for name in ("dead", "late")]
        calm = float(await server.call("HGET", server.keys["meta"], "calm"))
        now = time.time() * 1000
        assert max(deadline, calm) <= now + 61_000 and mark <= now + 1_000 - 1e15

    tell(story)


def test_leases_lapse_also_behind_a_proxy_that_leads_to_several_servers(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("dead", lease=10)
        await send(room, "1", key=None)
        await room.take("dead")
        brokers = [cast(RedisBroker, await room.another()) for _ in range(2)]
        for n, broker in enumerate(brokers):
            await broker.join(room.queue, f"living{n}", 10)
            await broker.claim(room.queue, f"living{n}", 0)
            broker._claiming[room.queue, f"living{n}"].server["run_id"] = f"{n}" * 40
        found: list[str] = []
        for half_second in range(60):
            room.at(half_second / 2)
            await room.broker.renew(room.queue, {"living0": 10, "living1": 10})
            for n, broker in enumerate(brokers):
                found += ids((await broker.claim(room.queue, f"living{n}", 1)).entries)
        assert found == ["1"]

    tell(story)
