"""Publishing many events, some of them invalid, over a connection that is cut: no event lost, none duplicated, in order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from chaos.proxy import Proxy
from millstream import Millstream
from millstream.backends.redis.keys import topic_keys
from millstream.errors import BrokerUnavailable, BulkError
from millstream.events.topic import Publication
from millstream.model.message import decode_message
from tests.system.harness import PATIENCE, Server

EVENTS = 10_000
BAD: dict[int, Any] = {4_999: "a word", 5_000: None, 5_001: b"bytes"}
GOOD = [number for number in range(EVENTS) if number not in BAD]
LOG = topic_keys("millstream", "numbers")["log"]


def events() -> list[Any]:
    return [BAD.get(number, number) for number in range(EVENTS)]


def numbers(server: Server) -> list[int]:
    """Return the events in the log, in order."""
    with server.client() as client:
        entries: Any = client.xrange(LOG)
    return [msgspec.msgpack.decode(decode_message(fields[b"d"]).args, type=int) for _, fields in entries]


def test_invalid_events_of_a_batch_are_reported_and_the_others_accepted_in_order(server: Server) -> None:
    async def main() -> None:
        async with Millstream(server.url) as app:
            topic = app.topic("numbers", int)
            topic.subscribe("readers")(handle)
            outcomes = await topic.publish_many(events(), return_exceptions=True)
            assert len(outcomes) == EVENTS
            for number, bad in BAD.items():
                error = outcomes[number]
                assert isinstance(error, TypeError)
                assert "topic 'numbers' takes int" in str(error) and f"the value was {bad!r}" in str(error)
            assert all(isinstance(outcomes[number], str) for number in GOOD)
            with pytest.raises(BulkError) as raised:
                await topic.publish_many([1, "a word"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
            assert len(raised.value.failed) == 1

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert numbers(server) == [*GOOD, 1]


def test_resending_with_the_same_ids_after_a_cut_connection_duplicates_nothing(server: Server) -> None:
    async def main() -> None:
        proxy = Proxy(server.path, random.Random(4))
        await proxy.start()
        try:
            async with Millstream(proxy.url) as app:
                topic = app.topic("numbers", int)
                topic.subscribe("readers")(handle)
                await topic.publish_many([])  # connected, and an empty list is fine

                def named() -> list[Publication[int]]:
                    return [topic.bind(event, id=f"event-{number}") for number, event in enumerate(events())]

                with proxy.slow(0.005):
                    first = asyncio.create_task(topic.publish_many(named(), return_exceptions=True))
                    while len(numbers(server)) < EVENTS // 5:
                        await asyncio.sleep(0.01)
                with proxy.cut():
                    cut = await first
                accepted = len(numbers(server))
                assert EVENTS // 5 <= accepted < len(GOOD)
                away = [error for error in cut if isinstance(error, BrokerUnavailable)]
                assert len(away) >= len(GOOD) - accepted  # the caller does not know whether these were stored
                again = await topic.publish_many(named(), return_exceptions=True)
                assert [type(outcome) for outcome in again] == [TypeError if n in BAD else str for n in range(EVENTS)]
        finally:
            await proxy.stop()

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))
    assert numbers(server) == GOOD


async def handle(number: int) -> None:
    """Never runs. The group exists so that the log keeps the published events."""
