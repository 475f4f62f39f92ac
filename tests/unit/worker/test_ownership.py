"""Shard ownership: who leaves has left, and who died is noticed when its time is over."""

from __future__ import annotations

import asyncio

import pytest

from millstream import Millstream
from millstream.model.address import Address
from millstream.worker.hot.hold import STOPPING
from millstream.worker.services import ownership
from tests.stage import looped, new_app

ADDRESS = Address("orders/billing")


def ordered_app() -> Millstream:
    app = new_app(lease=30.0)
    topic = app.topic("orders", int, order_by=lambda number: number, shards=4)

    @topic.subscribe("billing")
    async def bill(number: int) -> None: ...

    return app


async def owned(app: Millstream) -> int:
    """How many shards have an owner."""
    return (await app.inspector.queue(ADDRESS)).consumers


@looped
async def test_who_stops_is_not_a_member_again_however_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LOOK_SECONDS", 0.01)
    app = ordered_app()
    async with app:
        broker = await app.broker()
        worker = await app._make_worker(app.queues_to_serve(()), 4, 4)
        await worker.start()
        try:
            (looking,) = [task for task in asyncio.all_tasks() if task.get_name() == "millstream-ownership"]
            await asyncio.sleep(0)  # it has begun, and waits for its next look
            worker._hold.shut.add(STOPPING)  # as when it has jobs to finish: its services go on meanwhile
            await worker._ownership.stop()
            await asyncio.wait([looking])
            assert (await broker.join_members(ADDRESS, "another", 30.0)).members == ["another"]
        finally:
            await worker.stop(0.0)


@looped
async def test_the_shards_of_one_that_died_are_sought_when_its_time_is_over_not_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "LOOK_SECONDS", 3600.0)
    app = ordered_app()
    async with app:
        broker = await app.broker()
        await broker.join_members(ADDRESS, "dies", 1.0)
        async with app.worker():
            assert await owned(app) == 2
            while await owned(app) < 4:
                await asyncio.sleep(0.01)
