"""A worker of many queues waits for all of them on one connection."""

from __future__ import annotations

import asyncio
import secrets

import redis

from millstream import Millstream
from millstream.backends.redis import RedisBroker
from millstream.backends.redis.waiting import OWN_LINKS
from millstream.broker import Claim, Post
from millstream.model.address import Address
from tests.stage import looped

QUEUES = [Address(f"q{number}") for number in range(30)]


def named(url: str, name: str) -> str:
    return f"{url}?client_name={name}"


def connections(url: str, name: str) -> int:
    with redis.Redis.from_url(url) as client:
        return sum(each["name"] == name for each in client.client_list())


@looped
async def test_a_worker_of_many_queues_uses_few_connections_and_serves_all(valkey_server: str) -> None:
    name = f"many-{secrets.token_hex(4)}"
    async with Millstream(named(valkey_server, name), namespace=name) as app:
        for queue in QUEUES:
            app.queue(queue)

        @app.task(result_ttl=60)
        async def double(number: int) -> int:
            return 2 * number

        async with app.worker():
            for number, queue in enumerate(QUEUES):
                job = await double.options(queue=queue).enqueue(number)
                assert await job.result(timeout=30) == 2 * number
            # The commands, the consumers with a link of their own, the shared wait, the results, and the keeper of the leases.
            assert await asyncio.to_thread(connections, valkey_server, name) <= OWN_LINKS + 4


async def idle_consumers(url: str) -> tuple[RedisBroker, list[asyncio.Task[Claim]]]:
    """Return a broker with an idle consumer on each queue. All but OWN_LINKS of them share a connection."""
    broker = RedisBroker(url, namespace=f"test-{secrets.token_hex(6)}")
    await broker.open()
    waits: list[asyncio.Task[Claim]] = []
    for queue in QUEUES:
        await broker.join(queue, "worker", 30.0)
        await broker.claim(queue, "worker", 1)
        waits.append(asyncio.create_task(broker.claim(queue, "worker", 1, wait=20.0)))
    await asyncio.sleep(0)
    return broker, waits


@looped
async def test_each_idle_consumer_gets_the_job_of_its_queue(valkey_server: str) -> None:
    broker, waits = await idle_consumers(valkey_server)
    for number in (29, 0, 13, 7):
        await broker.publish(QUEUES[number], [Post(f"job-{number}", b"body")])
        claim = await waits[number]
        assert len(claim.entries) == 1
        assert sum(wait.done() for wait in waits) == [29, 0, 13, 7].index(number) + 1
    for wait in waits:
        wait.cancel()
    await broker.close()


@looped
async def test_a_nudge_ends_the_wait_of_one_consumer_only(valkey_server: str) -> None:
    broker, waits = await idle_consumers(valkey_server)
    await broker.nudge(QUEUES[20], "worker")
    claim = await waits[20]
    assert claim.entries == []
    assert sum(wait.done() for wait in waits) == 1
    for wait in waits:
        wait.cancel()
    await broker.close()
