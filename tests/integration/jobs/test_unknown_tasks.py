"""A queue with tasks that only some of its workers know."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack

import msgspec
import pytest

from millstream import Millstream, Retry, RetryPolicy, Snooze
from millstream.broker import Post
from millstream.model.address import Address
from millstream.model.message import Message, encode_message
from tests.stage import PATIENCE, looped, new_app, place

NO_ARGUMENTS = msgspec.Raw(msgspec.msgpack.encode([]))


@pytest.mark.parametrize("ends", [Retry("not now", delay=3600.0), Snooze(3600.0), ValueError("no")])
@looped
async def test_running_a_job_clears_its_unknown_task_mark(ends: Exception) -> None:
    app = new_app(retry=RetryPolicy(3, delay=3600.0))

    @app.task
    async def work() -> None:
        raise ends

    async with app, app.worker():
        broker = await app.broker()
        body = encode_message(Message("a", "work", NO_ARGUMENTS, 17, unknown_since_ms=17))
        await broker.publish(Address("default"), [Post("a", body, "work")])
        async with asyncio.timeout(PATIENCE):
            while (view := await app.inspector.job("default", "a")) is None or view.status != "scheduled":
                await asyncio.sleep(0.001)
    assert view.message is not None and view.message.unknown_since_ms == 0


async def nothing() -> None: ...


@pytest.mark.usefixtures("every_backend")
@looped
async def test_one_worker_that_knows_a_task_runs_all_its_jobs_although_three_others_do_not() -> None:
    namespace = f"test-{secrets.token_hex(6)}"
    knows = Millstream(place.url, namespace=namespace, unknown_task_grace=60)
    ran: list[int] = []

    @knows.task
    async def work(n: int) -> None:
        ran.append(n)

    async with AsyncExitStack() as stack:
        for _ in range(3):
            other = Millstream(place.url, namespace=namespace, unknown_task_grace=60)
            other.task(name="another")(nothing)
            await stack.enter_async_context(other)
            await stack.enter_async_context(other.worker(queues=["default"]))
        await stack.enter_async_context(knows)
        await stack.enter_async_context(knows.worker())
        for first in range(0, 600, 50):
            await knows.enqueue_many([work.bind(n) for n in range(first, first + 50)])
        async with asyncio.timeout(PATIENCE):
            while len(ran) < 600:
                await asyncio.sleep(0.01)
        assert sorted(ran) == list(range(600))
        assert (await knows.inspector.queue("default")).dead == 0
