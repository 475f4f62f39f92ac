"""Order per key on a real server: no keys left behind, changes in several calls, and data destroyed by other programs."""

from __future__ import annotations

import pytest

from millstream.broker import OrderRules
from millstream.model.outcome import Kind
from millstream.testing.backend import BackendUnderTest, ids
from millstream.testing.keyed import KEY, begin, dead, finish_all, retry, send, take_all
from tests.contract.stories import Server, Tell

ORDER = ("turns", "blocked", "keyed", "stopped", "stopped_letters", "sweeps")
"""The names of the keys that exist only for order."""

MANY = 1200
"""More messages than one call may move."""


async def send_many(backend: BackendUnderTest, count: int) -> list[str]:
    names = [f"n{n}" for n in range(count)]
    for start in range(0, count, 100):
        await send(backend, *names[start : start + 100])
    return names


async def letters(backend: BackendUnderTest, reason: str) -> list[str]:
    found: list[str] = []
    after = ""
    while page := await backend.broker.inspector.dead_letters(backend.queue, after=after):
        found += [letter.id for letter in page if letter.reason == reason]
        after = page[-1].cursor
    return found


def test_ordering_keys_whose_messages_have_all_ended_leave_nothing_behind(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        first = await begin(backend, *"12345678")
        await send(backend, "other", key=b"other")
        await send(backend, "late", key=b"late", delay=5)
        await retry(backend, first, delay=1)
        await backend.settle("c", await take_all(backend), Kind.EXPIRED)
        backend.at(1)
        await backend.settle("c", await take_all(backend), Kind.DEAD)
        await backend.broker.cancel(backend.queue, "4")
        await backend.broker.replay(backend.queue, ["1"])
        backend.at(5)
        assert await finish_all(backend) == ["2", "late", "1", "3", "5", "6", "7", "8"]
        assert await server.left(*ORDER, "held", "due", "index") == []

    tell(story)


def test_a_stopped_and_cleared_key_leaves_nothing_behind(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        for replay in (True, False):
            await backend.broker.join(backend.queue, "c", 30, order=OrderRules(stop=True))
            await send(backend, f"{replay}1", f"{replay}2")
            await backend.settle("c", await backend.take("c"), Kind.DEAD)
            assert {*await server.left(*ORDER)} == {"turns", "stopped", "stopped_letters"}
            await backend.broker.clear_key(backend.queue, KEY, replay=replay)
            await finish_all(backend)
            assert await server.left(*ORDER) == []

    tell(story)


@pytest.mark.parametrize("address", ["t/g"], indirect=True)
def test_a_removed_group_leaves_no_ordering_data_behind(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.broker.join(backend.queue, "c", 30, order=OrderRules(stop=True))
        for key in (b"x", b"y"):
            await send(backend, f"{key!r}1", f"{key!r}2", key=key)
        await send_many(backend, MANY)
        x, y, first = await take_all(backend)
        await retry(backend, y)
        await backend.settle("c", [x, first], Kind.DEAD)
        assert await server.left(*ORDER) == [*ORDER]
        assert await backend.broker.remove_group(backend.queue)
        assert [key for key in await server.call("KEYS", f"{server.keys['topic']}*") if b":g:g:" in key] == []

    tell(story)


def test_many_blocked_messages_of_a_stopped_key_die_in_order(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.broker.join(backend.queue, "c", 30, order=OrderRules(stop=True))
        names = await send_many(backend, MANY)
        (first,) = await take_all(backend)
        await backend.settle("c", [first], Kind.DEAD)
        while (await backend.broker.inspector.queue(backend.queue)).blocked:
            assert await backend.take("c") == []
        assert await letters(backend, "stopped") == names[1:]
        (stopped,) = await backend.broker.inspector.stopped_keys(backend.queue)
        assert stopped.waiting == MANY
        assert await server.left("sweeps", "blocked", "keyed", "held") == []

    tell(story)


@pytest.mark.parametrize("swept", [True, False])
def test_many_dead_letters_of_a_stopped_key_are_replayed_in_order(tell: Tell, swept: bool) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.broker.join(backend.queue, "c", 30, order=OrderRules(stop=True))
        names = await send_many(backend, MANY)
        (first,) = await take_all(backend)
        await backend.settle("c", [first], Kind.DEAD)
        while swept and (await backend.broker.inspector.queue(backend.queue)).blocked:
            assert await backend.take("c") == []
        await send(backend, "newer")
        assert await backend.broker.clear_key(backend.queue, KEY, replay=True) is not None
        assert await backend.broker.inspector.stopped_keys(backend.queue) == []
        assert await dead(backend) == []
        assert await finish_all(backend) == [*names, "newer"]
        assert await server.left(*ORDER) == []

    tell(story)


def test_the_turn_of_a_claimed_message_trimmed_by_another_program_is_passed_on(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await begin(backend, "1", "2", "3")
        await backend.broker.leave(backend.queue, "c")
        await server.call("XTRIM", server.keys["log" if "/" in backend.queue else "stream"], "MAXLEN", "0")
        await backend.join("d")
        second = await take_all(backend, "d")
        assert ids(second) == ["2"]
        await backend.settle("d", second)
        assert await finish_all(backend, "d") == ["3"]
        assert len(await dead(backend, "malformed")) == 1
        assert await server.left(*ORDER) == []

    tell(story)


# -- other programs --------------------------------------------------------------------------------------------------------


def test_the_turn_of_a_ready_message_trimmed_by_another_program_is_passed_on(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        first = await begin(backend, "1", "2", "3")
        await backend.settle("c", [first])  # "2" is ready and has the turn
        await server.call("XTRIM", server.keys["stream"], "MAXLEN", 0)
        backend.at(3)
        assert await finish_all(backend) == ["3"]

    tell(story)


def test_dead_max_count_limits_the_dead_letters_of_a_stopped_key(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        monkeypatch.setattr(backend.broker, "_dead_max_count", 50)
        await backend.broker.join(backend.queue, "c", 1e6, order=OrderRules(stop=True))
        await send(backend, "first")
        await backend.settle("c", await backend.take("c"), Kind.DEAD)
        await send_many(backend, 400)
        assert await take_all(backend) == []
        assert (await backend.broker.inspector.queue(backend.queue)).dead == 50
        (stopped,) = await backend.broker.inspector.stopped_keys(backend.queue)
        assert stopped.waiting == 50

    tell(story)


async def write(server: Server, *fields: str) -> None:
    await server.call("XADD", server.keys.get("log", server.keys["stream"]), "*", *fields)


def test_foreign_entries_with_the_same_id_are_delivered_one_at_a_time(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", lease=1e6)
        for _ in range(2):
            await write(server, "d", "same", "k", "k", "i", "same")
        (first,) = await take_all(backend)
        assert await take_all(backend) == []
        await backend.settle("c", [first])
        assert await finish_all(backend) == ["same"]

    tell(story)


def test_an_invalid_position_in_a_foreign_entry_strands_no_message(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await backend.join("c", lease=1e6)
        await write(server, "d", "1", "k", "k", "i", "1", "o", "anywhere")
        await write(server, "d", "2", "k", "k", "i", "2")
        assert await finish_all(backend) == ["1", "2"]

    tell(story)
