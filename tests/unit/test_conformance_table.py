"""docs/conformance.md is consistent: every behaviour has a status, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from millstream.testing import BrokerContract

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "conformance.md"
FOLDERS = {name: ROOT / "tests" / name for name in ("unit", "integration", "contract", "system", "topologies")}
FOLDERS["promises"] = ROOT / "src" / "millstream" / "testing" / "promises"

SECTIONS = [
    *("1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7", "1.8", "1.9"),
    *("B.1.1", "B.1.2", "B.1.3", "B.1.4", "B.1.5", "B.1.6", "B.1.7", "B.1.8", "B.1.9"),
]
STANDINGS = ("shown", "differs", "later")
NEEDS_A_TEST = ("shown",)


def tables() -> dict[str, list[tuple[str, str]]]:
    """Return the rows of each section, by section number."""
    found: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.rpartition("(")[2].rstrip(")")
            found[section] = []
        elif line.startswith("| ") and not line.startswith("| behaviour |"):
            _, behaviour, here, _ = line.split("|")
            found[section].append((behaviour.strip(), here.strip()))
    return found


ROWS = [(section, *row) for section, rows in tables().items() for row in rows]


@cache
def written(path: Path) -> frozenset[str]:
    return frozenset(
        node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def named(here: str) -> list[tuple[str, str, str]]:
    """Return folder, file and name of each test that a row names."""
    found: list[tuple[str, str, str]] = re.findall(r"`(\w+)/(\w+)::(\w+)`", here)
    return found


def test_every_section_exists_and_is_not_empty() -> None:
    assert list(tables()) == SECTIONS
    assert all(tables().values())


@pytest.mark.parametrize(("section", "behaviour", "here"), ROWS)
def test_every_behaviour_has_a_status_and_names_existing_tests(section: str, behaviour: str, here: str) -> None:
    standing = next((word for word in STANDINGS if here.startswith(word)), None)
    assert standing is not None, f"{section}, {behaviour!r}: starts with none of {STANDINGS}"
    tests = named(here)
    assert here.count("::") == len(tests), "name a test as folder/file::name"
    assert tests or standing not in NEEDS_A_TEST
    assert tests or len(here) > len(standing) + 10, "a row without tests needs a reason"
    for folder, file, name in tests:
        paths = list(FOLDERS[folder].rglob(f"{file}.py"))
        assert any(name in written(path) for path in paths), f"{folder}/{file}::{name} does not exist"
        assert folder != "promises" or hasattr(BrokerContract, name), f"{name} is not a promise of the contract suite"
