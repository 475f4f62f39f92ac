"""The Redis backend keeps the contract, on Valkey and on Redis."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from millstream.backends.redis import RedisBroker
from millstream.model.address import Address
from millstream.testing import BrokerContract, QueueContract


class OnServer:
    url: str

    def setup_method(self) -> None:
        self.namespace = f"test-{uuid.uuid4().hex}"

    def make_broker(self, **options: Any) -> RedisBroker:
        return RedisBroker(self.url, namespace=self.namespace, **options)


class OnValkey(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, valkey_server: str) -> None:
        self.url = valkey_server


class OnRedis(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: str) -> None:
        self.url = redis_server


class TestOnValkey(OnValkey, BrokerContract):
    pass


class TestOnRedis(OnRedis, BrokerContract):
    pass


class Group(QueueContract):
    """A group keeps the contract of a queue."""

    queue, other_queue = Address("t/g"), Address("t/h")


class TestGroupOnValkey(OnValkey, Group):
    pass


class TestGroupOnRedis(OnRedis, Group):
    pass
