"""Replacing a worker process: after a number of jobs, or when it uses too much memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.worker.supervisor.recycling import too_small, worn

MB = 1_000_000


def process(*, ran: int = 0, held: int | None = 0, memory: int = 0, max_jobs: int = 0, max_memory: int = 0) -> Any:
    """Return the parts of a worker process that recycling reads."""
    orders = SimpleNamespace(max_jobs=max_jobs, max_memory=max_memory)
    child = SimpleNamespace(
        pid=7, hello=object(), told_to_stop=False, orders=orders, reported={"done": ran}, held=held, memory=memory
    )
    return SimpleNamespace(child=child, left=False)


@pytest.mark.parametrize("begun", [{"ran": 1}, {"held": 1}])
def test_a_process_that_uses_too_much_memory_is_replaced_once_it_has_started_a_job(begun: dict[str, int]) -> None:
    assert worn(process(memory=40 * MB, max_memory=MB, **begun)) == "it uses 40 MB (--max-memory 1MB)"
    assert too_small(process(memory=40 * MB, max_memory=MB, **begun)) == ""


@pytest.mark.parametrize("held", [0, None])
def test_a_process_that_uses_too_much_memory_before_its_first_job_is_kept_with_a_warning(held: int | None) -> None:
    idle = process(memory=40 * MB, max_memory=MB, held=held)
    assert worn(idle) == ""
    assert too_small(idle).startswith("worker process 7 uses 40 MB before its first job, more than --max-memory 1MB: ")


def test_a_process_within_its_limits_is_kept() -> None:
    within = process(ran=49, held=3, memory=MB, max_jobs=50, max_memory=MB)
    assert (worn(within), too_small(within)) == ("", "")
    assert worn(process(ran=50, max_jobs=50)) == "it has run 50 jobs (--max-jobs 50)"
