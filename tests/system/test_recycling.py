"""Worker processes are replaced after a number of jobs or above a memory limit; no job is lost, interrupted or run twice."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

from tests.system.apps import jobs
from tests.system.harness import Ledger, Workers, eventually, until_done


def test_processes_are_replaced_after_max_jobs_and_each_job_runs_once(workers: Workers, ledger: Ledger) -> None:
    worker = workers.start("--max-jobs", "50", processes=2)
    sent: list[str] = []

    def four_were_replaced() -> bool:
        more = [f"note-{len(sent) + i}" for i in range(100)]
        jobs.app.enqueue_many_sync(jobs.note.bind(key) for key in more)
        sent.extend(more)
        until_done(len(sent))
        return worker.log.count("is replaced: it has run") >= 4

    eventually(four_were_replaced, "four processes to be replaced")
    assert ledger.runs() == Counter(sent)
    assert len({line.pid for line in ledger.starts()}) > 2
    assert "killed" not in worker.log and "ERROR" not in worker.log


def test_a_replaced_process_finishes_its_running_job_beyond_the_grace_period(
    workers: Workers, ledger: Ledger, tmp_path: Path
) -> None:
    workers.start("--max-jobs", "5", "--grace", "0")
    gate = tmp_path / "gate"
    jobs.hold.enqueue_sync("long", str(gate))
    ledger.until_started(1, "long")
    (old,) = {line.pid for line in ledger.starts()}

    def another_serves() -> bool:
        jobs.note.enqueue_sync("note")
        return bool({line.pid for line in ledger.starts()} - {old})

    eventually(another_serves, "another process to be ready")
    gate.touch()
    ledger.until_ended(1, "long")
    assert [(line.pid, line.attempt, line.crashes) for line in ledger.starts("long")] == [(old, 1, 0)]
    eventually(lambda: not Path(f"/proc/{old}").exists(), "the old process to exit")


def test_a_stop_applies_the_grace_period_to_a_process_that_is_being_replaced(
    workers: Workers, ledger: Ledger, tmp_path: Path
) -> None:
    worker = workers.start("--max-jobs", "1", "--grace", "0")
    jobs.hold.enqueue_sync("long", str(tmp_path / "gate"))
    ledger.until_started(1, "long")
    jobs.note.enqueue_sync("note")
    eventually(lambda: "until they end" in worker.log, "the old process to drain")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 4, worker.log
    assert jobs.app.inspector.queue_sync("default").ready == 1, "the job was released"


def test_a_process_above_max_memory_is_replaced(workers: Workers, ledger: Ledger) -> None:
    worker = workers.start("--max-memory", "200MB")
    jobs.hoard.enqueue_sync("hoard", 300_000_000)
    until_done(1)
    eventually(lambda: "is replaced: it uses" in worker.log, "the process to be replaced")
    (old,) = {line.pid for line in ledger.starts()}
    eventually(lambda: not Path(f"/proc/{old}").exists(), "the old process to exit")
    jobs.note.enqueue_sync("note")
    until_done(2)
    assert ledger.runs() == {"hoard": 1, "note": 1}
    assert worker.log.count("is replaced") == 1


def test_a_process_above_max_memory_from_its_start_is_replaced_only_after_a_job(workers: Workers, ledger: Ledger) -> None:
    worker = workers.start("--max-memory", "1MB")
    eventually(lambda: "Raise --max-memory" in worker.log, "a warning")
    assert "is replaced: " not in worker.log
    jobs.note.enqueue_sync("note")
    eventually(lambda: "is replaced: it uses" in worker.log, "the process to be replaced")
    assert ledger.runs() == {"note": 1}
    assert worker.log.count("Raise --max-memory") == 1
