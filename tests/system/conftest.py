"""Fixtures. Each test has its own server, ledger and workers, and all of them end with the test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import interpreters
from tests.system.apps import jobs
from tests.system.harness import Ledger, Server, Workers, running_server


@pytest.fixture(scope="session", autouse=True)
def hang_ups_are_heard() -> None:
    """Restore the default SIGHUP action. Under nohup, this process and its child processes would ignore SIGHUP."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def server() -> Iterator[Server]:
    """A private Valkey server. The ``jobs`` app in this process enqueues to it."""
    with running_server() as server, jobs.app.override(server.url):
        yield server


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The path of a file that does not exist yet. Handlers that wait for the gate end when a test creates the file."""
    return tmp_path / "gate"


@pytest.fixture
def workers(server: Server, ledger: Ledger, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(server, ledger, tmp_path)
    yield workers
    workers.clean_up()


@pytest.fixture(scope="session")
def session_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder shared by all pytest processes of the session."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if hasattr(request.config, "workerinput") else folder


@pytest.fixture(params=interpreters.VERSIONS)
def bin_folder(request: pytest.FixtureRequest, session_folder: Path) -> Path:
    """The ``bin`` folder of an environment with the built wheel (python, millstream, pytest), for each supported Python."""
    return interpreters.environment(request.param, session_folder) / "bin"


@pytest.fixture(scope="session")
def wheel(session_folder: Path) -> Path:
    """The path of the built wheel."""
    return interpreters.wheel(session_folder)
