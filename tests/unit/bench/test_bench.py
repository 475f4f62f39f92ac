"""The arithmetic of the benchmark: the tally of handled jobs, the figures computed from it, and the list of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.bench.figures import Measured, RowFailed, percentile
from millstream.bench.rows import ROWS, Row, select
from millstream.bench.run import Found
from millstream.bench.sizes import Sizes
from millstream.bench.tally import MARKS, Tally, mapped, say_up
from millstream.bench.workers import Workers
from millstream.cli.main import cli
from millstream.errors import UsageError


@pytest.fixture
def tally(tmp_path: Path) -> Iterator[Tally]:
    tally = Tally(tmp_path, 4)
    yield tally
    tally.close()


def mark(tally: Tally, *numbers: int) -> None:
    """Mark jobs as handled, as a worker process does."""
    with mapped(str(tally.folder / MARKS)) as marks:
        for number in numbers:
            marks[number] += 1


def test_a_tally_is_exact_if_every_job_was_marked_once(tally: Tally) -> None:
    mark(tally, 0, 1, 2, 3)
    assert (tally.complete, tally.count(), tally.share, tally.wrong()) == (True, 4, 1.0, "")


def test_a_tally_reports_lost_jobs_and_jobs_handled_twice(tally: Tally) -> None:
    mark(tally, 0, 1, 1, 3)
    assert (tally.complete, tally.count()) == (False, 3)
    assert tally.wrong() == "1 never handled, 1 handled more than once"


def test_a_tally_knows_which_processes_handled_jobs(tally: Tally) -> None:
    say_up(str(tally.folder))
    assert tally.processes() == [os.getpid()]


def test_a_worker_that_exits_fails_its_row_with_its_last_output(tmp_path: Path) -> None:
    with Workers([["sh", "-c", "echo no such app; exit 2"]], os.environ, tmp_path) as workers:
        for process in workers._processes:
            process.wait()
        with pytest.raises(RowFailed, match="a worker exited with code 2: no such app"):
            workers.check()


def test_the_memory_of_workers_includes_their_child_processes_and_none_outlives_the_row(tmp_path: Path) -> None:
    with Workers([["sh", "-c", "echo $$; sleep 600 & echo $!; wait"]], os.environ, tmp_path) as workers:
        while len(pids := [int(word) for word in workers.said().split()]) < 2:
            workers.check()
        resident = workers.resident()
        assert set(resident) == set(pids)
        assert all(size > 0 for size in resident.values())
    for pid in pids[:1]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(("percent", "expected"), [(50, 50.0), (99, 99.0), (100, 100.0), (1, 1.0)])
def test_a_percentile_is_a_value_that_this_share_does_not_exceed(percent: int, expected: float) -> None:
    assert percentile([float(n) for n in range(1, 101)], percent) == expected


def test_the_figure_of_a_row_is_the_median_of_its_rounds_and_errors_are_reported() -> None:
    rounds = [Measured(value, 10, 1.0, exact=not note, note=note) for value, note in ((3.0, ""), (1.0, "1 lost"), (2.0, ""))]
    found = Found(ROWS[0], rounds)
    assert (found.median(), found.wrong) == (2.0, ["1 lost"])
    assert Found(ROWS[0], failures=["no worker"]).median() is None


def test_rows_are_selected_by_name_or_prefix_in_their_own_order() -> None:
    assert [row.name for row in select("seq, drain")] == ["drain", "sequential"]
    with pytest.raises(UsageError, match="there is no row ''"):
        select("drain,")


def test_the_size_of_a_row_comes_from_a_probe_that_ran_long_enough() -> None:
    asked: list[int] = []

    def measure(row: Row, *, jobs: int, seconds: float) -> Measured:
        asked.append(jobs)
        return Measured(10_000.0, jobs, jobs / 10_000, True)

    sizes = Sizes(measure, 3.0)
    assert sizes.jobs(ROWS[0]) == 30_000
    assert asked == [500, 4_000]
    assert sizes.jobs(ROWS[0]) == 30_000 and len(asked) == 2


def test_the_help_names_every_row() -> None:
    (command,) = (each for each in cli.registered_commands if each.name == "bench")
    assert command.callback is not None
    (option,) = command.callback.__annotations__["rows"].split("separated by commas: ")[1:]
    assert option.startswith(", ".join(row.name for row in ROWS))
