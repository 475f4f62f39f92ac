"""The Redis room keeps the contract, on Valkey and on Redis."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from millstream.redis import RedisBroker
from millstream.testing import BrokerContract


class RedisContract(BrokerContract):
    url: str

    def setup_method(self) -> None:
        self.namespace = f"test-{uuid.uuid4().hex}"

    def make_broker(self, **options: Any) -> RedisBroker:
        return RedisBroker(self.url, namespace=self.namespace, **options)


class TestOnValkey(RedisContract):
    @pytest.fixture(autouse=True)
    def _server(self, valkey_server: str) -> None:
        self.url = valkey_server


class TestOnRedis(RedisContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: str) -> None:
        self.url = redis_server


class TestGroupOnValkey(TestOnValkey):
    """A group is a queue."""

    queue, other_queue = "t>g", "t>h"


class TestGroupOnRedis(TestOnRedis):
    queue, other_queue = "t>g", "t>h"
