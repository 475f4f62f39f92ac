"""What the command line prints (values, columns) and when it asks for confirmation."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from millstream.cli.main import run
from millstream.cli.output import aligned, confirm
from millstream.cli.table import Column, fitted
from millstream.cli.text import ago, cell, iso, json_text, natural, unpacked
from millstream.errors import UsageError
from millstream.reporting.printable import block, line

NOON = datetime(2026, 7, 1, 12, 0, 0, 123_456, tzinfo=UTC)


def test_timestamps_are_utc_with_milliseconds() -> None:
    assert iso(NOON) == "2026-07-01T12:00:00.123Z"
    assert iso(NOON.astimezone(timezone(timedelta(hours=3)))) == "2026-07-01T12:00:00.123Z"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s ago"),
        (59, "59 s ago"),
        (90, "2 min ago"),
        (7200, "2 h ago"),
        (47 * 3600, "47 h ago"),
        (4 * 86_400, "4 d ago"),
        (-30, "in 30 s"),
        (-7200, "in 2 h"),
    ],
)
def test_elapsed_times_are_printed_for_people(seconds: float, said: str) -> None:
    assert ago(NOON, NOON.timestamp() + seconds) == said


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        (True, "yes"),
        (False, "no"),
        (1_234_567, "1234567"),
        (0.5, "0.5"),
        (["a", "b"], "a, b"),
        ({"done": 1000, "dead": 0}, "done 1000, dead 0"),
        (NOON, "2026-07-01T12:00:00.123Z"),
        ("two\nlines\tand \x1b[31mred", "two\\nlines and \\x1b[31mred"),
    ],
)
def test_every_value_prints_on_one_plain_line(value: Any, plain: str) -> None:
    assert cell(value, friendly=False) == plain


def test_numbers_have_thousands_separators_in_friendly_output() -> None:
    assert cell(1_234_567, friendly=True) == "1,234,567"


def test_control_characters_cannot_move_the_cursor_of_a_terminal() -> None:
    assert block("a\n\tb\x1b[2J\x9bK\r") == "a\n\tb\\x1b[2J\\x9bK\\x0d"
    assert line("a\nb") == "a\\nb"


def test_invisible_and_bidirectional_characters_are_escaped() -> None:
    assert line("user\u202efdp.exe") == "user\\u202efdp.exe"
    assert line("a\u200bb\ufeffc\u2066d\xade") == "a\\u200bb\\ufeffc\\u2066d\\xade"
    assert line("\U000e0041\u2028") == "\\U000e0041\\u2028"
    assert line("\udc80") == "\\udc80"
    assert line("naïve 日本 😀 שלום") == "naïve 日本 😀 שלום"


def test_ids_are_sorted_in_natural_order() -> None:
    assert sorted(["a-10", "a-2", "b-1", "a", "10", "9"], key=natural) == ["9", "10", "a", "a-2", "a-10", "b-1"]


def test_columns_are_aligned_and_not_truncated() -> None:
    rows = [{"id": "a", "n": 5}, {"id": "x" * 300, "n": 12345}]
    assert aligned(rows, [Column("id"), Column("n", number=True)]) == [
        "ID".ljust(300) + "      N",
        "a".ljust(300) + "      5",
        "x" * 300 + "  12345",
    ]


def plain(shown: str, text: str) -> str:
    return shown


def test_on_a_terminal_columns_share_the_available_width() -> None:
    columns = [Column("id"), Column("task", give="cut"), Column("n", number=True), Column("found", give="wrap")]
    rows = [["id", "task", "n", "found"], ["abc", "t" * 30, "1,234", "one two three four five six seven eight"]]
    assert list(fitted(rows, columns, 100, plain)) == [
        "id   task" + " " * 26 + "      n  found",
        "abc  " + "t" * 30 + "  1,234  one two three four five six seven eight",
    ]
    assert list(fitted(rows, columns, 50, plain)) == [
        "id   task" + " " * 9 + "      n  found",
        "abc  tttttttttttt…  1,234  one two three four five",
        " " * 27 + "six seven eight",
    ]


def test_an_id_is_never_truncated_on_a_narrow_terminal() -> None:
    rows = [["id", "task"], ["x" * 50, "t" * 50]]
    assert list(fitted(rows, [Column("id"), Column("task", give="cut")], 20, plain))[1] == "x" * 50 + "  ttttttttt…"


def test_columns_stay_aligned_with_wide_characters() -> None:
    rows = [["task", "queue"], ["日本", "a"], ["Ατλαντίς", "b"]]
    assert list(fitted(rows, [Column("task"), Column("queue")], 80, plain)) == [
        "task      queue",
        "日本      a",
        "Ατλαντίς  b",
    ]


def test_a_list_without_rows_prints_only_its_header() -> None:
    assert aligned([], [Column("id"), Column("n")]) == ["ID  N"]


def test_every_argument_value_can_be_printed_as_json() -> None:
    value = msgspec.msgpack.decode(msgspec.msgpack.encode({1: b"\x00", "when": NOON, "list": [None, 1.5]}))
    assert json.loads(json_text(value)) == {"1": "AA==", "when": "2026-07-01T12:00:00.123Z", "list": [None, 1.5]}


def test_values_that_are_not_msgpack_are_shown_as_bytes() -> None:
    assert unpacked(b"\xc1") == {"msgpack": "c1"}


# -- confirmation ----------------------------------------------------------------------------------------------------------


class Terminal:
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_destructive_command_requires_yes() -> None:
    with pytest.raises(UsageError, match="--yes"):
        confirm("Delete everything?", yes=False)


def test_yes_skips_the_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda question, err: asked.append(question))
    confirm("Delete everything?", yes=True)
    assert asked == []


def test_answering_no_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("typer.confirm", lambda question, err: False)
    with pytest.raises(Exception, match="nothing was changed"):
        confirm("Delete everything?", yes=False)


# -- arguments -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nonsense"], "No such command 'nonsense' (see millstream --help)"),
        (["jobs", "nonsense"], "No such command 'nonsense' (see millstream jobs --help)"),
        (["jobs", "--nonsense"], "No such option: --nonsense (see millstream jobs ls --help)"),
        (["jobs", "show"], "Missing argument 'ID' (see millstream jobs show --help)"),
        (["jobs", "--state", "done"], "--state done cannot be listed; the states are running, ready, blocked, scheduled, dead"),
        (["jobs", "--limit", "0"], "--limit"),
        (["dead", "--reason", "bored"], "--reason bored is unknown; the reasons are exhausted, rejected,"),
        (["queues", "--url", "memory://"], "memory:// exists only within one process"),
        (["queues", "--url", "nonsense"], "the URL has no scheme"),
        (["queues", "--namespace", "a:b", "--url", "redis://x"], "namespace may not contain"),
        (["enqueue", "t", "{"], "the arguments are not JSON"),
        (["enqueue", "t", "7"], "write one argument as [7]"),
        (["tasks", "no_such_module:app"], "module 'no_such_module' was not found"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_with_code_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLSTREAM_APP", raising=False)
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("millstream: ") and err.count("\n") == 1
    assert says in err


def test_help_exits_with_0_and_millstream_without_arguments_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    helped = capsys.readouterr().out
    assert run([]) == 2
    assert capsys.readouterr().out == helped
    for word in ("worker", "enqueue", "queues", "jobs", "dead", "workers", "tasks", "doctor", "demo"):
        assert f"\n  {word} " in helped


@pytest.mark.parametrize("noun", ["queues", "jobs", "dead", "workers"])
def test_the_help_of_a_noun_lists_its_verbs(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([noun, "--help"]) == 0
    assert "\n  ls " in capsys.readouterr().out


def test_the_help_of_a_noun_lists_the_options_it_accepts_without_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "--help"]) == 0
    options = capsys.readouterr().out.partition("Options of ls, the default command")[2]
    for option in ("--state", "--queue", "--task", "--limit", "--json", "--url", "--namespace"):
        assert option in options


def test_read_only_commands_do_not_start_an_embedded_server(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MILLSTREAM_URL", raising=False)
    monkeypatch.delenv("MILLSTREAM_HOME", raising=False)
    assert run(["queues"]) == 2
    assert "there are no queues yet in" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
