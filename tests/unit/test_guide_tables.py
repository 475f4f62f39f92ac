"""The tables of the guide in docs/ are complete: every option, status, reason and code of the source is listed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

from millstream.broker.why import WhyCode
from millstream.cli.main import cli
from millstream.events.subscription import SubscribeOptions
from millstream.model.policy import RetryPolicy
from millstream.model.types import DeadReason, Status
from millstream.options import CallOptions, TaskOptions
from millstream.reporting.problem import Problem
from millstream.worker import codes

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def first_cells(page: str, heading: str) -> set[str]:
    """Return every `word` in the first cells of the tables below a heading, up to the next heading of the same level."""
    text = (GUIDE / page).read_text()
    level = heading.partition(" ")[0]
    section = re.split(rf"^{level} ", text.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([\w-]+)", cell)} | {cell for cell in cells if cell.isdecimal()}


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("tasks.md", "### Options of a task", TaskOptions.__annotations__),
        ("tasks.md", "### Options of a call", CallOptions.__annotations__),
        ("retries.md", "## Choose a retry policy", [each.name for each in fields(RetryPolicy)]),
        ("retries.md", "## Reasons", get_args(DeadReason)),
        ("results.md", "## Statuses", get_args(Status)),
        ("events.md", "## Subscribe", set(SubscribeOptions.__annotations__) - {"on_failure", "max_pending_per_key"}),
        ("workers.md", "## Observe errors", {each.name for each in fields(Problem)} - {"address", "at", "worker"}),
        ("workers.md", "## Stop a worker", [str(code) for name, code in vars(codes).items() if name.isupper()]),
    ],
)
def test_a_table_of_the_guide_lists_every_name(page: str, heading: str, names: Iterable[str]) -> None:
    assert set(names) <= first_cells(page, heading)


def test_every_reason_why_a_job_is_not_running_is_explained() -> None:
    explained = first_cells("results.md", "## Why is my job not running?")
    ended_or_running = {"running", "done", "dead", "cancelled", "expired", "unknown"}
    assert explained == set(get_args(WhyCode)) - ended_or_running


def test_the_page_about_workers_lists_every_option_of_the_command() -> None:
    command: Any = get_command(cli)
    options = {option for each in command.commands["worker"].params for option in each.opts if option.startswith("-")}
    listed = first_cells("workers.md", "## Options")
    assert options - {"--help", "-h"} == {option for option in listed if option.startswith("-")}
