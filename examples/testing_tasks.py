"""Test code that enqueues jobs. ``memory://`` gives the guarantees of a server inside the test process, without a server.

    pytest examples/testing_tasks.py

or, because the tests are plain functions,

    python examples/testing_tasks.py

prints

    4 tests passed
"""

import asyncio
from collections.abc import Awaitable, Callable

from millstream import Millstream, RetryPolicy, current_job

app = Millstream("redis://redis.example.com:6379/0", namespace="shop")  # the tests never connect to it


@app.task(retry=RetryPolicy(3, delay=5.0))
async def ship(order: int) -> str:
    if current_job().attempt == 1:
        raise ConnectionError("the warehouse does not answer")
    return f"order {order} shipped"


@app.task
def label(order: int) -> str:
    return f"SHOP-{order:04}"


async def place_order(order: int) -> str:
    """The code under test."""
    job = await ship.options(id=f"ship-{order}").enqueue(order)
    return job.id


def in_memory(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run an async test with the app's data in memory. Each test starts empty."""

    def run() -> None:
        async def body() -> None:
            with app.override("memory://"):
                await test()

        asyncio.run(body())

    return run


@in_memory
async def test_placing_an_order_enqueues_its_shipping() -> None:
    await place_order(7)
    assert await ship.job("ship-7").status() == "ready"


@in_memory
async def test_placing_an_order_twice_ships_it_once() -> None:
    await place_order(7)
    await place_order(7)
    assert (await app.inspector.queue("default")).ready == 1


@in_memory
async def test_shipping_is_retried_when_the_warehouse_does_not_answer() -> None:
    quick = ship.options(retry=ship.retry.replace(delay=0.0))
    async with app.worker():
        job = await quick.enqueue(7)
        assert await job.result(timeout=5) == "order 7 shipped"


def test_a_task_can_be_called_like_a_function() -> None:
    assert label(7) == "SHOP-0007"


if __name__ == "__main__":
    tests = [value for name, value in list(globals().items()) if name.startswith("test_")]
    for test in tests:
        test()
    print(f"{len(tests)} tests passed")
