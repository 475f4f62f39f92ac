"""topic.consume: run the handler of a group inside the user's own process."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any, cast

import pytest

from millstream import Batch, Consumer, Delivery, Millstream, RetryPolicy, Topic
from millstream.errors import UsageError
from tests.stage import PATIENCE, looped, new_app, until

pytestmark = pytest.mark.usefixtures("every_backend")


def make(**settings: Any) -> tuple[Millstream, Topic[int]]:
    app = new_app(retry=RetryPolicy(1, delay=0.001, jitter=False), **settings)
    return app, app.topic("numbers", int)


async def running(app: Millstream, group: str) -> int:
    return (await app.inspector.queue(f"numbers/{group}")).running


@looped
async def test_a_consumer_handles_events_until_it_is_closed() -> None:
    app, numbers = make()
    got: list[int] = []

    async def take(number: int) -> None:
        got.append(number)

    async with app:
        consumer = await numbers.consume("g", take)
        assert (consumer.running, consumer.topic, consumer.group) == (True, "numbers", "g")
        assert [worker.id for worker in await app.inspector.workers()] == [consumer.name]
        await numbers.publish_many([1, 2, 3])
        await until(lambda: sorted(got) == [1, 2, 3])
        await consumer.close()
        assert not consumer.running
        await consumer.close()
        await numbers.publish(4)
        assert (await app.inspector.queue("numbers/g")).ready == 1
        async with await numbers.consume("g", take):
            await until(lambda: 4 in got)
    assert len(got) == 4


@looped
async def test_the_group_exists_when_consume_returns_and_may_start_with_new_events() -> None:
    app, numbers = make()
    got: list[tuple[str, int]] = []

    async def old(number: int) -> None:
        got.append(("old", number))

    async def new(number: int, delivery: Delivery) -> None:
        got.append((delivery.group, number))

    async with app:
        await numbers.publish(1)
        async with await numbers.consume("new", new, start="new"), await numbers.consume("old", old):
            await numbers.publish(2)
            await until(lambda: len(got) == 3)
    assert sorted(got) == [("new", 2), ("old", 1), ("old", 2)]


@looped
async def test_consumers_of_a_group_share_its_events_and_respect_their_concurrency() -> None:
    app, numbers = make()
    got: list[int] = []
    active, most = [0, 0], [0, 0]
    go_on = asyncio.Event()

    def handler(which: int) -> Any:
        async def take(number: int) -> None:
            active[which] += 1
            most[which] = max(most[which], active[which])
            await go_on.wait()
            active[which] -= 1
            got.append(number)

        return take

    async with app:
        first = await numbers.consume("g", handler(0), concurrency=2)
        second = await numbers.consume("g", handler(1), concurrency=3)
        assert first.name != second.name
        await numbers.publish_many(list(range(40)))
        await until(lambda: sum(active) == 5)
        assert await running(app, "g") == 5  # no event is claimed ahead
        go_on.set()
        await until(lambda: len(got) == 40)
        await asyncio.gather(first.close(), second.close())
    assert sorted(got) == list(range(40))
    assert max(most) <= 3


@looped
async def test_consume_accepts_batches_and_plain_functions() -> None:
    app, numbers = make()
    got: list[list[int]] = []
    there: list[int] = []

    async def take(several: list[int]) -> None:
        got.append(several)

    async with app:
        await numbers.publish_many(list(range(10)))
        consumers = [
            await numbers.consume("g", take, batch=Batch(5, wait=0.1)),
            await numbers.consume("h", there.append, concurrency=3),
        ]
        await until(lambda: len(there) == 10 and sum(map(len, got)) == 10)
        for consumer in consumers:
            await consumer.close()
    assert max(map(len, got)) <= 5


@looped
async def test_close_finishes_running_events_and_abort_releases_them() -> None:
    app, numbers = make()
    began, ended = asyncio.Event(), asyncio.Event()
    go_on = asyncio.Event()

    async def take(number: int) -> None:
        began.set()
        await go_on.wait()
        ended.set()

    async with app:
        await numbers.publish(1)
        consumer = await numbers.consume("g", take)
        await began.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        assert consumer.running
        go_on.set()
        await closing
        assert ended.is_set()

        for event in (go_on, began, ended):
            event.clear()
        await numbers.publish(2)
        consumer = await numbers.consume("g", take)
        await began.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        await consumer.abort()  # also ends the wait of close()
        await closing
        assert not consumer.running
        state = await app.inspector.queue("numbers/g")
        assert (state.ready, state.running) == (1, 0)


@looped
@pytest.mark.parametrize("ack", ["on_receive", "manual"])
async def test_close_raises_the_first_error_that_was_not_settled_as_an_outcome(ack: Any) -> None:
    app, numbers = make()
    seen: list[int] = []

    async def fail(number: int, delivery: Delivery) -> None:
        seen.append(number)
        delivery.ack()
        raise ValueError(f"number {number}")

    async with app:
        consumer = await numbers.consume("g", fail, ack=ack, concurrency=1)
        await numbers.publish(1)
        await until(lambda: seen == [1])
        await numbers.publish(2)
        await until(lambda: len(seen) == 2)
        with pytest.raises(ValueError, match="number 1"):
            await consumer.close()
        await consumer.close()


@looped
async def test_a_retried_failure_is_not_an_error_of_the_consumer() -> None:
    app, numbers = make()
    attempts: list[int] = []

    async def fail(number: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise ValueError("again")

    async with app:
        await numbers.publish(1)
        async with await numbers.consume("g", fail):
            async with asyncio.timeout(PATIENCE):
                while not (await app.inspector.queue("numbers/g")).dead:
                    await asyncio.sleep(0.01)
    assert attempts == [1, 2]


@looped
async def test_a_dropped_consumer_warns_and_stops() -> None:
    app, numbers = make()

    async def take(number: int) -> None: ...

    async with app:
        consumer: Consumer | None = await numbers.consume("g", take)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            consumer = None
            gc.collect()
        assert "was never closed" in str(caught[0].message)
        assert consumer is None
        async with asyncio.timeout(PATIENCE):
            while await app.inspector.workers():
                await asyncio.sleep(0.01)


@looped
async def test_an_invalid_handler_or_option_is_refused_before_anything_starts() -> None:
    app, numbers = make()
    async with app:
        with pytest.raises(UsageError, match="has 0 required parameters"):
            await cast(Any, numbers).consume("g", lambda: None)
        with pytest.raises(UsageError, match="concurrency"):
            await numbers.consume("g", print, concurrency=0)
        assert (await app.inspector.topic("numbers")).groups == []
