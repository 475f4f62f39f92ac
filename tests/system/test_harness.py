"""The tools of these tests: what they read while other processes write is never half of something."""

from __future__ import annotations

import json
from pathlib import Path

from tests.system.harness import Ledger, whole_lines

LINE = json.dumps(["start", "a key", "an id", 1, 1, 0, 1.5]) + "\n"


def test_a_line_that_is_still_being_written_is_not_read_yet(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for written in range(len(LINE) + 1):
        ledger.path.write_text(LINE + LINE[:written])
        assert len(ledger.lines()) == (2 if written == len(LINE) else 1)


def test_a_character_that_is_still_being_written_is_not_read_yet(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("first\nmüller".encode()[:-4])
    assert whole_lines(path) == ["first"]


def test_a_file_that_nobody_has_written_yet_has_no_lines(tmp_path: Path) -> None:
    assert whole_lines(tmp_path / "log") == []
