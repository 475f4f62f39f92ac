"""The server's cost of one call does not grow with past calls or with the number of consumers."""

from __future__ import annotations

import re

import pytest

from millstream.backends.redis.scripts import Script
from millstream.broker import Listed, Post
from millstream.errors import BrokerError
from millstream.testing.backend import BackendUnderTest, ids
from millstream.testing.keyed import KEY, finish_all, retry, send, view_id
from millstream.testing.keyed import begin as begin_key
from millstream.testing.topic import begin, emit_serials
from tests.contract.stories import Server, Tell

# -- publishing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["q"], indirect=True)
@pytest.mark.parametrize("lost", [False, True], ids=["gap", "lost_mark"])
def test_a_sender_with_a_gap_in_its_serials_needs_one_script_per_publish(tell: Tell, lost: bool) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.send("s", 1)
        if lost:
            await server.call("DEL", server.keys["sender"] + "s")
        await backend.send("s", 5)
        before = await server.scripts()
        for serial in range(6, 16):
            await backend.send("s", serial)
        assert await server.scripts() - before == 10
        assert await backend.send("s", 3, 7, 15) == [*await backend.send("t", 1), *await backend.send("s", 7, 15)]

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
@pytest.mark.parametrize("lost", [False, True], ids=["gap", "lost_mark"])
def test_a_sender_of_events_with_a_gap_in_its_serials_needs_one_script_per_publish(tell: Tell, lost: bool) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await begin(backend, "a")
        await emit_serials(backend, "s", 1)
        if lost:
            await server.call("DEL", server.topic["sender"] + "s")
        await emit_serials(backend, "s", 5)
        before = await server.scripts()
        for serial in range(6, 16):
            await emit_serials(backend, "s", serial)
        assert await server.scripts() - before == 10
        assert await emit_serials(backend, "s", 3, 7) == [
            *await emit_serials(backend, "t", 1),
            *await emit_serials(backend, "s", 7),
        ]

    tell(story)


