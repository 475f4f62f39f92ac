"""Each test has a server, a ledger and workers of its own; nothing of them outlives it."""

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
    """Under nohup they are ignored, also by processes that tests start."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def server() -> Iterator[Server]:
    """A private Valkey, to which the app of this process sends its jobs."""
    with running_server() as server, jobs.app.override(server.url):
        yield server


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that is not there yet: handlers told to wait for it end when it is touched."""
    return tmp_path / "gate"


@pytest.fixture
def workers(server: Server, ledger: Ledger, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(server, ledger, tmp_path)
    yield workers
    workers.clean_up()


@pytest.fixture(scope="session")
def session_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes that run the tests share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if hasattr(request.config, "workerinput") else folder


@pytest.fixture(params=interpreters.VERSIONS)
def bin_folder(request: pytest.FixtureRequest, session_folder: Path) -> Path:
    """The commands of an environment with the built wheel, for each Python found here: python, millstream, pytest."""
    return interpreters.environment(request.param, session_folder) / "bin"


@pytest.fixture(scope="session")
def wheel(session_folder: Path) -> Path:
    """The built wheel."""
    return interpreters.wheel(session_folder)
