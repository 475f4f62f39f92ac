"""The keeper renews the leases it was given, whatever else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from millstream.errors import BrokerUnavailable
from millstream.model.address import Address
from millstream.worker.services.keeper import Keeper
from tests.stage import looped


class Backend:
    """A broker that only answers renewals."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Semaphore(0)
        self.away: set[str] = set()
        self.lost: set[str] = set()

    async def renew(self, queue: Address, leases: Mapping[str, float]) -> set[str]:
        self.asked.append(queue)
        await self.answers.acquire()
        if queue in self.away:
            raise BrokerUnavailable("away")
        return self.lost & leases.keys()

    async def until_asked(self, times: int) -> None:
        while len(self.asked) < times:
            await asyncio.sleep(0)


def keeping(backend: Backend) -> asyncio.Task[None]:
    keeper = Keeper(cast(Any, backend))
    for queue in map(Address, "abc"):
        keeper.keep(queue, f"consumer-{queue}", 0.01)
    return asyncio.create_task(keeper.run())


@looped
async def test_no_queue_waits_for_the_renewal_of_another() -> None:
    backend = Backend()
    running = keeping(backend)
    await backend.until_asked(3)
    assert sorted(backend.asked) == ["a", "b", "c"]
    running.cancel()


@looped
async def test_a_failed_renewal_of_one_queue_does_not_stop_the_others_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Backend()
    backend.away, backend.lost = {"a"}, {"consumer-b"}
    running = keeping(backend)
    for _ in range(9):
        backend.answers.release()
    await backend.until_asked(7)
    assert sorted(backend.asked) == ["a", "a", "a", "b", "c", "c", "c"], "a lost lease is not renewed again"
    running.cancel()
    assert caplog.text.count("leases cannot be renewed") == 1
