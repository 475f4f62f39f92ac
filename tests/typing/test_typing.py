"""The typed API: valid uses pass, and misuses fail on exactly the marked lines, in every type checker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
FILES = ("use.py", "bad.py")
Errors = dict[str, dict[int, str]]
"""The messages of a type checker, by file and line."""


def mypy(folder: Path) -> Errors:
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\nmypy_path = {SOURCE}\ncache_dir = {folder / 'cache'}\n")
    said = _run("mypy", "--config-file", str(folder / "mypy.ini"), "--no-error-summary", "--show-absolute-path", *FILES)
    found: Errors = {name: {} for name in FILES}
    for line in said.splitlines():
        match = re.match(r"(.+?):(\d+): error: (.*)", line)
        if match:
            found.setdefault(Path(match[1]).name, {})[int(match[2])] = match[3]
    return found


def pyright(folder: Path) -> Errors:
    return _pyright("pyright", folder)


def basedpyright(folder: Path) -> Errors:
    return _pyright("basedpyright", folder)


def _pyright(checker: str, folder: Path) -> Errors:
    settings = {
        "include": [os.path.relpath(HERE / name, folder) for name in FILES],
        "extraPaths": [str(SOURCE), str(HERE)],
        "typeCheckingMode": "strict",
        "reportUnusedExpression": False,
        "reportUnusedVariable": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    said = _run(checker, "-p", str(folder), "--pythonpath", sys.executable, "--outputjson")
    found: Errors = {name: {} for name in FILES}
    for problem in json.loads(said)["generalDiagnostics"]:
        if problem["severity"] == "error":
            line = problem["range"]["start"]["line"] + 1
            found.setdefault(Path(problem["file"]).name, {})[line] = problem["message"]
    return found


def _run(checker: str, *arguments: str) -> str:
    if find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    done = subprocess.run([sys.executable, "-m", checker, *arguments], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=[mypy, pyright, basedpyright], ids=["mypy", "pyright", "basedpyright"])
def errors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Errors:
    check: Callable[[Path], Errors] = request.param
    return check(tmp_path_factory.mktemp("typing"))


def test_every_documented_use_is_accepted(errors: Errors) -> None:
    assert errors["use.py"] == {}


def test_every_marked_misuse_is_an_error_and_no_other_line_is(errors: Errors) -> None:
    lines = (HERE / "bad.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, start=1) if "  # E " in line}
    assert len(marked) > 30
    assert {n: lines[n - 1] for n in marked - errors["bad.py"].keys()} == {}, "marked lines without an error"
    assert {n: said for n, said in errors["bad.py"].items() if n not in marked} == {}, "errors on unmarked lines"
