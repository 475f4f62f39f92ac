"""Fixtures for stories told on each server, in a queue and in a group."""

from __future__ import annotations

import pytest

from tests.contract.stories import Tell, teller


@pytest.fixture(params=["q", "t/g"], ids=["queue", "group"])
def address(request: pytest.FixtureRequest) -> str:
    address: str = request.param
    return address


@pytest.fixture(params=["valkey_server", "redis_server"])
def tell(request: pytest.FixtureRequest, address: str) -> Tell:
    return teller(request.getfixturevalue(request.param), address)
