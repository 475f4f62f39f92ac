"""Processes that die or freeze: their jobs run elsewhere, and no job is lost or settled twice."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

from tests.system.apps import jobs
from tests.system.harness import Ledger, Server, Workers, eventually, is_alive, state, totals, until_done

LEASE = 1.5


def fill(ledger: Ledger, gate: Path, count: int = 4) -> list[str]:
    """Enqueue jobs that run until the gate opens, and wait until all have started. Return their keys."""
    keys = [f"held-{i}" for i in range(count)]
    jobs.app.enqueue_many_sync(jobs.hold.bind(key, str(gate)) for key in keys)
    ledger.until_started(count, "held-")
    return keys


def second_starts(ledger: Ledger, keys: list[str]) -> dict[str, float]:
    """Return when each of these keys was started for the second time."""
    seen: set[str] = set()
    again: dict[str, float] = {}
    for line in ledger.starts():
        if line.key in keys and line.key in seen:
            again.setdefault(line.key, line.at)
        seen.add(line.key)
    return again


def test_a_job_that_kills_its_workers_dies_and_199_other_jobs_are_done(ledger: Ledger, workers: Workers) -> None:
    worker = workers.start()
    calls = [jobs.nap.bind(f"nap-{i}", 0.02) for i in range(199)]
    jobs.app.enqueue_many_sync([*calls[:100], jobs.bomb.bind("bomb"), *calls[100:]])
    eventually(lambda: state().dead == 1, "the bomb to be dead")
    until_done(199)
    (dead,) = jobs.app.dead.list_sync()
    assert (dead.task, dead.reason, dead.crashes, dead.attempts) == ("bomb", "crashed", 4, 1)
    assert ledger.runs("bomb") == {"bomb": 4}
    assert {line.key for line in ledger.ends("nap-")} == {f"nap-{i}" for i in range(199)}
    assert totals()["published"] == totals()["done"] + totals()["dead"] == 200
    assert worker.code is None


def test_the_jobs_of_a_killed_child_run_elsewhere_immediately(ledger: Ledger, gate: Path, workers: Workers) -> None:
    victim = workers.start("--concurrency", "4")
    keys = fill(ledger, gate)
    workers.start("--concurrency", "16")
    jobs.app.enqueue_many_sync(jobs.nap.bind(f"nap-{i}", 0.02) for i in range(300))
    ledger.until_started(50, "nap-")
    os.kill(victim.child, signal.SIGKILL)
    killed = time.monotonic()
    eventually(lambda: len(second_starts(ledger, keys)) == 4, "the killed child's jobs to run elsewhere", within=5)
    print(f"SIGKILL of a child: its jobs run elsewhere after {max(second_starts(ledger, keys).values()) - killed:.2f} s")
    gate.touch()
    until_done(304)
    assert {line.key: line.crashes for line in ledger.ends("held-")} == dict.fromkeys(keys, 1)
    assert totals()["dead"] == 0


def test_repeated_kills_of_children_lose_no_job(ledger: Ledger, workers: Workers) -> None:
    pair = workers.start_pair("--concurrency", "8", max_crashes=100)
    jobs.app.enqueue_many_sync(jobs.nap.bind(f"nap-{i}", 0.05) for i in range(400))
    for round in range(1, 5):
        ledger.until_ended(round * 70)
        victim = pair[round % 2]
        eventually(victim.children, "a child to kill")
        os.kill(victim.children()[0], signal.SIGKILL)
    until_done(400)
    assert {line.key for line in ledger.ends()} == {f"nap-{i}" for i in range(400)}
    assert totals()["published"] == totals()["done"] == 400


def test_the_jobs_of_a_killed_worker_run_elsewhere_after_its_lease(
    ledger: Ledger, gate: Path, workers: Workers, server: Server
) -> None:
    victim = workers.start("--concurrency", "4", lease=LEASE)
    keys = fill(ledger, gate)
    survivor = workers.start(lease=LEASE)
    victim.kill_all()
    killed = time.monotonic()
    eventually(lambda: len(second_starts(ledger, keys)) == 4, "the dead worker's jobs to run elsewhere", within=LEASE + 6)
    took = max(second_starts(ledger, keys).values()) - killed
    print(f"SIGKILL of a whole worker: its jobs run elsewhere after {took:.2f} s, {took - LEASE:.2f} s after its lease ended")
    gate.touch()
    until_done(4)
    assert {line.key: line.crashes for line in ledger.ends()} == dict.fromkeys(keys, 1)
    survivor.signal(signal.SIGTERM)
    assert survivor.wait() == 0
    stream, leases = "{millstream:q:default}:s", "{millstream:q:default}:leases"
    assert server.call("XINFO", "CONSUMERS", stream, "g") == []
    assert server.call("ZRANGE", leases, 0, -1) == []


def test_a_child_exits_after_its_supervisor_died(ledger: Ledger, gate: Path, workers: Workers) -> None:
    orphaned = workers.start("--concurrency", "4", lease=LEASE)
    keys = fill(ledger, gate)
    child = orphaned.child
    workers.start(lease=LEASE)
    os.kill(orphaned.pid, signal.SIGKILL)
    eventually(lambda: not is_alive(child), "the orphan to end itself", within=10)
    eventually(lambda: len(second_starts(ledger, keys)) == 4, "its jobs to run elsewhere")
    gate.touch()
    until_done(4)


def test_an_orphaned_child_exits_although_its_event_loop_is_blocked(ledger: Ledger, gate: Path, workers: Workers) -> None:
    orphaned = workers.start(lease=LEASE)
    jobs.block_until.enqueue_sync("blocked", str(gate))
    ledger.until_started()
    child = orphaned.child
    os.kill(orphaned.pid, signal.SIGKILL)
    eventually(lambda: not is_alive(child), "the orphan to end itself", within=10)


def test_a_worker_frozen_past_its_lease_has_its_outcome_refused_and_keeps_working(
    ledger: Ledger, gate: Path, workers: Workers
) -> None:
    """Both runs of the job end. The server counts the outcome of the second worker and refuses that of the frozen worker."""
    frozen = workers.start(lease=LEASE)
    jobs.block_until.enqueue_sync("blocked", str(gate))
    ledger.until_started()
    frozen.freeze()
    gate.touch()
    other = workers.start(lease=LEASE)
    until_done(1)
    frozen.thaw()
    ledger.until_ended(2)
    eventually(lambda: "outcomes refused by the server and dropped: 1 " in frozen.log, "its outcome to be refused")
    assert [(line.pid, line.crashes) for line in ledger.ends()] == [(other.child, 1), (frozen.child, 0)]
    assert totals()["done"] == totals()["published"] == 1
    other.signal(signal.SIGTERM)
    assert other.wait() == 0
    jobs.app.enqueue_many_sync(jobs.note.bind(f"after-{i}") for i in range(20))
    until_done(21)
    assert ledger.runs("after-") == Counter({f"after-{i}": 1 for i in range(20)})
    assert {line.pid for line in ledger.starts("after-")} == {frozen.child}
    assert (totals()["published"], totals()["lapsed"], totals()["dead"], totals()["retried"]) == (21, 1, 0, 0)


def test_the_runs_of_a_worker_frozen_past_its_lease_are_cancelled(ledger: Ledger, gate: Path, workers: Workers) -> None:
    frozen = workers.start("--concurrency", "4", lease=LEASE)
    keys = fill(ledger, gate)
    workers.start(lease=LEASE)
    frozen.freeze()
    eventually(lambda: len(second_starts(ledger, keys)) == 4, "the frozen worker's jobs to run elsewhere", within=LEASE + 6)
    frozen.thaw()
    eventually(lambda: len(ledger.lines("broken")) == 4, "the frozen worker's own runs to be cancelled")
    gate.touch()
    until_done(4)
    assert len(ledger.ends()) == totals()["done"] == totals()["published"] == 4


def test_an_at_most_once_job_never_runs_again_after_a_crash(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker = workers.start()
    jobs.once.enqueue_sync("once", str(gate))
    ledger.until_started()
    os.kill(worker.child, signal.SIGKILL)
    eventually(lambda: state("once").dead == 1, "the job to be dead")
    (dead,) = jobs.app.dead.list_sync(queue="once")
    assert (dead.reason, dead.crashes) == ("crashed", 1)
    assert ledger.runs() == {"once": 1}


def test_a_process_forked_by_a_dead_child_does_not_keep_its_jobs(ledger: Ledger, gate: Path, workers: Workers) -> None:
    workers.start()
    jobs.fork_and_die.enqueue_sync("fork", str(gate))
    try:
        until_done(1, within=15)
    finally:
        gate.touch()
    assert [line.crashes for line in ledger.starts()] == [0, 1]
