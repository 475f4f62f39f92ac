"""A confirmation counts only for the server that answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.backends.redis.connect import Connector
from millstream.backends.redis.replication import Replication
from millstream.backends.redis.topology import Node
from millstream.broker.values import NotReplicated
from millstream.errors import BrokerUnavailable
from tests.stage import looped


class FakeLink:
    """A link whose rounds end when the test says so."""

    run_id = "first"

    def __init__(self) -> None:
        self.rounds: list[asyncio.Future[list[Any]]] = []

    async def call_together(self, *_: Any, **__: Any) -> list[Any]:
        self.rounds.append(asyncio.get_running_loop().create_future())
        return await self.rounds[-1]


async def two_callers() -> tuple[FakeLink, asyncio.Task[None], asyncio.Task[None]]:
    """Return a link with a round in flight for the first caller, and the second caller, who shares the next round."""
    replication: Any = Replication(Node(Connector("redis://nowhere")), 1, 1.0)
    link = replication._link = FakeLink()
    first = asyncio.create_task(replication.confirm("key", "first"))
    while not link.rounds:
        await asyncio.sleep(0)
    second = asyncio.create_task(replication.confirm("key", "first"))
    await asyncio.sleep(0)
    return link, first, second


async def until_round(link: FakeLink, count: int) -> None:
    while len(link.rounds) < count:
        await asyncio.sleep(0)


@looped
async def test_a_later_caller_waits_for_the_next_round() -> None:
    link, first, second = await two_callers()
    link.rounds[0].set_result([b"OK", 1])
    await first
    assert not second.done()
    await until_round(link, 2)
    link.rounds[1].set_result([b"OK", 1])
    await second


@looped
async def test_too_few_replicas_of_another_server_count_as_a_changed_server() -> None:
    link, first, second = await two_callers()
    link.rounds[0].set_exception(BrokerUnavailable("connection lost"))
    with pytest.raises(BrokerUnavailable, match="connection lost"):
        await first
    await until_round(link, 2)
    link.run_id = "second"
    link.rounds[1].set_result([b"OK", 0])
    with pytest.raises(BrokerUnavailable, match="replaced during the call") as error:
        await second
    assert not isinstance(error.value, NotReplicated), "the write may be lost, so the call must be repeated"