@pytest.mark.parametrize("address", ["q"], indirect=True)
def test_a_sender_needs_one_script_per_publish_after_its_topic_was_full(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await begin(backend, "a")
        await emit_serials(backend, "s", 1, max_length=1)
        await emit_serials(backend, "s", 2, max_length=1)
        await emit_serials(backend, "s", 3, max_length=100)
        before = await server.scripts()
        for serial in range(4, 14):
            await emit_serials(backend, "s", serial, max_length=100)
        assert await server.scripts() - before == 10

    tell(story)


# -- consumers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_group", [False, True], ids=["queue", "group"])
@pytest.mark.parametrize("name", ["claim", "settle", "release", "renew", "recover", "join", "around"])
def test_no_script_of_a_worker_lists_all_consumers(name: str, of_group: bool) -> None:
    text = Script(name, of_group=of_group).text
    assert not re.search(r"'XINFO', 'CONSUMERS'|'XPENDING', [\w.\[\]]+, [\w.\[\]]+\)", text)


def test_250_leases_lapse_as_fast_as_one(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("living", lease=1e6)
        await backend.join(*[f"dead{n}" for n in range(250)], lease=10)
        for second in (11, 13):
            backend.at(second)
            for _ in range(3):
                await backend.claim("living", 0)
        assert (await backend.totals())["lapsed"] == 250

    tell(story)


def test_messages_of_150_dead_consumers_are_taken_over_without_a_pause(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.publish(*[f"n{n}" for n in range(300)])
        for n in range(150):
            await backend.join(f"dead{n}", lease=10)
            await backend.take(f"dead{n}", 2)
        for n in range(150):
            await backend.broker.leave(backend.queue, f"dead{n}")
        await backend.join("living", lease=1e6)
        found: list[str] = []
        while True:
            claim = await backend.claim("living", 20)
            found += ids(claim.entries)
            if not claim.entries and claim.next_due != 0:
                break
        assert sorted(found) == sorted(f"n{n}" for n in range(300))

    tell(story)


def test_a_blameless_leave_with_many_messages_takes_several_scripts_and_counts_no_crash(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        names = [f"n{n}" for n in range(450)]
        await backend.publish(*names)
        await backend.join("c", "d", lease=1e6)
        await backend.take("c", 450)
        before = await server.scripts()
        assert await backend.broker.leave(backend.queue, "c", blameless=True) == 450
        assert await server.scripts() - before >= 3
        again = await backend.take("d", 450)
        assert (ids(again), {entry.crashes for entry in again}) == (names, {0})

    tell(story)


def test_entries_trimmed_by_another_program_become_dead_letters_in_batches(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", "d", lease=1e6)
        await backend.publish(*[f"n{n}" for n in range(1000)])
        await backend.take("c", 1000)
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        await backend.broker.leave(backend.queue, "c")
        dead, unfinished = 0, True
        while unfinished:
            claim = await backend.claim("d", 200)
            state = await backend.broker.inspector.queue(backend.queue)
            assert not claim.entries and state.dead - dead <= 200
            dead, unfinished = state.dead, claim.next_due == 0
        assert dead == 1000

    tell(story)


def test_every_turn_whose_message_was_trimmed_by_another_program_is_passed_on(tell: Tell) -> None:
    """There are more turns than a script may pass to one command."""

    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", "d", lease=1e6)
        for n in range(9_000):
            await server.call("HSET", server.keys["turns"], f"k{n}", "r" + "0" * 40 + f"gone{n}")
        await send(backend, "lost")
        await backend.take("c")
        await send(backend, "next")
        await backend.take("c")
        await server.call("XTRIM", server.keys["log" if "/" in backend.queue else "stream"], "MAXLEN", 0)
        await backend.broker.leave(backend.queue, "c")
        assert await finish_all(backend, "d") == ["next"]
        assert await server.call("HLEN", server.keys["turns"]) == 0

    tell(story)


# -- reading ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["scheduled", "blocked"])
def test_a_list_of_jobs_skips_lost_bodies_in_batches(tell: Tell, status: Listed) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        first = await begin_key(backend, "1", "2")
        key, member = "blocked", KEY + b"\0\0" + b"0" * 40 + b"lost"
        if status == "scheduled":
            await retry(backend, first, delay=1000)
            key, member = "due", b"lost"
        lost = [part for n in range(3_000) for part in (0, member + b"%d" % n)]
        await server.call("ZADD", server.keys[key], *lost)
        before = await server.scripts()
        (view,) = await backend.broker.inspector.jobs(backend.queue, status)
        assert view_id(view) == ("1" if status == "scheduled" else "2")
        assert await server.scripts() - before >= 3
        assert await backend.broker.inspector.jobs(backend.queue, status, after=view.cursor) == []

    tell(story)


@pytest.mark.parametrize("setting", [("min-replicas-to-write", "1", "0"), ("maxmemory", "1", "0")], ids=["no_replica", "full"])
def test_a_server_that_refuses_writes_can_be_inspected(tell: Tell, setting: tuple[str, str, str]) -> None:
    name, on, off = setting

    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", lease=1e6)
        await send(backend, "keyed")
        await backend.publish("running", "ready")
        await backend.take("c", 1)
        await backend.publish("later", delay=5)
        await server.call("CONFIG", "SET", name, on)
        try:
            with pytest.raises(BrokerError):
                await backend.broker.publish(backend.queue, [Post("no", b"no", "t")])
            inspector = backend.broker.inspector
            assert (await inspector.queue(backend.queue)).scheduled == 1
            assert await backend.status("later") == "scheduled"
            assert await inspector.job(backend.queue, "later") is not None
            for status in ("ready", "running", "scheduled", "blocked"):
                await inspector.jobs(backend.queue, status)
            await inspector.stopped_keys(backend.queue)
            await inspector.due(backend.queue)
            if "/" in backend.queue:
                await inspector.topic("t")
        finally:
            await server.call("CONFIG", "SET", name, off)

    tell(story)
