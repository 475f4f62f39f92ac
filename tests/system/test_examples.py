"""What the tables of the README say exists, and every example prints what it claims to."""

from __future__ import annotations

import ast
import os
import re
import shlex
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
from millstream.model.ordering import fnv1a, key_bytes, shard_of_key

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ORDER = (ROOT / "docs" / "ORDER.md").read_text()
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# Seconds after which anything here is given up.
PATIENCE = 60.0

CONSOLE: list[str] = re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)

Environment = dict[str, str]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder as the working directory; the embedded server that was started there is stopped at the end."""
    path = Path(tempfile.mkdtemp(prefix="millstream-")).resolve()
    (path / "pyproject.toml").touch()  # a project of its own
    for name in os.environ:
        if name.startswith("MILLSTREAM_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(path)
    yield path
    stop_server(path / ".millstream")
    shutil.rmtree(path)


def run(*command: str) -> str:
    """What a command prints; it must succeed, and say nothing on the side."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def serving(*command: str) -> Iterator[Path]:
    """A worker while the block runs, and its log. It must end well; if the block fails, its log is shown."""
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


# --- the README -------------------------------------------------------------------------------------------------------


def test_the_hashes_on_the_page_about_order_are_those_of_keys() -> None:
    rows = re.findall(r"^\| `(.+)` \| ([0-9a-f ]*?) ?\| (\d+) \| (\d+) \| (\d+) \|$", ORDER, re.MULTILINE)
    assert len(rows) == 8
    for written, data, hashed, of_8, of_16 in rows:
        key = key_bytes(ast.literal_eval(written))
        assert key == bytes.fromhex(data)
        assert fnv1a(key) == int(hashed)
        assert (shard_of_key(key, 8), shard_of_key(key, 16)) == (int(of_8), int(of_16))


def test_the_options_and_exit_codes_of_the_readme_are_those_of_the_worker(folder: Path) -> None:
    from millstream.worker import codes

    table = README.split("## The worker")[1].split("## The command line")[0]
    help_text = run("millstream", "worker", "--help")
    told = set(re.findall(r"`(--?[a-z-]+)`", table))
    assert told == set(re.findall(r"(?<![\w-])(--?[a-z-]+)\b", help_text)) & told
    assert {option for option in re.findall(r"(--[a-z-]+)", help_text) if option != "--help"} <= told
    known = {value for name, value in vars(codes).items() if name.isupper()}
    assert {int(code) for code in re.findall(r"^\| (\d) \|", table, re.MULTILINE)} == known


@pytest.mark.parametrize("line", CONSOLE[-1].splitlines())
def test_the_commands_and_options_of_the_readme_exist(line: str, folder: Path) -> None:
    command = shlex.split(line.removeprefix("$ ").split("#")[0])
    noun, word = command[1], command[2] if len(command) > 2 else "--"
    verb = [word] if not word.startswith("--") else ["ls"]
    help_text = run(
        "millstream", noun, *(verb if noun in ("queues", "jobs", "dead", "topics", "groups", "workers") else []), "--help"
    )
    assert {word for word in command if word.startswith("--")} <= set(re.findall(r"--[a-z]+", help_text))


def test_the_urls_of_the_readme_are_those_that_exist() -> None:
    from typing import get_args

    from millstream.config import Scheme

    table = README.split("| URL |")[1].split("## More")[0]
    assert set(re.findall(r"^\| `(\w+)://", table, re.MULTILINE)) == set(get_args(Scheme))


def test_the_links_of_the_readme_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target[1:] in anchors if target.startswith("#") else (ROOT / target).exists(), target


# --- the examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says_as_often_as_it_is_run(example: Path, folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse(example.read_text()))
    assert docstring is not None
    claimed = [line.strip() for line in docstring.rsplit("prints\n", 1)[1].strip().splitlines()]
    for _ in range(2):
        assert run(sys.executable, "-W", "error", str(example)).splitlines() == claimed


def test_the_example_of_tests_passes_under_pytest(folder: Path) -> None:
    assert "4 passed" in run(sys.executable, "-m", "pytest", "-W", "error", str(ROOT / "examples" / "testing_tasks.py"))
    assert not (folder / ".millstream").exists()


# --- the demo's last words --------------------------------------------------------------------------------------------


def test_what_the_demo_says_to_type_next_works(folder: Path) -> None:
    (folder / "tasks.py").write_text(FIRST_APP)
    ask = "from tasks import hello; print(hello.enqueue_sync('you').result_sync(timeout=10))"
    with serving("millstream", "worker", "tasks:app"):
        assert run("python", "-c", ask) == "Hello, you!\n"
