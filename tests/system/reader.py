"""Follows a page of the documentation as a reader would: saves its files and types its commands, in an empty folder.

How blocks are read:

- ``python`` and ``toml`` blocks whose first line is ``# tasks.py`` create that file, ``# tasks.py, continued`` appends to it.
- In ``console`` blocks, a line that begins with ``$ `` is a command, and the lines below it are its output, where ``...``
  stands for any text.
- ``text`` blocks are what the worker prints at that point, in any order.
- Files under ``before/``, and ``before.py``, belong to other libraries and are only compiled.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from millstream.backends.embedded import stop_server
from tests.system.harness import eventually, whole_lines

PATIENCE = 90.0
"""Seconds to wait for anything on a page, on a loaded machine."""

SERVING = ("millstream worker ", "uvicorn ", "gunicorn ", "flask ", "python manage.py runserver", "python serve.py")
"""Commands that run until they are stopped, in a terminal of their own."""

SHOWN_ONLY = ("pip ", "make ", "docker ", "kubectl ", "systemctl ", "sudo ", "journalctl ", "git ", "helm ")
"""Commands that a test must not run: they change the machine, or need what it does not have."""

PRINTS_TO_STDERR = ("python manage.py ",)
"""Commands whose ordinary output goes to stderr. Any other command must leave it empty."""

BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LABEL = re.compile(r"# ([\w./-]+\.\w+)(, continued)?\n")
PORT = re.compile(r"(?:--port[ =]|runserver |127\.0\.0\.1:|localhost:)(\d{4,5})\b")
"""Ports of web servers on a page. A reader who follows it in a test uses free ones instead."""


class Block(NamedTuple):
    language: str
    file: str
    """The file it belongs to, or "" if its first line names none."""
    continued: bool
    """Whether the block is appended to a file that an earlier block created."""
    text: str

    @property
    def compiled_only(self) -> bool:
        return self.file.startswith("before")


class Command(NamedTuple):
    line: str
    output: str


def read_page(path: Path) -> list[Block]:
    """Return the blocks of a Markdown page, from top to bottom."""
    found: list[Block] = []
    for indent, language, text in BLOCK.findall(path.read_text()):
        text = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
        label = LABEL.match(text)
        found.append(Block(language, label[1] if label else "", bool(label and label[2]), text))
    return found


def commands(block: Block) -> list[Command]:
    """Return the commands of a block, none if it is no console, with the output that the page shows below each."""
    found: list[Command] = []
    if block.language != "console":
        return found
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, output = part.replace("\\\n", "").partition("\n")
        found.append(Command(line.split("  #")[0].strip(), output.strip()))
    return found


def matches(expected: str, output: str) -> bool:
    """Whether a command printed what the page shows; ``...`` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


class Reader:
    """Somebody in a new folder with several terminals: one for each command that serves, one for all others."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("MILLSTREAM_", "PYTHON"))}
        self.environment["PATH"] = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        self._serving: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        left = [process for _, process in self._serving if process.poll() is None]
        if left:  # the test failed
            print(self.log)
        for process in left:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGQUIT)
            process.wait(PATIENCE)
        stop_server(self.folder / ".millstream")

    def follow(self, page: list[Block]) -> None:
        """Do everything on the page, in its order. Fails at the first thing that is not as the page says."""
        served = [command.line for block in page for command in commands(block) if command.line.startswith(SERVING)]
        ports = {port: free_port() for line in served for port in PORT.findall(line)}
        for block in page:
            text = re.sub("|".join(ports) or r"(?!)", lambda match: str(ports[match[0]]), block.text)
            self._do(block._replace(text=text))

    def _do(self, block: Block) -> None:
        if block.language == "text":
            self.see(block.text.splitlines())
        elif block.language == "console":
            for command in commands(block):
                self.type(command)
        elif block.compiled_only:
            compile(block.text, block.file, "exec")
        elif block.file and block.language in ("python", "toml"):
            self.save(block)

    def save(self, block: Block) -> None:
        """Create or extend a file. A worker that runs with --reload has loaded it when this returns."""
        path = self.folder / block.file
        reloads = path.exists() and any("--reload" in line for line, _ in self._serving)
        before = self.log.count(" serves ")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if block.continued else "w") as file:
            file.write(f"\n\n{block.text}" if block.continued else block.text)
        if reloads:
            self.until_served(before + 1)

    def type(self, command: Command) -> None:
        """Type a command. It must succeed, and print what the page shows, and nothing to stderr: no warning, no traceback."""
        line, expected = command
        if line.startswith(SHOWN_ONLY):
            return
        if line.startswith("export "):
            self.environment |= dict(each.split("=", 1) for each in shlex.split(line)[1:])
            return
        if line.startswith(SERVING):
            self.start(line)
            return
        output = self.run(line)
        assert not expected or matches(expected, output), f"$ {line}\n{output}\ninstead of\n{expected}\n{self.log}"

    def run(self, line: str) -> str:
        """Run a command to its end and return what it prints."""
        done = subprocess.run(
            line,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        # The process that starts the embedded server says so if no terminal is attached.
        errors = [text for text in done.stderr.splitlines() if not text.startswith("started an embedded server")]
        if line.startswith(PRINTS_TO_STDERR):
            errors = []
        assert (done.returncode, errors) == (0, []), f"$ {line}\n{done.stdout}{done.stderr}{self.log}"
        return done.stdout

    def start(self, line: str) -> None:
        """Start a command that serves, and wait until it does."""
        # What handlers print goes to a terminal line by line, and so it does here.
        environment = self.environment | {"PYTHONUNBUFFERED": "1"}
        before = self.log.count(" serves ")
        with (self.folder / "printed").open("ab") as printed, (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                f"exec {line}",
                shell=True,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=log,
            )
        self._serving.append((line, process))
        ports = PORT.findall(line)
        if line.startswith("millstream worker "):
            self.until_served(before + 1)
        for port in ports:
            eventually(partial(answers, int(port)), f"{line} to answer:\n{self.log}", PATIENCE)

    def stop(self) -> None:
        """Stop everything that serves, as Ctrl-C would. Workers must end with 0."""
        for line, process in reversed(self._serving):
            process.send_signal(signal.SIGTERM)
            code = process.wait(PATIENCE)
            assert code == 0 or not line.startswith("millstream "), f"{line} ended with {code}\n{self.log}"
        self._serving.clear()

    @property
    def log(self) -> str:
        return "\n".join(whole_lines(self.folder / "log"))

    def until_served(self, times: int) -> None:
        """Wait until worker processes have started to serve this number of times."""
        eventually(lambda: self.log.count(" serves ") >= times, f"a worker to serve for the {times}th time", PATIENCE)

    def see(self, lines: list[str]) -> None:
        """Wait until the worker has printed these lines, after those already seen."""

        def printed() -> list[str]:
            return whole_lines(self.folder / "printed")[self._read :]

        eventually(lambda: len(printed()) >= len(lines), f"the worker to print {lines}; it prints {printed()}", PATIENCE)
        assert sorted(printed()) == sorted(lines)
        self._read += len(lines)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
