"""Keys that another program deletes or a server evicts: affected jobs continue if they can, or become dead letters."""

from __future__ import annotations

import time
from typing import cast

import pytest

from millstream.backends.redis import RedisBroker
from millstream.broker import OrderRules
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, ids
from millstream.testing.keyed import KEY, begin, dead, finish_all, send, take_all
from tests.contract.stories import Server, Tell

LOOK = 3
"""Seconds after which the next claim searches for lost data."""


# -- leases ----------------------------------------------------------------------------------------------------------------


def test_running_messages_are_taken_over_after_all_leases_were_deleted(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", lease=1e6)
        await send(backend, "1", "2", key=None)
        await backend.take("c")
        await server.lose("leases")
        await backend.join("d", lease=1e6)
        taken = await take_all(backend, "d")
        assert [(entry.body, entry.crashes) for entry in taken] == [(b"1", 1), (b"2", 1)]

    tell(story)


def test_messages_of_a_consumer_whose_lease_was_deleted_are_taken_over(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", "d", lease=1e6)
        await send(backend, "1", key=None)
        await backend.take("c")
        await server.call("ZREM", server.keys["leases"], "c")
        await take_all(backend, "d")
        backend.at(LOOK)
        assert ids(await take_all(backend, "d")) == ["1"]

    tell(story)


@pytest.mark.parametrize("blameless", [False, True])
def test_a_consumer_whose_lease_was_deleted_can_still_leave(tell: Tell, blameless: bool) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", "d", lease=1e6)
        await send(backend, "1", key=None)
        await backend.take("c")
        await server.lose("leases")
        assert await backend.broker.leave(backend.queue, "c", blameless=blameless) == 1
        await backend.join("d", lease=1e6)
        assert [entry.crashes for entry in await backend.take("d")] == [0 if blameless else 1]

    tell(story)


@pytest.mark.parametrize("how", ["left", "released", "suspect"])
def test_abandoned_messages_are_taken_over_after_the_lapsed_names_were_deleted(tell: Tell, how: str) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", "d", lease=1e6)
        await send(backend, "1", key=None)
        entries = await backend.take("c")
        if how == "released":
            await backend.release("c", entries)
        else:
            await backend.broker.leave(backend.queue, "c")
        if how == "suspect":
            assert (await backend.claim("d", suspect_after=1)).entries == []
        await server.lose("lapsed")
        assert await backend.take("d") == []
        backend.at(LOOK)
        found = await take_all(backend, "d")
        if how == "suspect":
            assert found == []
            found = await backend.take("d", alone=True)
        assert ids(found) == ["1"]

    tell(story)


# -- scheduled and blocked messages ----------------------------------------------------------------------------------------


def test_scheduled_messages_are_due_after_the_due_times_were_deleted(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", lease=1e6)
        await send(backend, "1", key=None)
        await backend.settle("c", await backend.take("c"), Kind.RETRY, delay=1000)
        await server.lose("due")
        backend.at(LOOK)
        assert ids(await take_all(backend)) == ["1"]

    tell(story)


@pytest.mark.parametrize("address", ["t/g"], indirect=True)
def test_delayed_events_are_published_after_the_due_times_of_the_topic_were_deleted(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", lease=1e6)
        await send(backend, "1", key=None, delay=1000)
        await server.lose("log_due")
        backend.at(LOOK)
        assert ids(await take_all(backend)) == ["1"]

    tell(story)


def test_blocked_messages_run_in_order_after_their_index_was_deleted(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        first = await begin(backend, "1", "2", "3")
        await server.lose("blocked")
        backend.at(LOOK)
        assert await take_all(backend) == []
        await backend.settle("c", [first])
        assert await finish_all(backend) == ["2", "3"]

    tell(story)


@pytest.mark.parametrize("key", [b"k", b"a\0b", b"\0"])
def test_blocked_messages_run_after_the_turns_were_deleted(tell: Tell, key: bytes) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        first = await begin(backend, "1", "2", "3", key=key)
        await server.lose("turns")
        await backend.settle("c", [first])
        backend.at(LOOK)
        assert await finish_all(backend) == ["2", "3"]

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_a_key_continues_if_the_job_with_its_turn_is_indexed_as_dead(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await begin(backend, "1", "2", "3")
        await server.call("HSET", server.keys["index"], "1", "d5-5")
        backend.at(LOOK)
        assert await finish_all(backend) == ["2", "3"]

    tell(story)


def test_a_key_continues_after_the_bodies_of_many_blocked_messages_were_deleted(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        first = await begin(backend, "1", *[f"n{n}" for n in range(90)])
        await server.lose("held")
        await send(backend, "newer")
        assert await take_all(backend) == []
        await backend.settle("c", [first])
        found: list[str] = []
        for look in range(1, 4):
            backend.at(LOOK * look)
            found += await finish_all(backend)
        assert found == ["newer"]

    tell(story)


# -- stopped keys ----------------------------------------------------------------------------------------------------------


async def stop(backend: BackendUnderTest, *names: str, key: bytes = KEY) -> None:
    """Publish messages whose first one dies and stops the key; the others die of the stopped key."""
    await backend.broker.join(backend.queue, "c", 1e6, order=OrderRules(stop=True))
    await send(backend, *names, key=key)
    assert await backend.settle("c", await take_all(backend), Kind.DEAD) == 1
    assert await take_all(backend) == []
    assert await dead(backend) == [*names]


@pytest.mark.parametrize("key", [b"k", b"a\0b", b"\0"])
def test_a_stopped_key_is_stopped_again_after_the_turns_were_deleted(tell: Tell, key: bytes) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await stop(backend, "1", "2", key=key)
        await server.lose("turns")
        backend.at(LOOK)
        assert await take_all(backend) == []
        await send(backend, "3", key=key)
        assert await take_all(backend) == []
        assert await dead(backend, "stopped") == ["2", "3"]
        assert await backend.broker.clear_key(backend.queue, key, replay=True) == 3
        assert await finish_all(backend) == ["1", "2", "3"]

    tell(story)


def test_blocked_messages_of_a_stopped_key_die_after_the_turns_were_deleted(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await stop(backend, "1")
        await server.lose("turns")
        await send(backend, "2", "3", "4")
        running = await take_all(backend)  # before the next search for lost data
        assert ids(running) == ["2"]
        backend.at(LOOK)
        assert await take_all(backend) == []
        await backend.settle("c", running)
        assert await take_all(backend) == []
        assert await dead(backend, "stopped") == ["3", "4"]
        assert await backend.broker.clear_key(backend.queue, KEY, replay=True) == 3
        assert await finish_all(backend) == ["1", "3", "4"]

    tell(story)


def test_700_stopped_keys_are_stopped_again_after_the_turns_were_deleted(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        keys = [b"k%d" % n for n in range(700)]
        await stop(backend, "1")
        await server.call("HSET", server.keys["stopped"], *[part for key in keys for part in (key, "0 1")])
        await server.lose("turns")
        backend.at(LOOK)
        assert await take_all(backend) == []
        assert await server.call("HLEN", server.keys["turns"]) == 701

    tell(story)


@pytest.mark.parametrize("lost", ["turns", "messages"])
def test_the_search_for_lost_data_never_passes_on_the_turn_of_a_stopped_key(
    tell: Tell, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search takes several steps, and claims run between them."""
    monkeypatch.setattr("millstream.backends.redis.broker.LOOKS", 1)

    async def story(backend: BackendUnderTest, server: Server) -> None:
        keys = [b"k%d" % n for n in range(600)]
        await backend.join("c", lease=1e6)
        for key in keys:
            await send(backend, key.decode() + "a", key.decode() + "b", key=key)
        assert len(await take_all(backend, count=1000)) == 600
        assert (await backend.broker.inspector.queue(backend.queue)).blocked == 600
        await server.call("HSET", server.keys["stopped"], *[part for key in keys for part in (key, "0 1")])
        if lost == "turns":
            await server.lose("turns")
        else:
            await server.call("XTRIM", server.keys["log" if "/" in backend.queue else "stream"], "MAXLEN", 0)
            await backend.broker.leave(backend.queue, "c")
            await backend.join("c", lease=1e6)
        backend.at(LOOK)
        assert await take_all(backend, count=1000) == []
        letters = await backend.broker.inspector.dead_letters(backend.queue, limit=2000)
        followers = [letter.id for letter in letters if letter.reason == "stopped"]
        assert sorted(followers) == sorted(key.decode() + "b" for key in keys)

    tell(story)


@pytest.mark.parametrize("replay", [False, True])
def test_a_stopped_key_can_be_cleared_immediately_after_the_turns_were_deleted(tell: Tell, replay: bool) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await stop(backend, "1", "2")
        await server.lose("turns")
        assert await backend.broker.clear_key(backend.queue, KEY, replay=replay) == (2 if replay else 0)
        assert await backend.broker.inspector.stopped_keys(backend.queue) == []
        await send(backend, "3")
        assert await finish_all(backend) == (["1", "2", "3"] if replay else ["3"])
        assert await backend.broker.clear_key(backend.queue, KEY, replay=replay) is None

    tell(story)


def test_messages_replayed_by_a_clear_after_the_turns_were_deleted_wait_for_the_running_one(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await stop(backend, "1", "2")
        await server.lose("turns")
        await send(backend, "3")
        running = await take_all(backend)
        assert ids(running) == ["3"]
        assert await backend.broker.clear_key(backend.queue, KEY, replay=True) == 2
        assert await take_all(backend) == []
        await backend.settle("c", running)
        assert await finish_all(backend) == ["1", "2"]

    tell(story)


def test_dead_letters_of_a_stopped_key_are_not_replayed_after_the_turns_were_deleted(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await stop(backend, "1", "2")
        await server.lose("turns")
        assert await backend.broker.replay(backend.queue, ["2"]) == []
        assert await take_all(backend) == []

    tell(story)


# -- lost jobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_ready_jobs_trimmed_by_another_program_are_dead_and_their_ids_expire(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", lease=1e6)
        await backend.publish("gone")
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        assert await server.call("PTTL", server.keys["given"] + "gone") == -1
        await backend.publish("there")
        backend.at(LOOK)
        assert ids(await take_all(backend)) == ["there"]
        assert await take_all(backend) == []
        assert await backend.status("gone") == "dead"
        assert await server.call("PTTL", server.keys["given"] + "gone") > 0
        assert await server.call("PTTL", server.keys["given"] + "there") == -1

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_scheduled_jobs_whose_bodies_were_deleted_are_dead(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", lease=1e6)
        await backend.publish("gone", delay=1000)
        await server.lose("held")
        backend.at(LOOK)
        assert await take_all(backend) == []
        assert await backend.status("gone") == "dead"

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_a_claimed_job_trimmed_by_another_program_leaves_one_dead_letter(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", "d", lease=1e6)
        await backend.publish("gone")
        await backend.take("c")
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        await backend.broker.leave(backend.queue, "c")
        for look in range(1, 4):
            backend.at(LOOK * look)
            assert await take_all(backend, "d") == []
        assert len(await backend.broker.inspector.dead_letters(backend.queue)) == 1
        assert await server.call("PTTL", server.keys["given"] + "gone") > 0

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
@pytest.mark.parametrize("claimed", [False, True])
def test_dead_max_count_applies_to_jobs_trimmed_by_another_program(
    tell: Tell, claimed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        monkeypatch.setattr(backend.broker, "_dead_max_count", 10)
        await backend.join("c", "d", lease=1e6)
        names = [f"n{n}" for n in range(250)]
        await backend.publish(*names)
        if claimed:
            await backend.take("c", 250)
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        await backend.broker.leave(backend.queue, "c")
        backend.at(LOOK)
        assert await take_all(backend, "d") == []
        assert (await backend.totals())["dead"] == 250
        assert len(await backend.broker.inspector.dead_letters(backend.queue)) == 10

    tell(story)


# -- the clock and the server ----------------------------------------------------------------------------------------------


def test_after_the_clock_was_set_back_an_earlier_lease_ends_within_its_duration(tell: Tell) -> None:
    hour_ms = 3_600_000

    async def story(backend: BackendUnderTest, server: Server) -> None:
        backend.run_clock()
        await backend.join("living", "dead", "late", lease=60)
        await backend.claim("living", 0)
        ahead = time.time() * 1000 + hour_ms
        await server.call("ZADD", server.keys["leases"], ahead + 60_000, "dead", ahead - 1e15, "late")
        await server.call("HSET", server.keys["meta"], "seen", round(ahead), "calm", round(ahead + 60_000))
        await backend.claim("living", 0)
        deadline, mark = [float(await server.call("ZSCORE", server.keys["leases"], name)) for name in ("dead", "late")]
        calm = float(await server.call("HGET", server.keys["meta"], "calm"))
        now = time.time() * 1000
        assert max(deadline, calm) <= now + 61_000 and mark <= now + 1_000 - 1e15

    tell(story)


def test_leases_lapse_behind_a_proxy_to_several_servers(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("dead", lease=10)
        await send(backend, "1", key=None)
        await backend.take("dead")
        brokers = [cast(RedisBroker, await backend.another()) for _ in range(2)]
        for n, broker in enumerate(brokers):
            await broker.join(backend.queue, f"living{n}", 10)
            await broker.claim(backend.queue, f"living{n}", 0)
            broker._claiming[backend.queue, f"living{n}"].link.server["run_id"] = f"{n}" * 40
        found: list[str] = []
        for half_second in range(60):
            backend.at(half_second / 2)
            await backend.broker.renew(backend.queue, {"living0": 10, "living1": 10})
            for n, broker in enumerate(brokers):
                found += ids((await broker.claim(backend.queue, f"living{n}", 1)).entries)
        assert found == ["1"]

    tell(story)
