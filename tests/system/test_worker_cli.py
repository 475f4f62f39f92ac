"""``millstream worker``: its exit codes, its options, and how it divides itself between queues."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos.trials.refusals import old_server
from millstream import Millstream
from tests.system.apps import jobs, logged
from tests.system.apps.factory import create_app
from tests.system.harness import APPS, Ledger, Server, Workers, eventually, running_server, state, totals, until_done

# -- exit codes ------------------------------------------------------------------------------------------------------------


def test_usage_and_import_errors_exit_with_2(workers: Workers) -> None:
    wrong = {
        ("nowhere:app",): "module 'nowhere' was not found",
        ("jobs:nothing",): "module 'jobs' has no attribute 'nothing'",
        ("jobs",): "does not name an app",
        ("jobs:note",): "not a Millstream app",
        ("factory:create_app",): "add --factory",
        ("factory:create_nothing", "--factory"): "returned a NoneType",
        ("jobs:app", "--log-level", "loud"): "log-level",
        ("jobs:app", "--max-memory", "much"): "takes a size like 500MB",
        ("broken:app",): "half an app",
        ("empty:app",): "no tasks",
        ("jobs:app", "--queue", "mail"): "does not declare 'mail'",
        ("jobs:app", "--concurrency", "0"): "concurrency",
        (): "no app is given",
    }
    launched = {arguments: workers.launch(*arguments, app=None) for arguments in wrong}
    for arguments, worker in launched.items():
        assert worker.wait() == 2, worker.log
        assert wrong[arguments] in worker.log


def test_a_different_number_of_shards_than_the_topic_has_exits_with_2(workers: Workers, server: Server) -> None:
    with_shards = Millstream(server.url)
    with_shards.topic("numbers", int, order_by=str, shards=2).publish_sync(1)
    worker = workers.launch(app="events:app")
    assert worker.wait() == 2, worker.log
    assert worker.log.count("topic 'numbers' has 2 shards, but this app declares none") == 1
    assert "millstream topics reshard numbers 0" in worker.log


def test_a_failing_lifespan_exits_with_1(workers: Workers) -> None:
    worker = workers.launch(app="failing:app")
    assert worker.wait() == 1
    assert "the database is not there" in worker.log


def test_a_wrong_password_exits_with_3_immediately(workers: Workers) -> None:
    with running_server("--requirepass", "right") as locked:
        worker = workers.launch(url=locked.url.replace("unix://", "unix://:wrong@"))
        assert worker.wait() == 3
    assert "refused this user" in worker.log
    assert "wrong@" not in worker.log


def test_a_server_of_version_5_exits_with_3_immediately(workers: Workers) -> None:
    with old_server() as url:
        worker = workers.launch(url=url)
        assert worker.wait() == 3
    assert worker.log.count("runs version 5.0.14; Millstream needs Redis 7.0 or newer, or Valkey") == 1


def test_a_server_that_does_not_speak_redis_exits_with_3(workers: Workers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = workers.launch(url=f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            assert worker.wait() == 3
    assert "does not speak the Redis protocol" in worker.log


@pytest.mark.skipif(not os.environ.get("MILLSTREAM_LONG"), reason="waits 30 s for the server; MILLSTREAM_LONG=40 runs it")
def test_a_missing_server_exits_with_3_after_30_seconds(workers: Workers, tmp_path: Path) -> None:
    began = time.monotonic()
    worker = workers.launch(url=f"unix://{tmp_path}/nobody")
    assert worker.wait(within=90) == 3
    assert time.monotonic() - began > 25


def test_a_worker_waits_for_a_server_that_starts_late(ledger: Ledger, workers: Workers, server: Server) -> None:
    jobs.note.enqueue_sync("early")
    server.kill()
    worker = workers.launch()
    eventually(lambda: "trying again" in worker.log, "the worker to find no server")
    server.start()
    until_done(1)
    assert ledger.runs() == {"early": 1}


# -- options ---------------------------------------------------------------------------------------------------------------


def test_grace_and_log_level_options_apply_to_an_app_from_a_factory(workers: Workers, ledger: Ledger, server: Server) -> None:
    worker = workers.launch("--factory", "--grace", "0", "--log-level", "warning", app="factory:create_app")
    app = create_app()
    with app.override(server.url):
        app.tasks["linger"].enqueue_sync("here")
    ledger.until_started()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 4, worker.log
    assert " INFO " not in worker.log and "at the end of the grace period" in worker.log


def test_an_app_that_configures_logging_itself_keeps_its_format(workers: Workers, server: Server) -> None:
    with logged.app.override(server.url):
        job = logged.greet.options(id="j1").enqueue_sync("Ada")
        worker = workers.launch("--burst", app="logged:app")
        assert worker.wait() == 0, worker.log
        assert job.status_sync() == "done"
    assert worker.log.splitlines().count("INFO|greet|j1|1|hello Ada") == 1
    child = [line for line in worker.log.splitlines() if " serves 'default'" in line]
    assert [line.split("worker ")[0] for line in child] == ["INFO|-|-|0|"]


def test_a_log_level_may_be_written_in_capitals(workers: Workers) -> None:
    worker = workers.launch("--burst", "--log-level", "WARNING")
    assert worker.wait() == 0, worker.log
    assert worker.log == ""


def test_a_factory_that_raises_exits_with_2_and_a_traceback(workers: Workers) -> None:
    worker = workers.launch("--factory", app="factory:create_badly")
    assert worker.wait() == 2
    assert "factory:create_badly could not be loaded" in worker.log
    assert "RuntimeError: no database" in worker.log


def test_a_worker_logs_its_queues_tasks_and_slots(workers: Workers) -> None:
    worker = workers.start("--queue", "default", "--queue", "other", "--concurrency", "3", "--threads", "2", processes=2)
    assert "serving 'default', 'other': tasks " in worker.log
    assert "2 processes with 3 coroutines and 2 threads each" in worker.log
    assert {tuple(info.queues) for info in jobs.app.inspector.workers_sync()} == {("default", "other")}
    assert {info.pid for info in jobs.app.inspector.workers_sync()} == set(worker.children())


def test_the_console_script_reads_its_app_from_the_environment(ledger: Ledger, workers: Workers) -> None:
    script = str(Path(sys.executable).with_name("millstream"))
    jobs.note.enqueue_sync("note")
    worker = workers.run([script, "worker", "--burst"], workers.environment() | {"MILLSTREAM_APP": "jobs:app"})
    assert worker.wait() == 0
    assert ledger.runs() == {"note": 1}


def test_the_url_option_overrides_the_url_of_the_app(ledger: Ledger, workers: Workers, server: Server) -> None:
    jobs.note.enqueue_sync("note")
    assert workers.launch("--burst", "--url", server.url, url="redis://127.0.0.1:1/0").wait() == 0
    assert ledger.runs() == {"note": 1}


def test_an_invalid_url_option_exits_with_2(workers: Workers) -> None:
    worker = workers.launch("--url", "reddis://nowhere")
    assert worker.wait() == 2
    (line,) = worker.log.splitlines()
    assert line.startswith("millstream: the scheme 'reddis' is not supported")


def test_a_burst_ends_when_nothing_is_ready_or_running(ledger: Ledger, workers: Workers) -> None:
    jobs.app.enqueue_many_sync(jobs.nap.bind(f"nap-{i}", 0.02) for i in range(100))
    dying = jobs.unspeakable.enqueue_sync("unspeakable")
    jobs.note.options(delay=600).enqueue_sync("later")
    worker = workers.launch("--burst", "--processes", "2", "--concurrency", "4")
    assert worker.wait() == 0
    assert ledger.runs("nap-") == Counter({f"nap-{i}": 1 for i in range(100)})
    assert (state().ready, state().running, ledger.starts("later")) == (0, 0, [])
    assert dying.status_sync() == "dead"


def test_a_burst_with_nothing_to_do_ends_immediately(workers: Workers) -> None:
    assert workers.launch("--burst").wait() == 0


def test_a_burst_continues_after_a_job_killed_its_process(ledger: Ledger, workers: Workers) -> None:
    jobs.app.enqueue_many_sync([jobs.bomb.bind("bomb"), *(jobs.note.bind(f"note-{i}") for i in range(10))])
    assert workers.launch("--burst", max_crashes=1).wait() == 0
    assert [dead.reason for dead in jobs.app.dead.list_sync()] == ["crashed"]
    assert totals()["done"] == 10


def test_a_burst_continues_after_a_server_restart(ledger: Ledger, gate: Path, workers: Workers, server: Server) -> None:
    jobs.app.enqueue_many_sync(jobs.hold.bind(f"held-{i}", str(gate)) for i in range(20))
    worker = workers.launch("--burst", "--concurrency", "4")
    ledger.until_started(4)
    server.kill()
    gate.touch()
    ledger.until_ended(4)
    eventually(lambda: "the server is unreachable" in worker.log, "the worker to log the outage")
    server.start()
    assert worker.wait() == 0
    assert (totals()["done"], state().ready) == (20, 0)


def test_a_burst_waits_for_jobs_of_other_workers_even_while_the_server_is_unreachable(
    ledger: Ledger, gate: Path, workers: Workers, server: Server
) -> None:
    workers.start("--queue", "default")
    jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started()
    burst = workers.start("--burst", "--queue", "default")
    server.kill()
    eventually(lambda: "the server is unreachable" in burst.log, "the burst to log the outage")
    server.start()
    eventually(lambda: "the server is back" in burst.log, "the burst to log the reconnect")
    assert burst.code is None
    gate.touch()
    assert burst.wait() == 0
    assert totals()["done"] == 1


def test_only_the_named_queues_are_served(ledger: Ledger, workers: Workers) -> None:
    jobs.note.enqueue_sync("default")
    jobs.other.enqueue_sync("other")
    assert workers.launch("--queue", "other", "--burst").wait() == 0
    assert ledger.runs() == {"other": 1}
    assert state().ready == 1


def test_reload_restarts_the_children_when_a_file_changes(ledger: Ledger, workers: Workers, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(APPS, project, ignore=shutil.ignore_patterns("__pycache__"))
    worker = workers.start("--reload", folder=project)
    first = worker.child
    jobs.note.enqueue_sync("old")
    until_done(1)
    source = (project / "jobs.py").read_text()
    (project / "jobs.py").write_text(
        source.replace("def note(key: str) -> str:\n", "def note(key: str) -> str:\n    key += '!'\n")
    )
    eventually(lambda: "jobs.py changed" in worker.log, "the change to be noticed")
    eventually(lambda: first not in worker.children(), "the old child to exit")
    jobs.note.enqueue_sync("new")
    until_done(2)
    assert ledger.runs() == {"old": 1, "new!": 1}
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_reload_waits_for_the_next_change_if_a_file_is_broken(ledger: Ledger, workers: Workers, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(APPS, project, ignore=shutil.ignore_patterns("__pycache__"))
    worker = workers.start("--reload", folder=project)
    source = (project / "jobs.py").read_text()
    (project / "jobs.py").write_text("this is no Python\n")
    eventually(lambda: "SyntaxError" in worker.log, "the broken file to be noticed")
    (project / "jobs.py").write_text(source)
    jobs.note.enqueue_sync("mended")
    until_done(1)
    assert worker.code is None


def test_a_reloaded_burst_continues_until_every_job_is_done(
    ledger: Ledger, gate: Path, workers: Workers, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(APPS, project, ignore=shutil.ignore_patterns("__pycache__"))
    jobs.hold.enqueue_sync("held", str(gate))
    jobs.app.enqueue_many_sync(jobs.note.bind(f"note-{i}") for i in range(5))
    worker = workers.launch("--burst", "--reload", "--concurrency", "1", "--queue", "default", folder=project, grace=60)
    ledger.until_started(1, "held")
    with (project / "jobs.py").open("a") as source:
        source.write("\n# a change\n")
    eventually(lambda: "is stopping: waiting for" in worker.log, "the change to be noticed")
    gate.touch()
    assert worker.wait() == 0
    assert ledger.runs() == {"held": 1} | {f"note-{i}": 1 for i in range(5)}
    assert state().ready == 0


# -- queues ----------------------------------------------------------------------------------------------------------------


def test_a_busy_queue_does_not_delay_another(ledger: Ledger, workers: Workers) -> None:
    """A worker with one slot: a job of the other queue starts after at most a few of the many."""
    jobs.app.enqueue_many_sync(jobs.nap.bind(f"nap-{i}", 0.01) for i in range(600))
    workers.start("--queue", "default", "--queue", "other", "--concurrency", "1")
    ledger.until_started(20, "nap-")
    sent = time.monotonic()
    jobs.other.enqueue_sync("other")
    ledger.until_ended(1, "other")
    print(f"beside a busy queue: a job of another ran {ledger.ends('other')[0].at - sent:.2f} s after it was enqueued")
    assert len(ledger.starts("nap-")) < 600
    assert state().ready > 0


def test_a_paused_queue_starts_no_job_until_it_is_resumed(ledger: Ledger, workers: Workers) -> None:
    workers.start("--queue", "default", "--queue", "other", "--concurrency", "4")
    jobs.app.enqueue_many_sync(jobs.nap.bind(f"nap-{i}", 0.02) for i in range(400))
    ledger.until_started(20)
    queue = jobs.app.queue("default")
    queue.pause_sync()
    paused = time.monotonic()
    eventually(lambda: state().running == 0, "all running jobs to end")
    last = max(line.at for line in ledger.starts())
    print(f"a pause: the last job started {last - paused:.2f} s after it")
    assert last - paused < 5
    started = len(ledger.starts())
    assert started < 400
    jobs.note.enqueue_sync("accepted")
    jobs.other.enqueue_sync("other")
    ledger.until_ended(1, "other")
    assert len(ledger.starts("nap-")) == started
    queue.resume_sync()
    until_done(401)
    assert ledger.runs("nap-") == Counter({f"nap-{i}": 1 for i in range(400)})
    assert {line.crashes for line in ledger.starts()} == {0}


def test_an_idle_worker_notices_a_pause(ledger: Ledger, workers: Workers) -> None:
    worker = workers.start("--queue", "default")
    jobs.app.queue("default").pause_sync()
    eventually(lambda: "queue 'default' is paused" in worker.log, "the pause to be noticed", within=10)
    jobs.note.enqueue_sync("waits")
    jobs.app.queue("default").resume_sync()
    until_done(1)
    assert "queue 'default' is resumed" in worker.log


def test_a_burst_on_a_paused_queue_ends(ledger: Ledger, workers: Workers) -> None:
    jobs.app.queue("default").pause_sync()
    jobs.note.enqueue_sync("waits")
    assert workers.launch("--burst").wait() == 0
    assert (state().ready, ledger.starts()) == (1, [])


def test_version_and_help_need_no_app() -> None:
    for option in ("--version", "--help"):
        answer = subprocess.run([sys.executable, "-m", "millstream", option], capture_output=True, text=True, timeout=30)
        assert answer.returncode == 0
        assert "millstream" in answer.stdout.lower()


# -- in the list of processes ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_worker_processes_have_recognisable_names_in_the_process_list(workers: Workers) -> None:
    worker = workers.start("--queue", "default", "--threads", "3", processes=2)
    shown = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1:-1] for pid in worker.family}
    assert shown == {
        worker.pid: ["-m", "millstream", "worker", "jobs:app"],
        **{child: ["-m", "millstream", "worker", "jobs:app", "child"] for child in worker.children()},
    }
    assert {Path(f"/proc/{pid}/comm").read_text() for pid in worker.family} == {"millstream\n"}


def test_a_program_started_by_a_handler_inherits_no_internal_environment_variable(workers: Workers) -> None:
    workers.start()
    seen = jobs.environment_of_a_program.enqueue_sync().result_sync(timeout=30)
    assert "LEDGER" in seen
    assert [name for name in seen if name.startswith("_MILLSTREAM")] == []
