"""Every example prints what its docstring shows, and the commands that the demo suggests at its end work."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.backends.embedded import stop_server
from millstream.cli.demo.show import FIRST_APP

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# Seconds to wait for anything in these tests.
PATIENCE = 60.0

Environment = dict[str, str]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder as the working directory. The embedded server of that folder is stopped at the end."""
    path = Path(tempfile.mkdtemp(prefix="millstream-")).resolve()
    (path / "pyproject.toml").touch()  # makes the folder a project
    for name in os.environ:
        if name.startswith("MILLSTREAM_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(path)
    yield path
    stop_server(path / ".millstream")
    shutil.rmtree(path)


def run(*command: str) -> str:
    """Return what a command prints. The command must succeed and print nothing on stderr."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def serving(*command: str) -> Iterator[Path]:
    """Run a worker during the block and yield its log file. The worker must exit with 0. If the block fails, print the log."""
    path = Path("worker.log")
    with path.open("wb") as log:
        worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
    try:
        yield path
    except BaseException:
        print(path.read_text())
        raise
    finally:
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(PATIENCE)
    assert code == 0, path.read_text()


# --- the examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_shows_on_every_run(example: Path, folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse(example.read_text()))
    assert docstring is not None
    claimed = [line.strip() for line in docstring.rsplit("prints\n", 1)[1].strip().splitlines()]
    for _ in range(2):
        assert run(sys.executable, "-W", "error", str(example)).splitlines() == claimed


def test_the_example_about_testing_passes_under_pytest(folder: Path) -> None:
    assert "4 passed" in run(sys.executable, "-m", "pytest", "-W", "error", str(ROOT / "examples" / "testing_tasks.py"))
    assert not (folder / ".millstream").exists()


# --- the demo's suggestions -------------------------------------------------------------------------------------------


def test_the_commands_that_the_demo_suggests_work(folder: Path) -> None:
    (folder / "tasks.py").write_text(FIRST_APP)
    ask = "from tasks import hello; print(hello.enqueue_sync('you').result_sync(timeout=10))"
    with serving("millstream", "worker", "tasks:app"):
        assert run("python", "-c", ask) == "Hello, you!\n"
