"""Dead letters whose handler failed, when another program deletes or changes the data stored about them."""

from __future__ import annotations

import pytest

from millstream.backends.redis.keys import GROUP
from millstream.broker import Entry
from millstream.testing.backend import BackendUnderTest
from millstream.testing.promises.letters import DEAD, attempts, claimed, fail, give_up, handle, ids, listed, make_dead
from millstream.testing.topic import A, begin
from tests.contract.stories import Server, Tell

LOOK = 3
"""Seconds after which the next claim searches for lost data."""

pytestmark = pytest.mark.parametrize("address", [DEAD], ids=["letters"], indirect=True)


async def start(backend: BackendUnderTest, *event_ids: str) -> list[Entry]:
    """Make dead letters and claim them."""
    await begin(backend, "a")
    await make_dead(backend, *event_ids)
    await backend.join("c", lease=1e6, queue=DEAD)
    return await claimed(backend)


async def all_claimed(backend: BackendUnderTest) -> list[Entry]:
    """Claim several times, because restored dead letters may need several claims."""
    return [entry for _ in range(5) for entry in await claimed(backend)]


def test_dead_letters_whose_due_times_were_lost_are_due_unless_claimed_or_marked(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        waits, marked, held, _ = await start(backend, "waits", "marked", "held", "first")
        await give_up(backend, [marked])
        await fail(backend, [held], delay=0.0)
        assert ids(await claimed(backend)) == ["held"]
        await fail(backend, [waits], delay=1000.0)
        await server.lose("due")
        backend.at(LOOK)
        found = await all_claimed(backend)
        assert (ids(found), attempts(found)) == (["waits"], [2])

    tell(story)


def test_dead_letters_whose_attempts_were_lost_start_with_attempt_1(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        await fail(backend, await start(backend, "1"), delay=10.0)
        await server.lose("handling")
        backend.at(10)
        assert attempts(await claimed(backend)) == [1]

    tell(story)


def test_unreadable_records_of_attempts_and_marks_are_tolerated(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        waits, marked = await start(backend, "waits", "marked")
        await give_up(backend, [marked])
        await fail(backend, [waits], delay=10.0)
        await server.call("HSET", server.keys["handling"], waits.ref, b"t\xc1", marked.ref, b"u\xc1")
        backend.at(10)
        found = await claimed(backend)
        assert (ids(found), attempts(found)) == (["waits"], [1])
        _, letter = await backend.broker.inspector.dead_letters(A)
        assert letter.unhandled is not None and "cannot be decoded" in letter.unhandled.error.message

    tell(story)


def test_a_recreated_consumer_group_delivers_no_marked_or_scheduled_dead_letters(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        marked, waits, handled, _ = await start(backend, "marked", "waits", "handled", "held")
        await give_up(backend, [marked])
        await fail(backend, [waits], delay=10.0)
        await handle(backend, [handled])
        await server.call("XGROUP", "DESTROY", server.keys["stream"], GROUP)
        found = await all_claimed(backend)
        assert (ids(found), attempts(found)) == (["held"], [1])
        backend.at(10)
        found = await all_claimed(backend)
        assert (ids(found), attempts(found)) == (["waits"], [2])
        assert await listed(backend) == ["marked", "waits", "held"]

    tell(story)


def test_handled_replayed_or_purged_dead_letters_leave_nothing_behind(tell: Tell) -> None:
    async def story(backend: BackendUnderTest, server: Server) -> None:
        entries = await start(backend, "1", "2", "3", "4")
        await give_up(backend, entries[:1])
        await fail(backend, entries[1:], delay=0.0)
        await handle(backend, await claimed(backend, count=1))
        await fail(backend, await claimed(backend), delay=1000.0)
        assert await server.left("handling", "due") == ["handling", "due"]
        assert await backend.broker.purge(A, ["1", "3"]) == ["1", "3"]
        assert await backend.broker.replay(A, ["4"]) == ["4"]
        assert await server.left("handling", "due", "stream") == ["stream"]

    tell(story)
