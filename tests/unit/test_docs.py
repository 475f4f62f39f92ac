"""The reference pages are complete: every option, exception, reason, code, command and variable is in docs/."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from millstream import Batch, Millstream, RetryPolicy, Router, Topic, errors
from millstream.broker.why import WhyCode
from millstream.config import ToolSettings
from millstream.events.broadcast import BroadcastOptions
from millstream.events.dead_event import DeadOptions
from millstream.events.subscription import SubscribeOptions
from millstream.model.message import EventFields
from millstream.model.types import DeadReason
from millstream.options import CallOptions, TaskOptions
from millstream.url import SENTINEL_OPTIONS, TLS_OPTIONS, URL_OPTIONS, Scheme
from millstream.worker import codes

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "millstream"


@cache
def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@cache
def sections(name: str) -> dict[str, str]:
    """Return the text below each second-level heading of a page."""
    _, *parts = re.split(r"^## (.+)$", page(name), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def code_words(text: str) -> set[str]:
    """Return every word of the text that is marked as code: `delay`, `--to NAME`. Code blocks do not count."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {word for snippet in re.findall(r"`([^`\n]+)`", prose) for word in re.findall(r"--?[\w-]+|[\w+-]+", snippet)}


def first_cells(text: str) -> list[str]:
    """Return the code in the first cell of each table row of the section."""
    return re.findall(r"^\| `?([\w ]+?)`? \|", text, flags=re.MULTILINE)


def parameters(*functions: Callable[..., Any]) -> set[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        each.name
        for function in functions
        for each in inspect.signature(function).parameters.values()
        if each.name != "self" and each.kind not in kinds
    }


def field_names(*classes: type[Any]) -> set[str]:
    return {each.name for cls in classes for each in fields(cls)}


OPTIONS: dict[str, Iterable[str]] = {
    "App": parameters(Millstream),
    "Task": TaskOptions.__annotations__,
    "Call": CallOptions.__annotations__,
    "Retry policy": field_names(RetryPolicy),
    "Queue": parameters(Millstream.queue),
    "Topic": parameters(Millstream.topic),
    "Subscription": {
        *parameters(Topic.subscribe, Millstream.subscribe_prefix),
        *SubscribeOptions.__annotations__,
        *field_names(Batch),
        *BroadcastOptions.__annotations__,
        *DeadOptions.__annotations__,
    },
    "Publish": ("id", "delay", "expires", "return_exceptions", *EventFields.__struct_fields__),
    "Router": parameters(Router),
    "Worker": parameters(Millstream.worker, Millstream.run, Millstream.scale),
    "URLs": (*get_args(Scheme), *URL_OPTIONS, *SENTINEL_OPTIONS, *TLS_OPTIONS),
    "pyproject": field_names(ToolSettings),
}


@pytest.mark.parametrize("section", OPTIONS)
def test_every_option_is_on_the_configuration_page(section: str) -> None:
    assert set(OPTIONS[section]) - code_words(sections("configuration.md")[section]) == set()


DECLARED: dict[str, Callable[..., Any]] = {"App": Millstream, "Topic": Millstream.topic, "Retry policy": RetryPolicy}


def defaults() -> Iterator[tuple[str, str, Any]]:
    for section, function in DECLARED.items():
        for each in inspect.signature(function).parameters.values():
            yield section, each.name, each.default


NUMBERS = [each for each in defaults() if isinstance(each[2], int | float) and not isinstance(each[2], bool)]


@pytest.mark.parametrize(("section", "option", "default"), NUMBERS)
def test_the_configuration_page_shows_the_default_of_every_numeric_option(section: str, option: str, default: float) -> None:
    (row,) = re.findall(rf"^\| `{option}` \|.*$", sections("configuration.md")[section], flags=re.MULTILINE)
    assert re.match(rf"{default:,.0f}\b", row.split("|")[3].strip())


def test_every_environment_variable_is_on_the_configuration_page() -> None:
    read = {
        name for path in SOURCE.rglob("*.py") for name in re.findall(r"(?<![A-Z_])MILLSTREAM_[A-Z_]*[A-Z]", path.read_text())
    }
    assert "MILLSTREAM_URL" in read
    assert read - code_words(sections("configuration.md")["Environment variables"]) == set()


def test_every_exception_is_on_the_errors_page() -> None:
    assert set(errors.__all__) - code_words(page("errors.md")) == set()


def test_every_dead_letter_reason_is_on_the_errors_page() -> None:
    listed = first_cells(sections("errors.md")["Dead-letter reasons"])
    assert listed == ["reason", *get_args(DeadReason)]


def test_every_why_code_is_on_the_errors_page() -> None:
    listed = first_cells(sections("errors.md")["Why a job is not running"])
    assert listed == ["code", *get_args(WhyCode)]


def test_every_doctor_check_is_on_the_errors_page() -> None:
    checks = {
        check
        for path in (SOURCE / "backends" / "redis").glob("*.py")
        for check in re.findall(r"Finding\(\s*\"(\w+)\"", path.read_text())
    }
    assert checks
    assert checks - code_words(sections("errors.md")["Doctor checks"]) == set()


def test_every_exit_code_of_a_worker_is_on_the_errors_page() -> None:
    known = sorted(value for value in vars(codes).values() if isinstance(value, int))
    of_worker = sections("errors.md")["Exit codes"].partition("Every other command")[0]
    assert first_cells(of_worker) == ["code", *map(str, known)]


# -- the command line ----------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, list[Any]]]:
    """Yield every command, as typed after ``millstream``, with its parameters."""
    root: Any = typer.main.get_command(import_module("millstream.cli.main").cli)
    for name, command in root.commands.items():
        if verbs := getattr(command, "commands", None):
            yield from ((f"{name} {verb}", inner.params) for verb, inner in verbs.items())
        else:
            yield name, command.params


COMMANDS = dict(commands())


def options_of(params: list[Any]) -> set[str]:
    return {each for param in params for each in (*param.opts, *param.secondary_opts) if each.startswith("-")}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_its_options_are_on_the_command_line_page(command: str) -> None:
    name = command.partition(" ")[0]
    assert re.search(rf"`(millstream )?{command}\b", sections("cli.md")[name])
    text = sections("cli.md")[name] + sections("cli.md")["Common options"]
    assert options_of(COMMANDS[command]) - code_words(text) == set()


def test_the_command_line_page_names_only_options_that_exist() -> None:
    known = {option for params in COMMANDS.values() for option in options_of(params)} | {"--help", "-h", "--version"}
    assert {word for word in code_words(page("cli.md")) if re.match(r"--?[a-zA-Z]", word)} - known == set()


@pytest.mark.parametrize("command", ["worker", "bench"])
def test_the_command_line_page_shows_the_default_of_every_numeric_option(command: str) -> None:
    for param in COMMANDS[command]:
        if isinstance(param.default, int | float) and not isinstance(param.default, bool):
            (row,) = re.findall(rf"^\| `{param.opts[0]}\b.*$", sections("cli.md")[command], flags=re.MULTILINE)
            assert f"{param.default:g}" in row.split("|")[3]
