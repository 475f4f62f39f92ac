"""The table of bad days in the chaos report names only tests and cases that exist."""

from __future__ import annotations

import re
from pathlib import Path

from chaos.__main__ import TRIALS
from chaos.bad_days import ROWS
from chaos.cases import ALL

TESTS = Path(__file__).parents[2]


def test_every_test_and_case_named_in_a_row_exists() -> None:
    written = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert {test for row in ROWS for test in row.tests} - written == set()
    assert {case for row in ROWS for case in row.cases} - {case.name for case in ALL} - set(TRIALS) == set()


def test_every_case_belongs_to_a_row() -> None:
    held = {case for row in ROWS for case in row.cases}
    assert {case.name for case in ALL} - held == {"delay", "stall_network"}, "a slow network breaks no guarantee by itself"
