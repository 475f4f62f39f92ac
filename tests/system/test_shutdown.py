"""Stopping a worker: running jobs may finish, unstarted jobs run elsewhere immediately, and no crash is counted."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from millstream.jobs.task import AsyncTask
from tests.system.apps import jobs
from tests.system.harness import Ledger, Server, Workers, eventually, state, totals, until_done


def test_a_worker_stopped_under_load_exits_with_0_and_releases_unstarted_jobs(ledger: Ledger, workers: Workers) -> None:
    leaving, staying = (workers.launch("--concurrency", slots) for slots in ("4", "16"))
    leaving.until_ready()
    staying.until_ready()
    jobs.app.enqueue_many_sync(jobs.nap.bind(f"nap-{i}", 0.02) for i in range(600))
    ledger.until_started(100)
    leavers = set(leaving.children())
    asked = time.monotonic()
    leaving.signal(signal.SIGTERM)
    assert leaving.wait(within=25) == 0
    until_done(600)
    left = [line.at for line in ledger.starts() if line.at > asked and line.pid not in leavers]
    took = max(left) - asked
    print(f"SIGTERM under load: {totals()['released']} jobs released, the last of {len(left)} started after {took:.2f} s")
    assert took < 10
    assert ledger.runs() == Counter({f"nap-{i}": 1 for i in range(600)})
    assert {line.crashes for line in ledger.starts()} == {0}
    assert staying.code is None


def test_a_stopping_worker_finishes_running_jobs_and_starts_no_new_job(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker = workers.start("--concurrency", "4", grace=60)
    child = worker.child
    jobs.app.enqueue_many_sync(jobs.hold.bind(f"held-{i}", str(gate)) for i in range(4))
    ledger.until_started(4)
    worker.signal(signal.SIGTERM)
    eventually(lambda: "is stopping: waiting for" in worker.log, "the worker to drain")
    jobs.app.enqueue_many_sync(jobs.note.bind(f"late-{i}") for i in range(3))
    gate.touch()
    assert worker.wait() == 0
    assert [line.pid for line in ledger.ends("held-")] == [child] * 4
    assert ledger.starts("late-") == []
    assert (state().ready, state().running, totals()["done"]) == (3, 0, 4)


def test_jobs_buffered_behind_a_slow_job_move_to_an_idle_worker(ledger: Ledger, gate: Path, workers: Workers) -> None:
    """Thread jobs in a queue of coroutines: a worker learns only after the claim that it has no free thread for them."""
    busy = workers.start("--threads", "1")
    jobs.app.enqueue_many_sync(jobs.thread_hold.options(queue="other").bind(f"held-{i}", str(gate)) for i in range(5))
    ledger.until_started()
    idle = workers.launch("--threads", "4")
    eventually(lambda: len(ledger.starts()) == 5, "the buffered jobs to start elsewhere")
    gate.touch()
    until_done(5, "other")
    assert Counter(line.pid for line in ledger.starts()) == {busy.child: 1, idle.child: 4}
    assert {line.crashes for line in ledger.starts()} == {0}


def test_a_job_that_outlasts_the_grace_period_is_cancelled_and_released(ledger: Ledger, gate: Path, workers: Workers) -> None:
    """An at-most-once job is dead instead, because it had started."""
    worker = workers.start(grace=0.3)
    jobs.hold.enqueue_sync("held", str(gate))
    jobs.once.enqueue_sync("once", str(gate))
    ledger.until_started(2)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 4
    assert sorted((line.key, line.what) for line in ledger.lines()) == [
        ("held", "broken"),
        ("held", "start"),
        ("once", "broken"),
        ("once", "start"),
    ]
    is_dead(ledger, "once")
    runs_again(ledger, gate, workers)


def test_jobs_in_threads_that_outlast_the_grace_period_run_elsewhere(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker = workers.start(grace=0.3)
    jobs.thread_hold.enqueue_sync("held", str(gate))
    jobs.once_thread.enqueue_sync("once", str(gate))
    jobs.thread_note.enqueue_sync("note")
    eventually(lambda: totals("threads")["done"] == 1, "the third thread job to be done")
    ledger.until_started(3)
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 4
    print(f"threads that do not return: ended {time.monotonic() - began:.2f} s after SIGTERM, 0.3 s of it grace")
    is_dead(ledger, "once_threads")
    runs_again(ledger, gate, workers, "threads", done=2)


def test_a_second_signal_stops_the_worker_immediately_and_releases_its_jobs(
    ledger: Ledger, gate: Path, workers: Workers
) -> None:
    """An at-most-once job is dead instead, because it had started."""
    worker = workers.start(grace=600)
    jobs.hold.enqueue_sync("held", str(gate))
    jobs.once.enqueue_sync("once", str(gate))
    ledger.until_started(2)
    worker.signal(signal.SIGINT)
    eventually(lambda: "Ctrl-C again to stop now" in worker.log, "the first signal to be handled")
    worker.signal(signal.SIGINT)
    assert worker.wait() == 4
    is_dead(ledger, "once")
    runs_again(ledger, gate, workers)


@pytest.mark.parametrize("task", [jobs.block_until, jobs.once_blocking], ids=["handed_back", "at_most_once"])
def test_a_second_signal_stops_a_worker_whose_event_loop_is_blocked(
    ledger: Ledger, gate: Path, workers: Workers, task: AsyncTask[[str, str], None]
) -> None:
    worker = workers.start(grace=600)
    task.enqueue_sync("held" if task is jobs.block_until else "once", str(gate))
    ledger.until_started()
    worker.signal(signal.SIGTERM)
    eventually(lambda: "stopping" in worker.log, "the first signal to be handled")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 4
    if task is jobs.block_until:
        runs_again(ledger, gate, workers)
    else:
        is_dead(ledger, "once")


def runs_again(ledger: Ledger, gate: Path, workers: Workers, queue: str = "default", done: int = 1) -> None:
    """Check that the job ``held`` was released unchanged and ends on another worker, and that ``once`` never starts again."""
    eventually(lambda: state(queue).ready == 1, "the job to be released")
    assert state(queue).running == 0
    gate.touch()
    assert workers.launch("--burst").wait() == 0
    assert totals(queue)["done"] == done
    assert [(line.attempt, line.crashes) for line in ledger.starts("held")] == [(1, 0), (1, 0)]
    assert ledger.runs()["once"] <= 1
    assert (totals(queue)["dead"], totals(queue)["retried"], totals(queue)["lapsed"]) == (0, 0, 0)


def is_dead(ledger: Ledger, queue: str) -> None:
    """Check that the job ``once`` is dead and started only once."""
    (dead,) = jobs.app.dead.list_sync(queue=queue)
    assert (dead.id, dead.reason, dead.attempts, dead.crashes) == (ledger.starts("once")[0].job, "crashed", 1, 1)
    assert (state(queue).ready, state(queue).running, totals(queue)["done"]) == (0, 0, 0)


def test_app_run_handles_signals_like_the_worker_command(ledger: Ledger, gate: Path, workers: Workers) -> None:
    """``app.run()``: the first signal lets running jobs finish, the second releases them."""
    program = workers.run([sys.executable, "inside.py", "run"], workers.environment(grace=600))
    program.until_ready()
    jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started()
    program.signal(signal.SIGINT)
    eventually(lambda: "is stopping: waiting for running jobs (1)" in program.log, "the program to drain")
    program.signal(signal.SIGINT)
    assert program.wait() == 4
    assert "\n0 done, 0 retried, 0 dead, 1 interrupted\n" in program.log
    runs_again(ledger, gate, workers)


def test_a_clean_stop_removes_the_worker_from_the_server(ledger: Ledger, workers: Workers, server: Server) -> None:
    worker = workers.start("--queue", "default")
    jobs.app.enqueue_many_sync(jobs.note.bind(f"note-{i}") for i in range(10))
    until_done(10)
    assert state().consumers == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert jobs.app.inspector.workers_sync() == []
    assert state().consumers == 0
    assert server.call("XINFO", "CONSUMERS", "{millstream:q:default}:s", "g") == []
    said = [line.split(maxsplit=3)[3] for line in worker.log.splitlines()]
    assert [line.split()[0] for line in said] == ["serving", "worker", "stopping", "worker", "stopped:"], (
        "exactly one line per job"
    )


def test_a_worker_can_be_stopped_while_the_server_is_unreachable(ledger: Ledger, workers: Workers, server: Server) -> None:
    worker = workers.start("--queue", "default", grace=0.3)
    server.kill()
    worker.signal(signal.SIGTERM)
    assert worker.wait(within=60) == 0
    server.start()


def test_a_worker_can_be_stopped_at_any_moment_of_its_start(workers: Workers) -> None:
    """Before its signal handlers are installed, SIGTERM kills it like any program. From then on it shuts down cleanly."""
    starting = [(workers.launch(), time.monotonic() + 0.15 * i) for i in range(12)]
    for worker, when in starting:
        time.sleep(max(0.0, when - time.monotonic()))  # until this worker's moment
        worker.signal(signal.SIGTERM)
    assert {worker.wait() for worker, _ in starting} <= {0, -signal.SIGTERM}
    assert not any("was killed by" in worker.log for worker, _ in starting)
    assert jobs.app.inspector.workers_sync() == []


def test_a_worker_can_be_stopped_while_it_waits_for_its_server(workers: Workers, tmp_path: Path) -> None:
    worker = workers.launch(url=f"unix://{tmp_path}/nobody")
    eventually(lambda: "trying again" in worker.log, "the worker to find no server")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
