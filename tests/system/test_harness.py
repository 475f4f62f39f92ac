"""The harness never returns half a line or half a character while other processes write."""

from __future__ import annotations

import json
from pathlib import Path

from tests.system.harness import Ledger, whole_lines

LINE = json.dumps(["start", "a key", "an id", 1, 1, 0, 1.5]) + "\n"


def test_an_unfinished_line_is_not_returned(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for written in range(len(LINE) + 1):
        ledger.path.write_text(LINE + LINE[:written])
        assert len(ledger.lines()) == (2 if written == len(LINE) else 1)


def test_an_unfinished_character_is_not_returned(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("first\nmüller".encode()[:-4])
    assert whole_lines(path) == ["first"]


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert whole_lines(tmp_path / "log") == []
