"""Errors in a supervisor and deaths of worker processes reach the app's error observers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

from tests.system.apps import jobs
from tests.system.harness import Ledger, Server, Worker, Workers, eventually, until_done, whole_lines


class Told(NamedTuple):
    during: str
    kind: str
    text: str
    queue: str | None
    job: str | None
    crash: bool
    streak: int
    pid: int


def told(ledger: Ledger, during: str) -> list[Told]:
    lines = whole_lines(Path(f"{ledger.path}.problems"))
    return [found for line in lines if (found := Told(*json.loads(line))).during == during]


def start(workers: Workers, **settings: Any) -> Worker:
    worker = workers.launch(app="observed:app", **settings)
    worker.until_ready()
    return worker


def test_the_replacement_process_reports_the_death_of_a_process(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker = start(workers)
    job = jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started()
    victim = worker.child
    os.kill(victim, signal.SIGKILL)
    ledger.until_started(2)
    gate.touch()
    until_done(1)
    eventually(lambda: len(told(ledger, "reclaim")) == 2, "the death and the takeover to be reported")
    (death,) = [each for each in told(ledger, "reclaim") if each.job is None]
    (takeover,) = [each for each in told(ledger, "reclaim") if each.job is not None]
    assert death.text == f"worker process {victim} was killed by SIGKILL; 1 job that it held can be claimed again"
    assert (takeover.job, takeover.queue) == (job.id, "default")
    for each in (death, takeover):
        assert each.crash and each.kind == "WorkerCrashed" and each.pid == worker.child != victim


def test_a_child_reports_failed_renewals_of_its_supervisor(ledger: Ledger, workers: Workers, server: Server) -> None:
    worker = start(workers, lease=1.0)
    server.kill()

    def failed() -> list[Told]:
        return [each for each in told(ledger, "renew") if each.queue == "default"]

    eventually(lambda: len(failed()) >= 2, "renewals to fail")
    server.start()
    first, second = failed()[:2]
    assert {(each.kind, each.crash) for each in (first, second)} == {("BrokerUnavailable", False)}
    assert (first.streak, second.streak) == (1, 2)
    assert {first.pid, second.pid} == {worker.child}


def test_the_kill_of_a_wedged_process_is_reported(ledger: Ledger, workers: Workers) -> None:
    start(workers, timeout=1, grace=0.5)
    jobs.wedge.enqueue_sync("wedge")
    until_done(1)
    eventually(lambda: told(ledger, "handler"), "the wedged process to be reported")
    (wedged,) = told(ledger, "handler")
    assert wedged.crash and "has been blocked for" in wedged.text
