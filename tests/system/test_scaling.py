"""The number of worker processes changes: by a strategy, by a command, and after deaths."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from millstream.broker import Team
from millstream.errors import UsageError
from millstream.worker.supervisor.children.circuit import FRUITLESS
from tests.system.apps import jobs
from tests.system.harness import APPS, Ledger, Server, Worker, Workers, eventually, state, totals, until_done, whole_lines

QUICK = "backlog,target=1,poll=0.1,hysteresis=0.2,cooldown=0.5"
"""A strategy that decides within a second instead of half a minute."""

SLOW = "backlog,target=3600,hysteresis=3600"
"""A strategy that never changes anything by itself, for tests that scale by command."""


def millstream(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millstream", *arguments, "--url", server.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=APPS)


def until_processes(worker: Worker, count: int) -> None:
    eventually(lambda: len(worker.children()) == count, f"{count} processes; its log:\n{worker.log}")


def team(worker: Worker) -> Team:
    """Return the worker's scaling state, as its supervisor registered it."""
    (info,) = jobs.app.inspector.supervisors_sync()
    assert info.pid == worker.pid and info.team is not None
    return info.team


# -- by a strategy ---------------------------------------------------------------------------------------------------------


def test_a_worker_scales_up_under_load_and_down_when_idle_without_losing_jobs(ledger: Ledger, workers: Workers) -> None:
    worker = workers.launch("--processes", "1..4", "--strategy", QUICK, "--concurrency", "2", "--queue", "default")
    worker.until_ready()
    text = "1 to 4 processes with 2 coroutines and 8 threads each: 2 to 8 coroutines and 8 to 32 threads in total"
    assert text in worker.log
    jobs.app.enqueue_many_sync(jobs.nap.bind(f"nap-{i}", 0.05) for i in range(800))
    until_processes(worker, 4)
    until_done(800, within=90)
    until_processes(worker, 1)
    assert ledger.runs() == Counter({f"nap-{i}": 1 for i in range(800)})
    assert ledger.lines("broken") == []
    assert len({line.pid for line in ledger.starts()}) >= 4
    assert totals()["lapsed"] == 0
    eventually(lambda: team(worker).decisions["down"] >= 1, "the supervisor to register its decision")
    assert (team(worker).minimum, team(worker).maximum, team(worker).strategy) == (1, 4, QUICK)
    assert team(worker).decisions["up"] >= 1 and team(worker).decisions["hold"] >= 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "scaled up from 1 to " in worker.log and " waiting, " in worker.log
    assert "scaled down from " in worker.log
    assert "stopped: 800 done, 0 retried, 0 dead\n" in worker.log


def test_a_strategy_of_the_app_sets_the_number_of_processes(workers: Workers) -> None:
    own = "strategies:Two,poll=0.1,hysteresis=0,cooldown=0"
    worker = workers.launch("--processes", "1..3", "--strategy", own)
    until_processes(worker, 2)
    assert "scaled up from 1 to 2 processes" in worker.log


def test_a_strategy_that_raises_changes_nothing_and_is_logged(workers: Workers) -> None:
    worker = workers.launch("--processes", "1..3", "--strategy", "strategies:broken,poll=0.1")
    eventually(lambda: "RuntimeError: no idea" in worker.log, "the strategy's error to be logged")
    assert len(worker.children()) == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_an_invalid_strategy_or_range_is_refused(workers: Workers) -> None:
    wrong = {
        "fastest": "unknown strategy 'fastest'",
        "backlog,speed=2": "has no setting 'speed'",
        "nowhere:Strategy": "module 'nowhere' was not found",
        "strategies:nothing": "not a strategy",
    }
    launched = {text: workers.launch("--processes", "1..2", "--strategy", text) for text in wrong}
    launched["4..2"] = workers.launch("--processes", "4..2")
    wrong["4..2"] = "MIN must not exceed MAX; the value is '4..2'"
    for text, worker in launched.items():
        assert worker.wait() == 2, worker.log
        assert wrong[text] in worker.log


def test_a_burst_with_a_range_of_processes_ends(ledger: Ledger, workers: Workers) -> None:
    jobs.app.enqueue_many_sync(jobs.nap.bind(f"nap-{i}", 0.02) for i in range(200))
    worker = workers.launch("--burst", "--processes", "1..3", "--strategy", QUICK, "--concurrency", "2")
    assert worker.wait(within=60) == 0
    assert ledger.runs() == Counter({f"nap-{i}": 1 for i in range(200)})


