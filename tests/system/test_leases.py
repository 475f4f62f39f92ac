"""A long handler runs once, whatever it does with its time, while another worker watches and later jobs run elsewhere.

``MILLSTREAM_LONG=40`` sets the length of the long handlers to 40 seconds. The default is 5.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter

import pytest

from tests.system.apps import jobs
from tests.system.harness import Ledger, Workers, state, totals, until_done

LONG = float(os.environ.get("MILLSTREAM_LONG", "5"))
"""Seconds: several leases, and longer than it takes for an unrenewed lease to lapse."""

LEASE = 2.0
BEHIND = 500
CONCURRENCY = 8
HELD = 4 * CONCURRENCY
"""The most jobs that a blocked process may have claimed: those in its slots, and a few ahead of them."""

TASKS = {"coroutine": jobs.nap, "blocked_loop": jobs.block, "held_gil": jobs.backtrack}


@pytest.mark.parametrize("kind", TASKS)
def test_a_long_handler_runs_once_while_a_second_worker_checks_leases(ledger: Ledger, workers: Workers, kind: str) -> None:
    """Jobs behind the long handler run elsewhere, except the few that its process had already claimed."""
    pair = workers.start_pair("--concurrency", str(CONCURRENCY), lease=LEASE)
    (job, *_) = jobs.app.enqueue_many_sync(
        [TASKS[kind].bind("long", LONG), *(jobs.note.bind(f"note-{i}") for i in range(BEHIND))]
    )
    until_done(BEHIND + 1, within=60 + 3 * LONG)
    assert ledger.runs() == Counter({"long": 1} | {f"note-{i}": 1 for i in range(BEHIND)})
    assert {line.crashes for line in ledger.starts()} == {0}
    assert (totals()["lapsed"], totals()["retried"], totals()["dead"]) == (0, 0, 0)
    assert state().consumers == 2
    (began,), (ended,) = ledger.starts("long"), ledger.ends("long")
    assert ended.at - began.at > 0.9 * LONG
    meanwhile = [line for line in ledger.ends("note-") if line.at < ended.at]
    print(f"{kind}: {ended.at - began.at:.1f} s; of {BEHIND} jobs behind it {BEHIND - len(meanwhile)} waited for its end")
    if kind == "coroutine":
        assert len(meanwhile) == BEHIND
    else:
        assert began.pid not in {line.pid for line in meanwhile}
        assert len(meanwhile) >= BEHIND - HELD
    if kind == "blocked_loop":
        (log,) = (worker.log for worker in pair if worker.child == began.pid)
        assert f"by task 'block' (job {job.id})" in log
        assert log.count("the event loop has been blocked") == log.count("time.sleep(seconds)") == 1


def test_workers_with_different_leases_do_not_take_over_each_others_jobs(ledger: Ledger, workers: Workers) -> None:
    pair = [workers.launch("--concurrency", "1", lease=lease) for lease in (LEASE, 60)]
    for worker in pair:
        worker.until_ready()
    jobs.app.enqueue_many_sync(jobs.block.bind(f"long-{i}", LONG) for i in range(2))
    ledger.until_started(2)
    jobs.app.enqueue_many_sync(jobs.note.bind(f"note-{i}") for i in range(50))
    until_done(52, within=60 + 3 * LONG)
    assert ledger.runs() == Counter({"long-0": 1, "long-1": 1} | {f"note-{i}": 1 for i in range(50)})
    assert (totals()["lapsed"], state().consumers) == (0, 2)


def test_app_worker_keeps_its_lease_while_the_event_loop_is_blocked(ledger: Ledger, workers: Workers) -> None:
    inside = workers.run([sys.executable, "inside.py"], workers.environment(lease=LEASE))
    inside.until_ready()
    jobs.block.enqueue_sync("long", LONG)
    ledger.until_started()
    workers.start(lease=LEASE)
    until_done(1, within=60 + 3 * LONG)
    assert [(line.key, line.pid) for line in ledger.starts()] == [("long", inside.pid)]
    assert totals()["lapsed"] == 0
    inside.signal(signal.SIGTERM)
    assert inside.wait() == 0


def test_a_process_blocked_beyond_every_job_timeout_is_killed_and_its_job_redelivered(ledger: Ledger, workers: Workers) -> None:
    worker = workers.start(timeout=1, grace=0.5)
    jobs.wedge.enqueue_sync("wedge")
    until_done(1)
    assert [line.crashes for line in ledger.starts()] == [0, 1]
    assert "logging its stacks and killing it" in worker.log
    assert "in wedge" in worker.log


def test_a_job_with_its_own_longer_timeout_may_block_the_event_loop_that_long(ledger: Ledger, workers: Workers) -> None:
    workers.start(timeout=1, grace=0.5)
    jobs.block.options(timeout=60).enqueue_sync("long", 4)
    until_done(1)
    assert ledger.runs() == {"long": 1}
