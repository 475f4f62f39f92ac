"""A user with only the rights that ``millstream doctor --acl`` prints keeps the contract."""

from __future__ import annotations

import shlex
import uuid
from typing import Any

import pytest
import redis

from chaos.topologies import Cluster
from millstream.backends.redis import RedisBroker
from millstream.backends.redis.rights import acl
from millstream.testing import BrokerContract
from millstream.url import parse_url
from tests.contract.test_redis import Group, OnServer


class UnderLeastRights(OnServer):
    """Each test has its own user, because each has its own namespace."""

    server: str

    @pytest.fixture(autouse=True)
    def _server(self, valkey_server: str) -> None:
        self.server = valkey_server

    def make_broker(self, **options: Any) -> RedisBroker:
        user = f"user-{self.namespace}"
        rule = acl(parse_url(self.server), self.namespace, user).replace("PASSWORD", "secret")
        with redis.Redis.from_url(self.server) as operator:
            operator.execute_command(*shlex.split(rule))
        return RedisBroker(self.server.replace("unix://", f"unix://{user}:secret@"), namespace=self.namespace, **options)


class TestUnderLeastRights(UnderLeastRights, BrokerContract):
    pass


class TestGroupUnderLeastRights(UnderLeastRights, Group):
    pass


def test_on_a_cluster_the_least_rights_suffice(cluster: Cluster) -> None:
    import asyncio

    from millstream import Millstream

    namespace = f"test-{uuid.uuid4().hex}"
    rule = acl(parse_url(cluster.url), namespace, namespace).replace("PASSWORD", "secret")
    for node in cluster.nodes:
        node.call(*shlex.split(rule))

    async def run() -> None:
        url = cluster.url.replace("://", f"://{namespace}:secret@")
        async with Millstream(url, namespace=namespace, replicas=1) as app:

            @app.task(result_ttl=60)
            async def double(number: int) -> int:
                return 2 * number

            async with app.worker():
                assert await (await double.enqueue(21)).result(timeout=30) == 42

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "right"), [("redis+cluster://h", "+cluster|slots"), ("redis://h/3", "+select"), ("redis://h", "~{shop:q:*")]
)
def test_the_rule_fits_the_url_and_the_namespace(url: str, right: str) -> None:
    assert right in acl(parse_url(url), "shop", "worker").split()
