"""ack="manual": the handler decides the outcome of its delivery, possibly after it has returned."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from typing import Any, cast

import pytest

from millstream import Batch, Delivery, Millstream, RetryPolicy, Topic, current_job
from millstream.errors import LeaseLost, UsageError
from tests.stage import PATIENCE, looped, new_app, until

pytestmark = pytest.mark.usefixtures("every_backend")

LEASE = 1.0


def make(**settings: Any) -> tuple[Millstream, Topic[int]]:
    app = new_app(lease=LEASE, retry=RetryPolicy(1, delay=0.001, jitter=False), **settings)
    return app, app.topic("numbers", int)


async def running(app: Millstream, group: str) -> int:
    return (await app.inspector.queue(f"numbers/{group}")).running


@looped
async def test_a_delivery_may_be_acknowledged_after_its_handler_has_returned() -> None:
    app, numbers = make()
    kept: list[Delivery] = []

    @numbers.subscribe("g", ack="manual")
    async def keep(number: int, delivery: Delivery) -> None:
        kept.append(delivery)

    async with app:
        await numbers.publish_many([1, 2, 3])
        async with app.worker():
            await until(lambda: len(kept) == 3)
            assert await running(app, "g") == 3
            kept[0].ack()
            kept[1].nack("no good")
            kept[2].retry(0)
            await asyncio.gather(*(delivery.settled() for delivery in kept))
            await until(lambda: len(kept) == 4)
            assert (kept[3].id, kept[3].attempt) == (kept[2].id, 2)
            kept[3].ack()
            await kept[3].settled()
            await kept[3].settled()  # already settled: returns immediately
            assert await running(app, "g") == 0
        (letter,) = await numbers.group("g").dead.list()
    assert (letter.id, letter.reason) == (kept[1].id, "rejected")


@looped
async def test_an_open_delivery_occupies_its_slot() -> None:
    app, numbers = make()
    kept: list[Delivery] = []

    @numbers.subscribe("g", ack="manual", concurrency=2)
    async def keep(number: int, delivery: Delivery) -> None:
        kept.append(delivery)

    async with app:
        await numbers.publish_many(list(range(6)))
        async with app.worker():
            for told in range(6):
                await until(lambda told=told: len(kept) > told)  # type: ignore[misc]
                assert len(kept) <= told + 2
                kept[told].ack()
                await kept[told].settled()
    assert len({delivery.id for delivery in kept}) == 6


@looped
async def test_a_handler_that_raises_is_reported_and_its_delivery_stays_open(caplog: pytest.LogCaptureFixture) -> None:
    app, numbers = make()
    kept: list[Delivery] = []

    @numbers.subscribe("g", ack="manual")
    async def keep(number: int, delivery: Delivery) -> None:
        kept.append(delivery)
        raise ValueError("not a reason to try again")

    async with app:
        await numbers.publish(1)
        async with app.worker():
            await until(lambda: "its delivery stays open" in caplog.text)
            kept[0].ack()
            await kept[0].settled()
    assert len(kept) == 1


@looped
@pytest.mark.parametrize("how", ["returns", "in a thread", "raises"])
async def test_a_dropped_delivery_is_redelivered_and_uses_an_attempt(how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "millstream.worker")  # captured log records keep the frames of their exceptions alive
    app, numbers = make()
    attempts: list[int] = []

    async def drop(number: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if how == "raises":
            raise ValueError("and drops it")

    def drop_there(number: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)

    numbers.subscribe("g", ack="manual")(drop_there if how == "in a thread" else drop)
    async with app:
        await numbers.publish(1)
        async with app.worker():
            await until(lambda: len(attempts) == 1)
            gc.collect()
            await until(lambda: len(attempts) == 2)
            async with asyncio.timeout(PATIENCE):
                while (await app.inspector.queue("numbers/g")).dead != 1:
                    await asyncio.sleep(0.01)
            (letter,) = await numbers.group("g").dead.list()
    assert attempts == [1, 2]
    assert letter.reason == "exhausted"
    assert "dropped" in letter.error


@looped
@pytest.mark.parametrize("how", ["in a thread", "by swallowing the cancellation"])
async def test_a_handler_that_returns_during_a_shutdown_does_not_decide_the_outcome(how: str) -> None:
    app, numbers = make(grace=0.01)
    kept: list[Delivery] = []
    began, stopping = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def keep_there(number: int, delivery: Delivery) -> None:
        kept.append(delivery)
        loop.call_soon_threadsafe(began.set)
        while not current_job().cancelled and not stopping.is_set():
            pass

    async def keep(number: int, delivery: Delivery) -> None:
        kept.append(delivery)
        began.set()
        if not stopping.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    numbers.subscribe("g", ack="manual")(keep_there if how == "in a thread" else keep)
    async with app:
        await numbers.publish(1)
        async with app.worker():
            await began.wait()
        with pytest.raises(UsageError, match="has ended"):
            kept[0].ack()
        state = await app.inspector.queue("numbers/g")
        assert (state.ready, state.running) == (1, 0)
        stopping.set()
        async with app.worker():
            await until(lambda: len(kept) == 2)
            kept[1].ack()
            await kept[1].settled()
    assert (kept[1].attempt, kept[1].crashes) == (1, 0)


@looped
async def test_after_a_lost_lease_a_delivery_cannot_be_acknowledged_and_settled_raises() -> None:
    app, numbers = make()
    kept: list[Delivery] = []

    @numbers.subscribe("g", ack="manual")
    async def keep(number: int, delivery: Delivery) -> None:
        kept.append(delivery)
        if number == 1 and len(kept) < 3:
            delivery.ack()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async with app:
        await numbers.publish_many([1, 2])
        async with app.worker() as worker:
            await until(lambda: len(kept) == 2)
            one, two = sorted(kept, key=lambda delivery: delivery.id)
            (lane,) = worker._lanes
            worker._fenced(lane, lane.consumer)
            with pytest.raises(LeaseLost):
                await one.settled()
            with pytest.raises(UsageError, match="has ended"):
                two.ack()
            await until(lambda: len(kept) == 4)  # both are redelivered to this worker under a new consumer name
            for delivery in kept[2:]:
                delivery.ack()
                await delivery.settled()
            assert await running(app, "g") == 0


@looped
async def test_a_handler_may_wait_for_many_acknowledgements_at_the_same_time() -> None:
    app, numbers = make()
    ended: list[int] = []

    @numbers.subscribe("g", batch=Batch(5, wait=0.05))
    async def take(several: list[int], deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            delivery.ack()
        await asyncio.gather(*(delivery.settled() for delivery in deliveries))
        ended.extend(several)

    async with app:
        await numbers.publish_many(list(range(10)))
        async with app.worker():
            await until(lambda: len(ended) == 10)
            assert await running(app, "g") == 0


@looped
async def test_a_delivery_may_be_acknowledged_from_another_thread() -> None:
    app, numbers = make()
    kept: list[Delivery] = []
    threads: list[threading.Thread] = []

    @numbers.subscribe("g", ack="manual")
    def keep(number: int, delivery: Delivery) -> None:
        kept.append(delivery)
        threads.append(threading.Thread(target=delivery.ack))
        threads[-1].start()

    async with app:
        await numbers.publish_many(list(range(50)))
        async with app.worker():
            await until(lambda: len(kept) == 50)
            async with asyncio.timeout(PATIENCE):
                while await running(app, "g"):
                    await asyncio.sleep(0.01)
    for thread in threads:
        thread.join()
    assert len(kept) == 50


@looped
async def test_an_open_delivery_past_its_timeout_is_retried_and_can_no_longer_be_acknowledged() -> None:
    app, numbers = make()
    kept: list[Delivery] = []

    @numbers.subscribe("g", ack="manual", timeout=0.05)
    async def keep(number: int, delivery: Delivery) -> None:
        kept.append(delivery)
        if delivery.attempt == 2:
            delivery.ack()

    async with app:
        await numbers.publish(1)
        async with app.worker():
            await until(lambda: len(kept) == 2)
            with pytest.raises(UsageError, match="has ended"):
                kept[0].ack()
    assert [delivery.attempt for delivery in kept] == [1, 2]


@looped
async def test_open_deliveries_are_released_when_a_worker_stops() -> None:
    app, numbers = make(grace=0.05)
    kept: list[Delivery] = []

    @numbers.subscribe("g", ack="manual")
    async def keep(number: int, delivery: Delivery) -> None:
        kept.append(delivery)

    async with app:
        await numbers.publish(1)
        async with app.worker():
            await until(lambda: len(kept) == 1)
        with pytest.raises(UsageError, match="has ended"):
            kept[0].ack()
        async with app.worker():
            await until(lambda: len(kept) == 2)
            kept[1].ack()
    assert (kept[1].id, kept[1].attempt, kept[1].crashes) == (kept[0].id, 1, 0)


@looped
@pytest.mark.parametrize("ack", ["manual", "on_success"])
async def test_a_handler_may_wait_until_the_server_has_stored_its_ack(ack: Any) -> None:
    app, numbers = make()
    seen: list[int] = []

    @numbers.subscribe("g", ack=ack)
    async def handle(number: int, delivery: Delivery) -> None:
        delivery.ack()
        await delivery.settled()
        seen.append(await running(app, "g"))
        raise ValueError("too late to matter")

    @numbers.subscribe("h", ack=ack)
    async def retry(number: int, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            delivery.retry(0)
            with pytest.raises(UsageError, match="its handler cannot wait for settled"):
                await delivery.settled()
        else:
            delivery.ack()
            seen.append(2)

    async with app:
        await numbers.publish(1)
        async with app.worker():
            await until(lambda: len(seen) == 2)
        assert await running(app, "g") == 0
    assert sorted(seen) == [0, 2]


@looped
async def test_a_handler_in_a_thread_may_wait_for_its_ack_too() -> None:
    app, numbers = make()
    seen: list[str] = []

    @numbers.subscribe("g")
    def handle(number: int, delivery: Delivery) -> None:
        if number == 1:
            delivery.ack()
            delivery.settled_sync()
            seen.append("settled")
        elif delivery.attempt == 1:
            delivery.retry(0)
            with pytest.raises(UsageError, match="its handler cannot wait for settled"):
                delivery.settled_sync()
            seen.append("refused")

    async with app:
        await numbers.publish_many([1, 2])
        async with app.worker():
            await until(lambda: len(seen) == 2)
    assert sorted(seen) == ["refused", "settled"]


def test_manual_ack_requires_a_delivery_parameter_and_excludes_batches() -> None:
    _, numbers = make()
    with pytest.raises(UsageError, match="its delivery"):
        numbers.subscribe("g", ack="manual")(lambda number: None)
    with pytest.raises(UsageError, match="one event"):
        numbers.subscribe("g", ack="manual", batch=Batch(2, wait=0.1))(lambda numbers, deliveries: None)
    with pytest.raises(UsageError, match="'manual'"):
        cast(Any, numbers).subscribe("g", ack="never")(print)
