"""The Redis backend keeps the contract on a cluster and behind sentinels."""

from __future__ import annotations

import pytest

from chaos.topologies import Cluster, Sentinels
from millstream.testing import BrokerContract
from tests.contract.test_redis import Group, OnServer


class OnCluster(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, cluster: Cluster) -> None:
        self.url = cluster.url


class BehindSentinels(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, sentinels: Sentinels) -> None:
        self.url = sentinels.url


class TestOnCluster(OnCluster, BrokerContract):
    pass


class TestGroupOnCluster(OnCluster, Group):
    pass


class TestBehindSentinels(BehindSentinels, BrokerContract):
    pass


class TestGroupBehindSentinels(BehindSentinels, Group):
    pass