# -- by a command ----------------------------------------------------------------------------------------------------------


def test_scaling_by_command_adds_processes_and_removes_only_idle_processes(
    ledger: Ledger, gate: Path, workers: Workers, server: Server
) -> None:
    worker = workers.launch("--processes", "1..3", "--strategy", SLOW, "--concurrency", "1", "--queue", "default")
    worker.until_ready()
    answer = millstream(server, "workers", "scale", "3")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.endswith("number of processes: 3 (before: 1)\n")
    worker.until_ready(3)
    jobs.app.enqueue_many_sync(jobs.hold.bind(f"held-{i}", str(gate)) for i in range(2))
    ledger.until_started(2)
    busy = {line.pid for line in ledger.starts()}
    assert len(busy) == 2

    def told(text: str) -> bool:
        return text in jobs.app.scale_sync(1)

    eventually(lambda: told("number of processes: 2; 1 more will end when idle"), "the idle process to stop")
    eventually(lambda: set(worker.children()) == busy, "the idle process to exit")
    assert ledger.lines("broken") == ledger.ends() == []
    gate.touch()
    until_processes(worker, 1)
    until_done(2)
    assert ledger.runs() == {"held-0": 1, "held-1": 1}
    (row, _) = json.loads(millstream(server, "workers", "--json").stdout)
    assert (row["processes"], row["of"], row["pid"]) == (1, "1..3", worker.pid)
    assert row["by_hand_until"] is not None
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_refused_scale_command_says_why(workers: Workers, server: Server) -> None:
    assert "no worker that can be scaled is running" in refusal(2)
    ranged, fixed = workers.launch("--processes", "1..2", "--strategy", SLOW), workers.launch("--processes", "1")
    ranged.until_ready()
    fixed.until_ready()
    eventually(lambda: len(jobs.app.inspector.supervisors_sync()) == 2, "both workers to register")
    ids = {info.pid: info.id for info in jobs.app.inspector.supervisors_sync()}
    assert "several workers are running: name one of " in refusal(2)
    assert "there is no worker 'nobody'" in refusal(2, "nobody")
    assert "3 is outside the bounds 1..2" in refusal(3, ids[ranged.pid])
    assert "0 is outside the bounds 1..2" in refusal(0, ids[ranged.pid])
    assert "was started with --processes 1; to scale it, start it with a range" in refusal(2, ids[fixed.pid])
    child = next(info for info in jobs.app.inspector.workers_sync() if info.supervisor == ids[ranged.pid])
    assert f"it is a process of worker {ids[ranged.pid]}: scale that" in refusal(2, child.id)
    answer = millstream(server, "workers", "scale", ids[ranged.pid], "3")
    assert answer.returncode == 2
    assert "3 is outside the bounds 1..2" in answer.stderr
    eventually(lambda: "manual request for 3 processes is refused: 3 is outside" in ranged.log, "the refusal to be logged")
    assert (len(ranged.children()), len(fixed.children())) == (1, 1)


@pytest.mark.parametrize("arguments", [("9" * 40,), ("9" * 9000,), ("2", "--hold", "1e18"), ("2", "--hold", "inf")])
def test_invalid_numbers_are_refused_in_one_line(server: Server, arguments: tuple[str, ...]) -> None:
    answer = millstream(server, "workers", "scale", *arguments)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1), answer.stderr


