"""Real clusters and sentinels, one of each per process of the test run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import cast

import pytest

from chaos.server import Engine, NotHere, PrivateServer, free_ports
from chaos.topologies import Cluster, Sentinels
from millstream.backends.redis import RedisBroker
from millstream.broker import Post
from millstream.errors import BrokerUnavailable
from millstream.model.address import Address

ENGINE = cast(Engine, os.environ.get("MILLSTREAM_TEST_ENGINE", "valkey"))
"""The servers: valkey or redis."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three primaries with a replica each. A test that changes the cluster starts its own."""
    try:
        with Cluster(ENGINE, replicas=1) as running:
            yield running
    except NotHere as error:
        _missing(error)


@pytest.fixture(scope="session")
def sentinels() -> Iterator[Sentinels]:
    """A primary with a replica, watched by three sentinels. A test that changes them starts its own."""
    try:
        with Sentinels(ENGINE) as running:
            yield running
    except NotHere as error:
        _missing(error)


def _missing(error: NotHere) -> None:
    (pytest.fail if os.environ.get("MILLSTREAM_TEST_REQUIRE_SERVERS") else pytest.skip)(str(error))


@pytest.fixture
def plain_server() -> Iterator[PrivateServer]:
    """A plain server that listens on a port."""
    (port,) = free_ports(1)
    server = PrivateServer(ENGINE, "everysec", "--bind", "127.0.0.1", port=port)
    try:
        server.start()
        yield server
    finally:
        server.clean_up()


async def publish(broker: RedisBroker, queue: Address, job_id: str) -> None:
    """Publish one job. Repeat the call while the server is unreachable, as clients do."""
    async with asyncio.timeout(30):
        while True:
            try:
                await broker.publish(queue, [Post(job_id, b"body")])
                return
            except BrokerUnavailable:
                await asyncio.sleep(0.02)
