"""Packaging: the contents of the wheel, the version, and reproducible installs."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from millstream.__main__ import main
from millstream._version import __version__

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "millstream"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    written = {path.relative_to(ROOT / "src").as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    written = {name for name in written if "__pycache__" not in name}

    assert {"millstream/py.typed", "millstream/backends/redis/lua/publish.lua"} < written
    assert written == {name for name in ZipFile(wheel).namelist() if name.startswith("millstream/")}


def test_the_wheel_contains_the_licence(wheel: Path) -> None:
    (name,) = (name for name in ZipFile(wheel).namelist() if name.endswith("/licenses/LICENSE"))
    assert ZipFile(wheel).read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_version_is_defined_in_one_place(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == metadata.version("millstream") == __version__


def test_the_command_millstream_is_installed(wheel: Path) -> None:
    with ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/entry_points.txt")]
        (line,) = [line for line in files.read(name).decode().splitlines() if line.startswith("millstream = ")]
    (command,) = metadata.entry_points(group="console_scripts", name="millstream")
    assert callable(command.load())
    assert metadata.EntryPoint("millstream", line.removeprefix("millstream = "), "console_scripts").load() is main


@pytest.mark.parametrize("module", ["millstream", "millstream.worker.supervisor.supervisor", "millstream.cli"])
def test_heavy_modules_are_not_imported_unless_they_are_needed(module: str) -> None:
    """Every worker has a supervisor process, and every command starts a new process, so both must import little."""
    code = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert module in loaded
    heavy = {"millstream.app", "millstream.client", "millstream.backends.memory", "millstream.worker.worker", "redis", "rich"}
    assert heavy & set(loaded) == set()


HIDE = """
import asyncio, importlib, logging, os, signal, ssl, subprocess, sys, tempfile  # which are there, in another form
import redis.asyncio, rich.console, typer
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))
for module, names in {
    os: ("fork", "geteuid", "getuid", "killpg", "register_at_fork", "setsid"),
    signal: ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGSTOP", "SIGUSR1", "SIGUSR2", "pthread_sigmask"),
}.items():
    for name in names:
        delattr(module, name)
import millstream
for name in millstream.__all__:
    getattr(millstream, name)
for name in ("errors", "logging", "testing", "backends.redis", "cli.main"):
    importlib.import_module("millstream." + name)
app = millstream.Millstream("memory://")

@app.task
def double(number: int) -> int:
    return 2 * number

print(double.enqueue_sync(21).status_sync())
"""


def test_without_posix_only_modules_the_package_can_be_imported_and_can_enqueue() -> None:
    done = subprocess.run([sys.executable, "-c", HIDE], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("ready\n", "")


def _pins(path: str) -> dict[str, Requirement]:
    lines = (ROOT / path).read_text().splitlines()
    return {canonicalize_name(pin.name): pin for pin in (Requirement(line) for line in lines if line and line[0] != "#")}


def test_the_benchmark_pins_no_package_a_second_time() -> None:
    assert not _pins("bench/requirements.txt").keys() & _pins("constraints.txt").keys()


def test_every_declared_dependency_is_pinned_within_its_range() -> None:
    pins = _pins("constraints.txt")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = declared["project"]
    wanted = [*project["dependencies"], *declared["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra

    for requirement in map(Requirement, wanted):
        if requirement.name != "millstream":
            (pin,) = pins[canonicalize_name(requirement.name)].specifier
            assert pin.operator == "=="
            assert requirement.specifier.contains(pin.version), f"{requirement} is pinned to {pin.version}"