def refusal(processes: int, worker: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        jobs.app.scale_sync(processes, worker=worker)
    return str(caught.value)


def test_the_memory_backend_has_no_worker_to_scale() -> None:
    with jobs.app.override("memory://"):
        assert "memory:// exists only within one process" in refusal(2)


# -- after deaths ----------------------------------------------------------------------------------------------------------


def starts(ledger: Ledger) -> int:
    return len(whole_lines(Path(f"{ledger.path}.starts")))


@pytest.mark.parametrize("moment", ["import", "serve"])
def test_a_worker_gives_up_on_processes_that_die_as_soon_as_they_start(ledger: Ledger, workers: Workers, moment: str) -> None:
    environment = workers.environment() | {"CRASHING": moment}
    worker = workers.run([sys.executable, "-m", "millstream", "worker", "crashing:app"], environment)
    assert worker.wait(within=60) == 5
    assert starts(ledger) == FRUITLESS
    text = "die right after their start: 5 consecutive, the last with exit code 9; the worker stops"
    assert worker.log.count(text) == 1


def test_other_processes_keep_working_while_one_cannot_be_replaced(ledger: Ledger, workers: Workers, tmp_path: Path) -> None:
    """Two processes run. Then the app breaks and one dies. Its slot stays empty for a while; the other keeps working."""
    good = tmp_path / "good"
    good.touch()
    environment = workers.environment() | {"CRASHING": "import", "CRASHING_UNLESS": str(good)}
    command = [sys.executable, "-m", "millstream", "worker", "crashing:app", "--processes", "2"]
    worker = workers.run(command, environment)
    worker.until_ready(2)
    victim, survivor = worker.children()
    good.unlink()
    subprocess.run(["kill", "-9", str(victim)], check=True)
    eventually(lambda: "died right after their start" in worker.log, "the slot to be given up")
    assert starts(ledger) <= 2 + FRUITLESS
    assert worker.children() == [survivor]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can set the limits of another process")
def test_starting_a_process_is_retried_while_the_others_keep_working(ledger: Ledger, workers: Workers) -> None:
    worker = workers.start("--queue", "default", processes=2)
    victim, survivor = worker.children()
    limits = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(victim, signal.SIGKILL)
    text = "a worker process could not be started; trying again: [Errno 24]"
    eventually(lambda: text in worker.log, "the supervisor to run out of files")
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, limits)
    worker.until_ready(2)
    assert survivor in worker.children()
    jobs.note.enqueue_sync("note")
    until_done(1)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_consecutive_jobs_that_kill_their_processes_never_stop_the_worker(ledger: Ledger, workers: Workers) -> None:
    worker = workers.start("--queue", "default", max_crashes=1)
    bombs = FRUITLESS + 1
    for i in range(bombs):
        jobs.bomb.enqueue_sync(f"bomb-{i}")
        eventually(lambda: state().dead > i, f"bomb {i} to be dead", within=60)  # noqa: B023
    jobs.note.enqueue_sync("note")
    eventually(lambda: totals()["done"] == 1, "a later job to be done")
    assert {dead.reason for dead in jobs.app.dead.list_sync()} == {"crashed"}
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert f"{2 * bombs} processes crashed" in worker.log


# -- for external autoscalers ----------------------------------------------------------------------------------------------


def test_workers_wanted_needs_neither_a_worker_nor_an_app(server: Server) -> None:
    jobs.app.enqueue_many_sync(jobs.note.bind(f"note-{i}") for i in range(1000))
    answer = millstream(server, "workers", "wanted", "--window", "0", "--json")
    assert answer.returncode == 0, answer.stderr
    rows = {row["address"]: row for row in json.loads(answer.stdout)}
    assert (rows["default"]["wanted"], rows["default"]["ready"], rows["default"]["processes"]) == (7, 1000, 0)
    answer = millstream(server, "workers", "wanted", "--window", "0", "--strategy", "backlog,target=1", "--json")
    assert json.loads(answer.stdout)[0]["wanted"] == 32


def test_an_unusable_listen_address_is_refused_in_one_line(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = (f"127.0.0.1:{taken.getsockname()[1]}", ":99999", "nowhere.invalid:8080", "127.0.0.1:http")
        for place in places:
            answer = millstream(server, "workers", "wanted", "--serve", place)
            assert (answer.returncode, answer.stderr.count("\n")) == (2, 1), answer.stderr


def test_the_number_of_wanted_processes_is_served_over_http(server: Server) -> None:
    jobs.app.enqueue_many_sync(jobs.note.bind(f"note-{i}") for i in range(1000))
    command = [sys.executable, "-m", "millstream", "workers", "wanted", "--serve", "127.0.0.1:0", "--url", server.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stderr is not None
            url = serving.stderr.readline().split(" on ")[1].split()[0]

            def served() -> bool:
                try:
                    with urllib.request.urlopen(url, timeout=10) as response:
                        return bool(json.load(response)["default"]["wanted"] == 7)
                except urllib.error.HTTPError as error:
                    error.close()
                    assert error.code == 503
                    return False

            eventually(served, "the first measurement to end")
            with urllib.request.urlopen(f"{url}metrics", timeout=10) as response:
                assert 'millstream_processes_wanted{address="default"} 7' in response.read().decode()
        finally:
            serving.terminate()
