"""The backends on which apps and clients are tested."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from millstream.backends.embedded import stop_server
from tests.stage import place


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    """An embedded server for this test session."""
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        yield f"embedded://{folder}"
        stop_server(folder)


@pytest.fixture(params=["memory", "embedded"])
def every_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test on the memory backend and on a real server."""
    if request.param == "embedded":
        place.url = request.getfixturevalue("embedded_url")
    yield
    place.url = "memory://"
