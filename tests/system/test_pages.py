"""What the README and the pages in docs/ tell a reader to type works as written, on every interpreter found here."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from redis.asyncio import Redis

from millstream.backends.embedded import data_folder, stop_server
from millstream.backends.embedded.folder import socket_path
from tests.system.harness import eventually, whole_lines

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0

PIECE = re.compile(r"^```(\w*)\n(.*?)^```$|Run `(\w+\.py)` again", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"print\(.*\)  # (.*)")


class Block(NamedTuple):
    kind: str
    """Its language; "again" if the text says to run a file again."""
    file: str
    """The file it belongs to, "" if it says none."""
    text: str

    @property
    def more(self) -> bool:
        """Whether it is added to a file that is there."""
        return self.text.startswith(f"# {self.file}, continued\n")


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    for kind, text, again in PIECE.findall((ROOT / page).read_text()):
        named = re.match(r"# (\w+\.py)(?:, continued)?\n", text)
        found.append(Block("again", again, "") if again else Block(kind, named[1] if named else "", text))
    return found


class Reader:
    """Somebody in a new folder with two terminals: one for the worker, one to run files in."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("MILLSTREAM_", "PYTHON"))}
        self.environment["PATH"] = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        self._worker: subprocess.Popen[bytes] | None = None
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None and self._worker.poll() is None:  # the test failed
            for number in (signal.SIGTERM, signal.SIGQUIT):
                self._worker.send_signal(number)
            self._worker.wait(PATIENCE)
            print((self.folder / "log").read_text())
        stop_server(self.folder / ".millstream")

    def types(self, *command: str) -> str:
        """What a command prints. It must succeed, and print nothing else: no warning, no traceback."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        # Whoever needs the embedded server first starts it, and says so where no terminal is attached.
        said = [line for line in done.stderr.splitlines() if not line.startswith("started an embedded server")]
        assert (done.returncode, said) == (0, []), done.stdout + done.stderr + self.log
        return done.stdout

    def starts(self, command: str) -> None:
        """A worker. What handlers print goes to a terminal line by line, and so it does here."""
        environment = self.environment | {"PYTHONUNBUFFERED": "1"}
        with (self.folder / "printed").open("ab") as printed, (self.folder / "log").open("ab") as log:
            self._worker = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=log,
            )

    def stops(self) -> None:
        assert self._worker is not None
        self._worker.send_signal(signal.SIGTERM)
        assert self._worker.wait(PATIENCE) == 0, self.log

    @property
    def log(self) -> str:
        return "\n".join(whole_lines(self.folder / "log"))

    def until_served(self, times: int) -> None:
        """Wait until a worker process has begun to serve for so many times."""
        eventually(lambda: self.log.count(" serves ") >= times, f"the worker to serve for the {times}th time", PATIENCE)

    def adds(self, block: Block) -> None:
        """Save more of the app, and see the worker reload it."""
        before = self.log.count(" serves ")
        with (self.folder / block.file).open("a") as file:
            file.write(f"\n\n{block.text}")
        self.until_served(before + 1)

    def sees(self, lines: list[str]) -> None:
        """The worker prints these lines, beginning with the first that was not seen yet."""

        def printed() -> list[str]:
            return whole_lines(self.folder / "printed")[self._read :]

        eventually(lambda: len(printed()) >= len(lines), f"the worker to print {lines}; it prints {printed()}", PATIENCE)
        assert sorted(printed()) == sorted(lines)
        self._read += len(lines)

    def follows(self, page: list[Block], app_file: str) -> None:
        """Everything on the page, in its order."""
        for block in page:
            if block.kind == "python" and block.file != app_file:
                (self.folder / block.file).write_text(block.text)
        for block in page:
            if block.kind == "text":
                self.sees(block.text.splitlines())
            elif block.kind == "console" and " worker " in block.text:
                self.starts(block.text.removeprefix("$ "))
                self.until_served(1)
            elif block.file == app_file and block.more:
                self.adds(block)
            elif block.file == app_file:
                (self.folder / block.file).write_text(block.text)
            elif block.file:
                text = (self.folder / block.file).read_text()
                assert self.types("python", block.file).splitlines() == PRINTED.findall(text), block.file


@pytest.fixture
def reader(bin_folder: Path) -> Iterator[Reader]:
    folder = Path(tempfile.mkdtemp(prefix="millstream-")).resolve()
    (folder / "pyproject.toml").touch()  # a project of its own
    with Reader(folder, bin_folder) as reader:
        yield reader
    shutil.rmtree(folder)


README = blocks("README.md")
FIRST_APP = [block for block in README if block.file in ("tasks.py", "send.py") and not block.more]
TOUR = [block for block in README if block.kind != "console" and block.file not in ("send.py", "test_tasks.py")]


def test_every_block_of_the_pages_says_which_file_it_belongs_to() -> None:
    for page in ("README.md", "docs/EVENTS.md", "docs/ORDER.md", "docs/SCALING.md"):
        assert [block.text for block in blocks(page) if block.kind == "python" and not block.file] == [], page
    assert {block.kind for block in README} == {"python", "console", "text", "again"}
    commands = [line for block in README for line in block.text.splitlines() if line.startswith("$ ")]
    assert commands[:6] == [
        "$ make demo",
        "$ make test",
        '$ pip install "millstream[embedded]"',
        "$ millstream worker tasks:app",
        "$ python send.py",
        "$ millstream worker tasks:app --reload",
    ]


def test_the_first_app_is_under_15_lines_and_works_as_written(reader: Reader) -> None:
    assert sum(len(block.text.split("\n", 1)[1].strip().splitlines()) for block in FIRST_APP) < 15
    for block in FIRST_APP:
        (reader.folder / block.file).write_text(block.text)
    reader.starts("millstream worker tasks:app")
    reader.until_served(1)
    assert reader.types("python", "send.py") == "Hello, world!\n"
    reader.stops()
    assert "serving 'default': tasks greet" in reader.log


def test_the_tour_prints_what_it_says_to_a_reader_who_types_it(reader: Reader) -> None:
    (start,) = (block for block in README if "--reload\n" in block.text and block.kind == "console")
    reader.follows([TOUR[0], start, *TOUR[1:]], "tasks.py")
    reader.stops()


def test_the_test_in_the_readme_passes_with_the_whole_tour(reader: Reader) -> None:
    for block in README:
        if block.file in ("tasks.py", "billing.py", "test_tasks.py"):
            with (reader.folder / block.file).open("a") as file:
                file.write(f"\n\n{block.text}")
    assert "1 passed" in reader.types("python", "-m", "pytest", "-W", "error", "test_tasks.py")
    assert not (reader.folder / ".millstream").exists()


@pytest.mark.parametrize("page", ["docs/EVENTS.md", "docs/ORDER.md"])
def test_a_page_prints_what_it_says_to_a_reader_who_types_it(page: str, reader: Reader) -> None:
    found = blocks(page)
    start = Block("console", "", "$ millstream worker shop:app --reload\n")
    assert start.text.strip("$ \n") in (ROOT / page).read_text()
    reader.follows([found[0], start, *found[1:]], "shop.py")
    reader.stops()


def test_a_publisher_as_on_the_page_about_order_keeps_the_order(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block that does without Millstream, given a connection to the server."""
    for block in blocks("docs/ORDER.md"):
        if block.kind == "python":
            with (reader.folder / block.file).open("a") as file:
                file.write(f"\n\n{block.text}")
    spec = importlib.util.spec_from_file_location("elsewhere", reader.folder / "elsewhere.py")
    assert spec is not None and spec.loader is not None
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    monkeypatch.chdir(reader.folder)
    reader.starts("millstream worker shop:app")
    reader.types("python", "publish.py")

    async def main() -> None:
        redis = Redis(unix_socket_path=socket_path(data_folder()))
        await elsewhere.publish_from_elsewhere(redis, 8, {"number": 3, "customer": "ada"}, 1_767_225_600_000)
        await redis.aclose()

    asyncio.run(main())
    reader.sees([f"order {number} of ada, attempt 1" for number in (1, 2, 3)])
    reader.stops()


def test_the_page_about_scaling_works_as_written(reader: Reader) -> None:
    for block in [*FIRST_APP, *blocks("docs/SCALING.md")]:
        if block.kind == "python":
            (reader.folder / block.file).write_text(block.text)
    command = "millstream worker tasks:app --processes 1..4 --strategy strategies:nights_off"
    assert command in (ROOT / "docs" / "SCALING.md").read_text()
    reader.starts(command)
    reader.until_served(1)
    (said,) = (PRINTED.findall(block.text) for block in blocks("docs/SCALING.md") if block.file == "scale.py")
    assert reader.types("python", "scale.py").split(": ")[1:] == [f"{said[0].split(': ')[1]}\n"]
    reader.until_served(3)
    reader.stops()
    reader.starts("python serve.py")
    assert reader.types("python", "send.py") == "Hello, world!\n"
    reader.stops()
