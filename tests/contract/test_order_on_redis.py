"""Order per key, as only a server can show it: what is left behind, what takes several goes, and what other hands destroy."""

from __future__ import annotations

import pytest

from millstream.broker import OrderRules
from millstream.outcome import Kind
from millstream.testing.keyed import KEY, begin, dead, finish_all, retry, send, take_all
from millstream.testing.room import Room, ids
from tests.contract.stories import Server, Tell

ORDER = ("turns", "blocked", "keyed", "stopped", "barred", "sweeps")
"""The words of the keys that are there for order alone."""

MANY = 1200
"""More than one go may move."""


async def send_many(room: Room, count: int) -> list[str]:
    names = [f"n{n}" for n in range(count)]
    for start in range(0, count, 100):
        await send(room, *names[start : start + 100])
    return names


async def letters(room: Room, reason: str) -> list[str]:
    found: list[str] = []
    after = ""
    while page := await room.broker.inspector.dead_letters(room.queue, after=after):
        found += [letter.id for letter in page if letter.letter.reason == reason]
        after = page[-1].cursor
    return found


def test_keys_whose_messages_have_all_ended_leave_nothing_behind(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        first = await begin(room, *"12345678")
        await send(room, "other", key=b"other")
        await send(room, "late", key=b"late", delay=5)
        await retry(room, first, delay=1)
        await room.settle("c", await take_all(room), Kind.EXPIRED)
        room.at(1)
        await room.settle("c", await take_all(room), Kind.DEAD)
        await room.broker.cancel(room.queue, "4")
        await room.broker.replay(room.queue, ["1"])
        room.at(5)
        assert await finish_all(room) == ["2", "late", "1", "3", "5", "6", "7", "8"]
        assert await server.left(*ORDER, "held", "due", "index") == []

    tell(story)


def test_a_key_that_was_stopped_and_cleared_leaves_nothing_behind(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        for replay in (True, False):
            await room.broker.join(room.queue, "c", 30, order=OrderRules(stop=True))
            await send(room, f"{replay}1", f"{replay}2")
            await room.settle("c", await room.take("c"), Kind.DEAD)
            assert {*await server.left(*ORDER)} == {"turns", "stopped", "barred"}
            await room.broker.clear_key(room.queue, KEY, replay=replay)
            await finish_all(room)
            assert await server.left(*ORDER) == []

    tell(story)


@pytest.mark.parametrize("address", ["t>g"], indirect=True)
def test_a_removed_group_leaves_no_key_of_its_order(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.broker.join(room.queue, "c", 30, order=OrderRules(stop=True))
        for key in (b"x", b"y"):
            await send(room, f"{key!r}1", f"{key!r}2", key=key)
        await send_many(room, MANY)
        x, y, first = await take_all(room)
        await retry(room, y)
        await room.settle("c", [x, first], Kind.DEAD)
        assert await server.left(*ORDER) == [*ORDER]
        assert await room.broker.remove_group(room.queue)
        assert [key for key in await server.call("KEYS", f"{server.keys['topic']}*") if b":g:g:" in key] == []

    tell(story)


def test_many_that_wait_for_a_key_that_stops_die_in_their_order(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.broker.join(room.queue, "c", 30, order=OrderRules(stop=True))
        names = await send_many(room, MANY)
        (first,) = await take_all(room)
        await room.settle("c", [first], Kind.DEAD)
        while (await room.broker.inspector.queue(room.queue)).blocked:
            assert await room.take("c") == []
        assert await letters(room, "stopped") == names[1:]
        (stopped,) = await room.broker.inspector.stopped_keys(room.queue)
        assert stopped.waiting == MANY
        assert await server.left("sweeps", "blocked", "keyed", "held") == []

    tell(story)


@pytest.mark.parametrize("swept", [True, False])
def test_many_that_died_of_a_stopped_key_come_back_in_their_order(tell: Tell, swept: bool) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.broker.join(room.queue, "c", 30, order=OrderRules(stop=True))
        names = await send_many(room, MANY)
        (first,) = await take_all(room)
        await room.settle("c", [first], Kind.DEAD)
        while swept and (await room.broker.inspector.queue(room.queue)).blocked:
            assert await room.take("c") == []
        await send(room, "newer")
        assert await room.broker.clear_key(room.queue, KEY, replay=True) is not None
        assert await room.broker.inspector.stopped_keys(room.queue) == []
        assert await dead(room) == []
        assert await finish_all(room) == [*names, "newer"]
        assert await server.left(*ORDER) == []

    tell(story)


def test_a_turn_whose_message_others_destroyed_goes_on(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await begin(room, "1", "2", "3")
        await room.broker.leave(room.queue, "c")
        await server.call("XTRIM", server.keys["log" if ">" in room.queue else "stream"], "MAXLEN", "0")
        await room.join("d")
        second = await take_all(room, "d")
        assert ids(second) == ["2"]
        await room.settle("d", second)
        assert await finish_all(room, "d") == ["3"]
        assert len(await dead(room, "malformed")) == 1
        assert await server.left(*ORDER) == []

    tell(story)


# -- other hands -----------------------------------------------------------------------------------------------------------


def test_a_turn_whose_ready_message_others_deleted_goes_on(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        first = await begin(room, "1", "2", "3")
        await room.settle("c", [first])  # "2" is ready, with the turn
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        room.at(3)
        assert await finish_all(room) == ["3"]

    tell(story)


def test_letters_of_a_key_that_is_stopped_are_bounded_like_all(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(room: Room, server: Server) -> None:
        monkeypatch.setattr(room.broker, "_dead_max_count", 50)
        await room.broker.join(room.queue, "c", 1e6, order=OrderRules(stop=True))
        await send(room, "first")
        await room.settle("c", await room.take("c"), Kind.DEAD)
        await send_many(room, 400)
        assert await take_all(room) == []
        assert (await room.broker.inspector.queue(room.queue)).dead == 50
        (stopped,) = await room.broker.inspector.stopped_keys(room.queue)
        assert stopped.waiting == 50

    tell(story)


async def write(server: Server, *fields: str) -> None:
    await server.call("XADD", server.keys.get("log", server.keys["stream"]), "*", *fields)


def test_what_others_write_twice_under_one_id_is_given_one_at_a_time(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", lease=1e6)
        for _ in range(2):
            await write(server, "d", "same", "k", "k", "i", "same")
        (first,) = await take_all(room)
        assert await take_all(room) == []
        await room.settle("c", [first])
        assert await finish_all(room) == ["same"]

    tell(story)


def test_a_place_that_others_write_strands_nothing(tell: Tell) -> None:
    async def story(room: Room, server: Server) -> None:
        await room.join("c", lease=1e6)
        await write(server, "d", "1", "k", "k", "i", "1", "o", "anywhere")
        await write(server, "d", "2", "k", "k", "i", "2")
        assert await finish_all(room) == ["1", "2"]

    tell(story)
