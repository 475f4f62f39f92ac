"""Tests of code that enqueues: ``memory://`` keeps every promise of a server inside the process, and starts none.

    pytest examples/testing_tasks.py

or, since there is no more to it than functions,

    python examples/testing_tasks.py

prints

    4 tests passed
"""

import asyncio
from collections.abc import Awaitable, Callable

from millstream import Millstream, RetryPolicy, current_job

app = Millstream("redis://redis.example.com:6379/0", namespace="shop")  # never reached by these tests


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
    """Run a coroutine with everything the app does kept in memory, empty at the start."""

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
async def test_shipping_survives_a_silent_warehouse() -> None:
    quick = ship.options(retry=ship.retry.replace(delay=0.0))
    async with app.worker():
        job = await quick.enqueue(7)
        assert await job.result(timeout=5) == "order 7 shipped"


def test_a_task_is_a_function_all_the_same() -> None:
    assert label(7) == "SHOP-0007"


if __name__ == "__main__":
    tests = [value for name, value in list(globals().items()) if name.startswith("test_")]
    for test in tests:
        test()
    print(f"{len(tests)} tests passed")
