"""Finds each supported Python on this machine and installs the built wheel for it, for tests that run as a user would."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
"""The supported versions. Tests skip versions that this machine lacks."""

CACHE = ROOT / ".pytest_cache" / "interpreters"

BESIDE = ("pytest", "gunicorn", "django", "fastapi", "flask", "httpx2", "uvicorn")
"""Packages that the tests need in addition to Millstream: pytest, and the web frameworks of the documentation."""

COMMANDS = ("gunicorn", "flask", "uvicorn")
"""Commands of these packages. Those that pip installed belong to the environment of the dependencies, without Millstream."""


def find(version: str) -> str | None:
    """Return the interpreter of a version, on the PATH or from pyenv, or ``None``."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for candidate in (shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)):
        # pyenv puts a command on the PATH for every version; the command fails unless the version is selected
        if candidate is not None and _version(str(candidate)) == version:
            return str(candidate)
    return None


def environment(version: str, session: Path) -> Path:
    """Return the folder of an environment with this Python and the wheel. Made once per session; skips if Python is missing.

    Dependencies are kept between sessions, because installing them takes the most time.
    """
    python = find(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed here")
    folder = session / f"python{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with _alone(CACHE / "lock"):
        dependencies = _dependencies(python, version)
        if not (folder / "made").exists():
            subprocess.run([python, "-m", "venv", "--without-pip", "--clear", str(folder)], check=True)
            (_packages(folder) / "dependencies.pth").write_text(f"{_packages(dependencies)}\n")
            _pip(folder, "install", "--no-deps", str(_wheel(session)))
            for command in COMMANDS:
                script = folder / "bin" / command
                script.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m {command} "$@"\n')
                script.chmod(0o755)
            (folder / "made").touch()
    return folder


def wheel(session: Path) -> Path:
    """Return the path of the wheel, which is built once per session."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with _alone(CACHE / "lock"):
        return _wheel(session)


def _version(python: str) -> str:
    say = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", say], capture_output=True, text=True)
    return done.stdout.strip().removeprefix("cpython ")


def _dependencies(python: str, version: str) -> Path:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["embedded"], *BESIDE]
    stamp = hashlib.sha256(json.dumps([wanted, (ROOT / "constraints.txt").read_text(), python]).encode()).hexdigest()
    folder = CACHE / version
    made = folder / "made"
    if not made.exists() or made.read_text() != stamp:
        subprocess.run([python, "-m", "venv", "--without-pip", "--clear", str(folder)], check=True)
        try:
            _pip(folder, "install", "--only-binary", ":all:", "--constraint", str(ROOT / "constraints.txt"), *wanted)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"Millstream's dependencies cannot be installed for Python {version}: {error.stderr}")
        made.write_text(stamp)
    return folder


def _wheel(session: Path) -> Path:
    folder = session / "wheel"
    if not list(folder.glob("*.whl")):
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _pip(folder: Path, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--quiet", "--no-input"]
    subprocess.run([*pip, *arguments], cwd=ROOT, check=True, capture_output=True, text=True)


def _packages(folder: Path) -> Path:
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one pytest process at a time run the block."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
