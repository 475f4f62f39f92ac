"""A server that stalls, restarts, drops connections, loses data or refuses writes: no job is lost or run twice."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from millstream.errors import BrokerUnavailable
from tests.system.apps import jobs
from tests.system.harness import Ledger, Server, Worker, Workers, eventually, state, totals, until_done

LEASE = 1.0
STREAM = "{millstream:q:default}:s"


def load(gate: Path, naps: int = 200) -> Counter[str]:
    """Enqueue held and short jobs. Return the runs that the ledger must show at the end."""
    calls = [jobs.hold.bind(f"held-{i}", str(gate)) for i in range(4)]
    calls += [jobs.nap.bind(f"nap-{i}", 0.02) for i in range(naps)]
    jobs.app.enqueue_many_sync(calls)
    return Counter({f"held-{i}": 1 for i in range(4)} | {f"nap-{i}": 1 for i in range(naps)})


def until_running(ledger: Ledger) -> None:
    ledger.until_started(4, "held-")
    ledger.until_ended(20, "nap-")


def everything_ran_once(ledger: Ledger, wanted: Counter[str]) -> None:
    until_done(wanted.total())
    assert ledger.runs() == wanted
    assert {line.crashes for line in ledger.starts()} == {0}
    assert (totals()["dead"], totals()["retried"], totals()["lapsed"]) == (0, 0, 0)


# The second length exceeds every call timeout, so connections are closed and replies are lost.
@pytest.mark.parametrize("seconds", [LEASE + 2.5, LEASE + 6.5])
def test_a_server_stall_longer_than_the_lease_makes_no_job_run_twice(
    ledger: Ledger, gate: Path, workers: Workers, server: Server, seconds: float
) -> None:
    workers.start_pair("--concurrency", "8", lease=LEASE)
    wanted = load(gate)
    until_running(ledger)
    with server.stalled():
        time.sleep(seconds)  # the stall itself
    resumed = time.monotonic()
    jobs.note.enqueue_sync("after")
    eventually(lambda: ledger.ends("after"), "a job to run after the stall")
    print(f"a stall of {seconds:g} s: a new job ran {ledger.ends('after')[0].at - resumed:.2f} s after its end")
    gate.touch()
    everything_ran_once(ledger, wanted + Counter(["after"]))


def test_a_server_restart_loses_no_job_and_makes_no_job_run_twice(
    ledger: Ledger, gate: Path, workers: Workers, server: Server
) -> None:
    pair = workers.start_pair("--concurrency", "8", lease=LEASE)
    wanted = load(gate)
    until_running(ledger)
    server.kill()
    time.sleep(LEASE + 2)  # the outage itself
    server.start()
    started = time.monotonic()
    jobs.note.enqueue_sync("after")
    eventually(lambda: ledger.ends("after"), "a job to run after the restart")
    print(f"a restart: a new job ran {ledger.ends('after')[0].at - started:.2f} s after the server answered")
    gate.touch()
    everything_ran_once(ledger, wanted + Counter(["after"]))
    for worker in pair:
        says_once(worker, "the server is unreachable")
        says_once(worker, "the server is back")


def says_once(worker: Worker, what: str) -> None:
    eventually(lambda: what in worker.log, f"{what!r} to be logged")
    assert worker.log.count(what) == 1, f"{what!r} is not logged exactly once in:\n{worker.log}"


def test_repeated_connection_losses_lose_no_job_and_make_no_job_run_twice(
    ledger: Ledger, workers: Workers, server: Server
) -> None:
    workers.start_pair("--concurrency", "8", lease=LEASE)
    wanted = Counter({f"nap-{i}": 1 for i in range(400)})
    jobs.app.enqueue_many_sync(jobs.nap.bind(key, 0.02) for key in wanted)
    with server.client() as client:
        for breaks in range(1, 13):
            # Spares this connection. The inspector's connection in this process is killed too, and reconnects like the workers.
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            ledger.until_ended(breaks * 20)
    everything_ran_once(ledger, wanted)


def test_flushed_scripts_are_loaded_again(ledger: Ledger, workers: Workers, server: Server) -> None:
    workers.start()
    wanted = Counter({f"nap-{i}": 1 for i in range(200)})
    jobs.app.enqueue_many_sync(jobs.nap.bind(key, 0.02) for key in wanted)
    for flushes in range(1, 6):
        ledger.until_ended(flushes * 30)
        server.call("SCRIPT", "FLUSH")
    everything_ran_once(ledger, wanted)


def test_a_destroyed_consumer_group_is_recreated(ledger: Ledger, workers: Workers, server: Server) -> None:
    worker = workers.start()
    server.call("XGROUP", "DESTROY", STREAM, "g")
    wanted = Counter({f"note-{i}": 1 for i in range(50)})
    jobs.app.enqueue_many_sync(jobs.note.bind(key) for key in wanted)
    everything_ran_once(ledger, wanted)
    (line,) = [line for line in worker.log.splitlines() if "lost its consumer group" in line]
    assert "queue 'default' had lost its consumer group; it was recreated and continues from the beginning" in line


def test_jobs_wait_while_the_consumer_group_is_missing_and_no_worker_runs(
    ledger: Ledger, workers: Workers, server: Server
) -> None:
    wanted = Counter({f"note-{i}": 1 for i in range(50)})
    jobs.app.enqueue_many_sync(jobs.note.bind(key) for key in wanted)
    server.call("XGROUP", "DESTROY", STREAM, "g")
    workers.start()
    everything_ran_once(ledger, wanted)


def test_a_worker_keeps_working_after_flushall(ledger: Ledger, workers: Workers, server: Server) -> None:
    worker = workers.start()
    jobs.note.enqueue_sync("before")
    until_done(1)
    server.call("FLUSHALL")
    wanted = Counter({f"note-{i}": 1 for i in range(50)})
    jobs.app.enqueue_many_sync(jobs.note.bind(key) for key in wanted)
    until_done(50)
    assert ledger.runs("note-") == wanted
    assert worker.code is None
    assert jobs.app.inspector.queues_sync().count("default") == 1
    (line,) = [line for line in worker.log.splitlines() if "queue 'default' was missing on the server" in line]
    assert "it was recreated and continues from the beginning" in line


def test_workers_can_drain_a_server_whose_memory_is_full(ledger: Ledger, gate: Path, workers: Workers, server: Server) -> None:
    wanted = load(gate)
    server.call("CONFIG", "SET", "maxmemory", "1")
    for _ in range(2):
        workers.launch(lease=LEASE)
    with pytest.raises(BrokerUnavailable, match="out of memory"):
        jobs.note.enqueue_sync("refused")
    gate.touch()
    everything_ran_once(ledger, wanted)
    server.call("CONFIG", "SET", "maxmemory", "0")
    jobs.note.enqueue_sync("accepted")
    everything_ran_once(ledger, wanted + Counter(["accepted"]))


def test_a_worker_warns_about_a_server_that_may_evict_jobs(workers: Workers, server: Server) -> None:
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    worker = workers.start()
    assert "maxmemory-policy is 'allkeys-lru': when it is full, it may delete jobs" in worker.log


def test_outcomes_are_kept_while_the_server_refuses_writes(
    ledger: Ledger, gate: Path, workers: Workers, server: Server
) -> None:
    """A replica without a primary refuses every write. Once it is a primary again, outcomes of finished jobs are settled."""
    worker = workers.start("--concurrency", "8", lease=LEASE)
    wanted = load(gate)
    until_running(ledger)
    server.call("REPLICAOF", "127.0.0.1", "1")
    gate.touch()
    eventually(lambda: len(ledger.ends("held-")) == 4, "the held jobs to end")
    eventually(lambda: "no new job starts" in worker.log, "the worker to notice that it cannot settle")
    assert "replica: connect to the primary" in worker.log
    started = len(ledger.starts())
    time.sleep(LEASE + 2)  # the outage itself
    assert len(ledger.starts()) == started
    server.call("REPLICAOF", "NO", "ONE")
    everything_ran_once(ledger, wanted)
    assert state().consumers == 1
