"""A worker as the first process of a container: it reaps orphaned processes, and every signal reaches it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.apps import jobs
from tests.system.harness import Ledger, Worker, Workers, eventually, is_alive, processes, totals, until_done

UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")


def may_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not may_unshare(), reason="this machine does not allow PID namespaces")


def start(workers: Workers, *arguments: str) -> tuple[Worker, int]:
    """Start a worker as PID 1 of a namespace. Return the worker and its pid outside the namespace."""
    command = [*UNSHARE, sys.executable, "-m", "millstream", "worker", "jobs:app", "--queue", "default", *arguments]
    worker = workers.run(command, workers.environment(grace=60))
    eventually(lambda: len(jobs.app.inspector.workers_sync()) >= 1, f"the worker to register; its log: {worker.log}")
    (first,) = [pid for pid, (parent, _) in processes().items() if parent == worker.pid]
    return worker, first


def test_pid_1_reaps_an_orphaned_process(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker, first = start(workers)
    supervised = {pid for pid, (parent, _) in processes().items() if parent == first}
    assert len(supervised) == 1, "PID 1 has one child of its own: the supervisor"
    jobs.fork_and_forget.enqueue_sync("forgets", str(gate))
    until_done(1)
    (orphan,) = eventually_left_to(first, supervised)
    assert is_alive(orphan)
    gate.touch()
    eventually(lambda: orphan not in processes(), "the orphan to be reaped instead of staying a zombie")
    worker_ends_with_0(worker, first)


def eventually_left_to(first: int, but: set[int]) -> set[int]:
    found: set[int] = set()

    def left() -> bool:
        found.update(pid for pid, (parent, _) in processes().items() if parent == first and pid not in but)
        return bool(found)

    eventually(left, "the orphan to become a child of PID 1")
    return found


def worker_ends_with_0(worker: Worker, first: int) -> None:
    os.kill(first, signal.SIGTERM)
    assert worker.wait() == 0


def test_a_signal_during_the_start_ends_the_worker(workers: Workers, tmp_path: Path) -> None:
    """In this test, an import of the command line never ends."""
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "typer.py").write_text("import time\n\nprint('importing', flush=True)\nwhile True:\n    time.sleep(1)\n")
    environment = workers.environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(slow), *filter(None, [environment.get("PYTHONPATH")])])
    worker = workers.run([*UNSHARE, sys.executable, "-m", "millstream", "worker", "jobs:app"], environment)
    eventually(lambda: "importing" in worker.log, "the worker to start importing")
    (first,) = [pid for pid, (parent, _) in processes().items() if parent == worker.pid]
    os.kill(first, signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM


def test_pid_1_forwards_signals_and_returns_the_workers_exit_code(ledger: Ledger, gate: Path, workers: Workers) -> None:
    worker, first = start(workers)
    jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started()
    os.kill(first, signal.SIGINT)
    eventually(lambda: "stopping; Ctrl-C again to stop now" in worker.log, "the signal to be handled")
    assert worker.log.count("stopping now") == 0, "the signal arrives once, not twice"
    os.kill(first, signal.SIGINT)
    assert worker.wait() == 4
    assert totals()["done"] == 0
