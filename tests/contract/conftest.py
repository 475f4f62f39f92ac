"""Fixtures that run a story on each server, in a queue and in a group."""

from __future__ import annotations

import pytest

from millstream.model.address import Address
from tests.contract.stories import Tell, teller


@pytest.fixture(params=["q", "t/g"], ids=["queue", "group"])
def address(request: pytest.FixtureRequest) -> Address:
    return Address(request.param)


@pytest.fixture(params=["valkey_server", "redis_server"])
def tell(request: pytest.FixtureRequest, address: Address) -> Tell:
    return teller(request.getfixturevalue(request.param), address)
