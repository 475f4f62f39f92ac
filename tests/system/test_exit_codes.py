"""The exit codes of a real ``millstream worker``, which scripts and orchestrators rely on, and the summary it logs."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.system.apps import jobs, sharded
from tests.system.harness import Ledger, Server, Workers, eventually, running_server, state, totals, until_done


def test_0_if_all_running_jobs_finished_even_if_some_died(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker = workers.start("--processes", "2", grace=60)
    jobs.app.enqueue_many_sync(jobs.note.bind(f"note-{i}") for i in range(20))
    jobs.unspeakable.enqueue_sync("dies")
    jobs.fail.enqueue_sync("fails")
    eventually(lambda: (totals()["done"], totals()["dead"]) == (20, 2), "all jobs to end")
    jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started(1, "held")
    worker.signal(signal.SIGTERM)
    eventually(lambda: "is stopping: waiting for" in worker.log, "the worker to drain")
    gate.touch()
    assert worker.wait() == 0
    (line,) = [line for line in worker.log.splitlines() if " stopped: " in line and "worker" not in line]
    assert "stopped: 21 done, 2 retried, 2 dead" in line, "the sum of all processes, including jobs that ended during the drain"


def test_1_if_the_lifespan_fails(workers: Workers) -> None:
    worker = workers.launch(app="failing:app")
    assert worker.wait() == 1
    assert "the database is not there" in worker.log


def test_2_for_a_usage_error(workers: Workers) -> None:
    worker = workers.launch(app="nowhere:app")
    assert worker.wait() == 2
    assert "module 'nowhere' was not found" in worker.log


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("reddis://127.0.0.1:6379/0", "the scheme 'reddis' is not supported"),
        ("redis://127.0.0.1:6379/0?foo=1", "unknown option 'foo'"),
        ("embedded:///sys/millstream", "the embedded server in /sys/millstream cannot be used"),
        ("memory://", "memory:// exists only within one process"),
    ],
)
def test_2_and_one_line_for_a_url_that_can_never_work(workers: Workers, url: str, said: str) -> None:
    worker = workers.launch(url=url)
    assert worker.wait() == 2
    (line,) = worker.log.splitlines()
    assert said in line


def test_3_and_one_line_for_a_database_that_the_server_does_not_have(workers: Workers, server: Server) -> None:
    worker = workers.launch(url=f"{server.url}?db=9999")
    assert worker.wait() == 3
    (line,) = worker.log.splitlines()
    assert "DB index is out of range" in line


@pytest.mark.parametrize("passed", [1, 2])
def test_a_worker_waits_for_a_server_that_becomes_unreachable_during_its_start(
    workers: Workers, server: Server, passed: int
) -> None:
    with leading_through(server, passed=passed, refused=5) as url:
        worker = workers.launch(url=url)
        worker.until_ready()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


@contextmanager
def leading_through(server: Server, *, passed: int, refused: int) -> Iterator[str]:
    """A URL that leads to the server. After ``passed`` connections, all are cut and the next ``refused`` are refused."""
    path, ready, over = f"{server.path}-through", threading.Event(), threading.Event()
    connections = 0
    writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == passed + 1:
            for each in writers:
                each.transport.abort()
        if passed < connections <= passed + refused:
            writer.transport.abort()
            return
        there, back = await asyncio.open_unix_connection(server.path)
        writers.extend((writer, back))
        await asyncio.gather(carry(reader, back), carry(there, writer))

    async def serve() -> None:
        listener = await asyncio.start_unix_server(accept, path)
        ready.set()
        await asyncio.to_thread(over.wait)
        listener.close()
        for each in writers:
            each.transport.abort()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield f"unix://{path}"
    finally:
        over.set()
        thread.join()
    assert connections > passed + refused


def test_3_if_the_server_refuses_the_password(workers: Workers) -> None:
    with running_server("--requirepass", "right") as locked:
        worker = workers.launch(url=locked.url.replace("unix://", "unix://:wrong@"))
        assert worker.wait() == 3


def test_4_if_a_handler_outlasts_the_grace_period(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker = workers.start(grace=0.3)
    jobs.app.enqueue_many_sync(jobs.note.bind(f"note-{i}") for i in range(5))
    until_done(5)
    jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started(1, "held")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 4
    assert "stopped: 5 done, 0 retried, 0 dead, 1 interrupted" in worker.log, "jobs done before the deadline are counted"


def test_4_if_a_hanging_process_is_killed_and_its_jobs_are_released_immediately(
    ledger: Ledger, gate: Path, workers: Workers
) -> None:
    worker = workers.start("--queue", "default", grace=0.3)
    jobs.app.enqueue_many_sync(jobs.note.bind(f"note-{i}") for i in range(5))
    until_done(5)
    supervisor = jobs.app.inspector.supervisors_sync
    eventually(lambda: supervisor()[0].totals["done"] == 5, "the process to report its totals")
    jobs.block_until.enqueue_sync("held", str(gate))
    ledger.until_started(1, "held")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 4
    assert (state().ready, state().running, totals()["lapsed"]) == (1, 0, 0)
    assert "stopped: 5 done, 0 retried, 0 dead; 1 process killed" in worker.log, "the totals that it had reported are counted"
    gate.touch()
    assert workers.launch("--burst").wait() == 0
    assert [(line.attempt, line.crashes) for line in ledger.starts("held")] == [(1, 0), (1, 0)], "no crash is counted"


def test_4_if_a_handler_was_interrupted_before_the_process_was_killed(ledger: Ledger, gate: Path, workers: Workers) -> None:
    environment = workers.environment(grace=0.1) | {"SLOW": "end"}
    worker = workers.run([sys.executable, "-m", "millstream", "worker", "slow:app"], environment)
    worker.until_ready()
    jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started(1, "held")
    worker.signal(signal.SIGTERM)
    eventually(lambda: "slow to end" in worker.log, "the lifespan to reach its slow part")
    assert worker.wait() == 4
    assert "1 interrupted; 1 process killed" in worker.log


def test_0_if_the_killed_process_was_running_no_job(workers: Workers) -> None:
    environment = workers.environment(grace=600) | {"SLOW": "end"}
    worker = workers.run([sys.executable, "-m", "millstream", "worker", "slow:app"], environment)
    worker.until_ready()
    worker.signal(signal.SIGTERM)
    eventually(lambda: "slow to end" in worker.log, "the lifespan to reach its slow part")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "0 dead; 1 process killed" in worker.log


def test_0_if_a_lifespan_is_cancelled_during_a_slow_start(workers: Workers) -> None:
    environment = workers.environment(grace=600) | {"SLOW": "start"}
    worker = workers.run([sys.executable, "-m", "millstream", "worker", "slow:app"], environment)
    eventually(lambda: "slow to start" in worker.log, "the lifespan to reach its slow part")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "left at the start" in worker.log
    assert "killed" not in worker.log and "Traceback" not in worker.log


def test_4_after_a_second_signal(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker = workers.start(grace=600)
    jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started(1)
    worker.signal(signal.SIGTERM)
    eventually(lambda: "stopping" in worker.log, "the first signal to be handled")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 4
    eventually(lambda: state().ready == 1, "the job to be released")


def test_4_after_a_second_signal_at_most_once_events_of_a_shard_are_dead(
    ledger: Ledger, gate: Path, workers: Workers, server: Server
) -> None:
    worker = workers.launch(app="sharded:app", grace=600)
    with sharded.app.override(server.url):
        sharded.gates.publish_sync(str(gate))
        ledger.until_started(1)
        worker.signal(signal.SIGTERM)
        eventually(lambda: "stopping" in worker.log, "the first signal to be handled")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 4
        gate.touch()
        assert workers.launch("--burst", app="sharded:app").wait() == 0
        (dead,) = [dead for shard in range(2) for dead in sharded.app.dead.list_sync(queue=f"gates:{shard}/once")]
    assert dead.reason == "crashed"
    assert ledger.runs() == {"once": 1}


def test_4_after_sigquit_which_stops_immediately(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker = workers.start(grace=600)
    jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started(1)
    worker.signal(signal.SIGQUIT)
    assert worker.wait() == 4
    eventually(lambda: state().ready == 1, "the job to be released")


def test_sighup_stops_a_worker_like_sigterm(workers: Workers) -> None:
    worker = workers.start()
    worker.signal(signal.SIGHUP)
    assert worker.wait() == 0


def test_5_if_processes_die_as_soon_as_they_are_started(ledger: Ledger, workers: Workers) -> None:
    environment = workers.environment() | {"CRASHING": "import"}
    worker = workers.run([sys.executable, "-m", "millstream", "worker", "crashing:app", "--processes", "2"], environment)
    assert worker.wait(within=60) == 5
    assert worker.log.count("die right after their start") == 1


def test_sigusr1_logs_the_stacks_of_each_process_and_stops_nothing(gate: Path, ledger: Ledger, workers: Workers) -> None:
    worker = workers.start("--queue", "default", processes=4)
    jobs.block_until.enqueue_sync("held", str(gate))
    ledger.until_started()
    worker.signal(signal.SIGUSR1)
    eventually(lambda: worker.log.count("stacks of worker process") == 4, "the stacks to be logged")
    blocks = re.findall(r"stacks of worker process (\d+):\n((?:(?!20\d\d-).*\n)+)", worker.log)
    assert sorted(int(pid) for pid, _ in blocks) == worker.children()
    assert [text.count("in play") for _, text in blocks] == [1, 1, 1, 1], "each has a main thread"
    assert {int(pid) for pid, text in blocks if "in block_until" in text} == {ledger.starts()[0].pid}, (
        "also while it is blocked"
    )
    gate.touch()
    until_done(1)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
