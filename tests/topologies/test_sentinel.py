"""Sentinel: the primary is found through any sentinel, and left as soon as another server has its role."""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from typing import Any

import pytest
import redis

from chaos.topologies import SERVICE, Sentinels
from millstream import Millstream
from millstream.backends.redis import RedisBroker
from millstream.backends.redis.topology import make_topology
from millstream.errors import BrokerRefused, BrokerUnavailable
from millstream.model.address import Address
from tests.stage import looped
from tests.topologies.conftest import ENGINE, publish

QUEUE = Address("default")
NAME = "millstream-test"


def new_broker(url: str) -> RedisBroker:
    return RedisBroker(url, namespace=f"test-{uuid.uuid4().hex}")


def connections(port: int, command: str = "") -> int:
    """Return how many connections of the test a server has, or those whose last command was this one."""
    with redis.Redis(port=port) as client:
        clients = [each for each in client.client_list() if each["name"] == NAME]
    return sum(not command or each["cmd"] == command for each in clients)


def count(port: int, broker: RedisBroker) -> int:
    with redis.Redis(port=port) as client:
        return int(client.xlen(broker._names(QUEUE)["stream"]))


@looped
async def test_a_job_runs_and_its_result_comes_back(sentinels: Sentinels) -> None:
    async with Millstream(sentinels.url, namespace=f"test-{uuid.uuid4().hex}") as app:

        @app.task(result_ttl=60)
        async def double(number: int) -> int:
            return 2 * number

        async with app.worker():
            job = await double.enqueue(21)
            assert await job.result(timeout=30) == 42
        assert app.where.startswith(sentinels.url)


@looped
async def test_the_next_sentinel_is_asked_if_one_is_dead(sentinels: Sentinels) -> None:
    dead = "redis+sentinel://127.0.0.1:1," + sentinels.url.partition("://")[2]
    broker = new_broker(dead)
    await broker.open()
    await broker.close()


@looped
async def test_an_unknown_service_is_refused_and_the_known_ones_are_named(sentinels: Sentinels) -> None:
    broker = new_broker(sentinels.url.replace(f"/{SERVICE}", "/mian"))
    with pytest.raises(BrokerRefused, match=rf"does not know the service 'mian'; it knows '{SERVICE}'"):
        await broker.open()
    await broker.close()


@looped
async def test_without_a_sentinel_the_error_names_each_of_them() -> None:
    broker = new_broker("redis+sentinel://127.0.0.1:1,127.0.0.1:2/main")
    with pytest.raises(BrokerUnavailable, match=r"no sentinel answers .*127\.0\.0\.1:1.*127\.0\.0\.1:2"):
        await broker.open()
    await broker.close()


@looped
async def test_a_replica_is_never_used_as_the_primary(sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = next(each for each in sentinels.servers if each is not sentinels.primary)
    topology: Any = make_topology(sentinels.url, "")

    async def outdated() -> str:
        return f"redis://127.0.0.1:{replica.port}"

    monkeypatch.setattr(topology._node.connector, "_url", outdated)
    with pytest.raises(BrokerUnavailable, match="is a replica: a failover is in progress"):
        await topology.open()
    await topology.close()


@looped
async def test_after_a_failover_every_connection_leaves_the_demoted_primary(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "millstream.redis")
    with Sentinels(ENGINE) as own:
        old, broker = own.primary, new_broker(f"{own.url}?client_name={NAME}")
        await broker.open()
        await publish(broker, QUEUE, "before")
        waiting = asyncio.create_task(broker.results.wait(QUEUE, "before", None))
        while not await asyncio.to_thread(connections, old.port, "subscribe"):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(own.fail_over)
        new = own.primary
        while "the primary changed" not in caplog.text:
            await asyncio.sleep(0.01)
        await publish(broker, QUEUE, "after")
        assert await asyncio.to_thread(count, new.port, broker) == 2
        while not await asyncio.to_thread(connections, new.port, "subscribe"):
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(connections, old.port) == 0
        waiting.cancel()
        await broker.close()
    assert f"the primary changed from 127.0.0.1:{old.port} to 127.0.0.1:{new.port}" in caplog.text


@looped
async def test_after_the_primary_was_killed_jobs_run_on_the_promoted_replica() -> None:
    with Sentinels(ENGINE) as own:
        async with Millstream(own.url, namespace=f"test-{uuid.uuid4().hex}") as app:

            @app.task(result_ttl=60)
            async def double(number: int) -> int:
                return 2 * number

            async with app.worker():
                before = own.primary
                assert await (await double.enqueue(1)).result(timeout=30) == 2
                before.end(signal.SIGKILL)
                await asyncio.to_thread(own.until_changed, before)
                job = None
                while job is None:
                    try:
                        job = await double.enqueue(2)
                    except BrokerUnavailable:
                        continue
                assert await job.result(timeout=30) == 4


@looped
async def test_the_change_is_noticed_although_the_announcing_sentinel_was_killed() -> None:
    with Sentinels(ENGINE) as own:
        broker = new_broker(own.url)
        await broker.open()
        await publish(broker, QUEUE, "before")
        own.sentinels[-1].kill()
        before = own.primary
        before.end(signal.SIGKILL)
        await asyncio.to_thread(own.until_changed, before)
        await publish(broker, QUEUE, "after")
        assert await asyncio.to_thread(count, own.primary.port, broker) >= 1
        await broker.close()


@looped
async def test_servers_and_sentinels_have_separate_passwords() -> None:
    with Sentinels(ENGINE, password="s3rver", sentinel_password="s3ntinel") as own:
        broker = new_broker(own.url)
        await broker.open()
        await publish(broker, QUEUE, "job")
        await broker.close()
        for wrong in (own.url.replace("s3ntinel", "wrong"), own.url.replace("s3rver", "wrong")):
            refused = new_broker(wrong)
            with pytest.raises(BrokerRefused) as error:
                await refused.open()
            assert "wrong" not in str(error.value) and "s3rver" not in str(error.value)
            await refused.close()
