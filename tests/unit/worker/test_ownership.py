"""Shard ownership: a stopped worker stays out, and a dead worker is noticed as soon as its membership expires."""

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
    """Return the number of shards that have an owner."""
    return (await app.inspector.queue(ADDRESS)).consumers


@looped
async def test_a_stopping_worker_does_not_rejoin_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LOOK_SECONDS", 0.01)
    app = ordered_app()
    async with app:
        broker = await app.broker()
        worker = await app._make_worker(app.queues_to_serve(()), 4, 4)
        await worker.start()
        try:
            (looking,) = [task for task in asyncio.all_tasks() if task.get_name() == "millstream-ownership"]
            await asyncio.sleep(0)  # the ownership loop has started and waits for its next check
            worker._hold.shut.add(STOPPING)  # simulate a worker that still has jobs to finish: its services keep running
            await worker._ownership.stop()
            await asyncio.wait([looking])
            assert (await broker.join_members(ADDRESS, "another", 30.0)).members == ["another"]
        finally:
            await worker.stop(0.0)


@looped
async def test_the_shards_of_a_dead_worker_are_taken_as_soon_as_its_membership_expires(
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
