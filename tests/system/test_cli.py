"""The command line as people and scripts use it: in its own process, with pipes, on a terminal, beside a live worker."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.apps import jobs
from tests.system.harness import APPS, PATIENCE, Server, Workers, eventually, running_server, until_done

MILLSTREAM = [sys.executable, "-m", "millstream"]

READING = ("queues", "jobs", "dead", "workers", "doctor")


def environment(url: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILLSTREAM_", "PYTEST_"))}
    return kept | {"MILLSTREAM_URL": url, "TERM": "xterm-256color", "COLUMNS": "100"} | more


def millstream(*words: str, url: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MILLSTREAM, *words],
        env=environment(url, **more),
        cwd=APPS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def printed(*words: str, url: str, **more: str) -> Any:
    """Return the JSON that a command prints."""
    answer = millstream(*words, "--json", url=url, **more)
    assert (answer.returncode, answer.stderr) == (0, "")
    return json.loads(answer.stdout)


# -- with a worker ---------------------------------------------------------------------------------------------------------


def test_enqueue_status_and_wait_follow_a_running_job(server: Server, workers: Workers, gate: Path) -> None:
    worker = workers.start()
    answer = millstream("enqueue", "hold", json.dumps(["k", str(gate)]), "-A", "jobs:app", url=server.url)
    assert answer.returncode == 0, answer.stderr
    job_id = answer.stdout.strip()
    eventually(lambda: jobs.app.inspector.status_sync("default", job_id) == "running", "the job to run")

    shown = printed("jobs", "show", job_id, url=server.url)
    assert (shown["status"], shown["task"], shown["arguments"]) == ("running", "hold", ["k", str(gate)])
    supervisor, seen = printed("workers", url=server.url)
    assert (supervisor["pid"], supervisor["processes"], seen["supervisor"]) == (worker.pid, 1, supervisor["id"])
    assert (seen["pid"], shown["worker"]) == (worker.child, seen["id"])
    assert shown["runs_on"].endswith(f"process {worker.child}")
    (queue,) = (row for row in printed("queues", url=server.url) if row["queue"] == "default")
    assert (queue["running"], queue["workers"]) == (1, 1)
    answer = millstream("jobs", "cancel", job_id, "--yes", url=server.url)
    assert (answer.returncode, answer.stderr) == (1, f"millstream: job {job_id!r} cannot be cancelled: it is running\n")

    gate.touch()
    answer = millstream("enqueue", "note", '["hello"]', "--wait", str(PATIENCE), url=server.url)
    assert (answer.returncode, answer.stdout) == (0, '"hello"\n')
    until_done(2)


def test_jobs_retry_runs_a_scheduled_job_immediately(server: Server, workers: Workers) -> None:
    job_id = jobs.note.options(delay=3600).enqueue_sync("later").id
    workers.start()
    assert millstream("jobs", "retry", job_id, url=server.url).returncode == 0
    until_done(1)


# -- an unreachable or refusing server -------------------------------------------------------------------------------------


def test_an_unreachable_server_is_exit_code_3_and_one_line(tmp_path: Path) -> None:
    for words in READING:
        answer = millstream(words, url=f"unix://{tmp_path}/nowhere")
        assert (answer.returncode, answer.stdout) == (3, "")
        assert answer.stderr.startswith("millstream: ") and answer.stderr.count("\n") == 1
        assert "cannot be reached" in answer.stderr
        assert answer.stderr.endswith("Is the server running? For another server use --url or set MILLSTREAM_URL\n")


def test_a_wrong_password_is_exit_code_3_and_is_not_printed() -> None:
    with running_server("--requirepass", "right") as locked:
        answer = millstream("queues", url=locked.url.replace("unix://", "unix://:wrong@"))
    assert answer.returncode == 3
    assert "Check the user and password in the URL" in answer.stderr and "wrong" not in answer.stderr.replace("WRONGPASS", "")


# -- imports ---------------------------------------------------------------------------------------------------------------


def test_commands_that_only_read_do_not_import_the_app(server: Server) -> None:
    jobs.note.enqueue_sync("a")
    for words in READING:
        answer = millstream(words, url=server.url, MILLSTREAM_APP="broken:app")
        assert (answer.returncode, answer.stderr) == (0, "")
    answer = millstream("tasks", url=server.url, MILLSTREAM_APP="broken:app")
    assert answer.returncode == 2
    assert "broken:app cannot be loaded: RuntimeError: half an app (broken.py, line 3)" in answer.stderr


def test_help_imports_neither_redis_nor_rich() -> None:
    program = (
        "import sys; from millstream.cli.main import run; run(['--help']); "
        "print([name for name in ('redis', 'rich', 'millstream.backends.redis') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert answer.stdout.endswith("\n[]\n")


# -- pipes and terminals ---------------------------------------------------------------------------------------------------


def test_a_closed_pipe_is_not_an_error(server: Server) -> None:
    jobs.app.enqueue_many_sync(jobs.note.bind(str(n)) for n in range(3000))
    listing = subprocess.Popen(
        [*MILLSTREAM, "jobs", "--limit", "3000"],
        env=environment(server.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert listing.stdout is not None and listing.stderr is not None
    assert listing.stdout.readline().startswith(b"ID ")
    listing.stdout.close()
    with listing.stderr:
        assert listing.stderr.read() == b""
    listing.wait(PATIENCE)


def _heed_interrupts() -> None:
    """Restore the default SIGINT action. A suite in the background of a shell, and its children, would ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A command on its own terminal."""

    def __init__(self, *words: str, url: str) -> None:
        self._master, slave = os.openpty()
        self._process = subprocess.Popen(
            [*MILLSTREAM, *words],
            env=environment(url),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_heed_interrupts,  # noqa: PLW1509  it only sets a signal action
        )
        os.close(slave)
        self.text = ""

    def read_until(self, words: str) -> None:
        eventually(lambda: self._read() and words in self.text, f"{words!r} on the terminal, which shows {self.text!r}")

    def answer(self, text: str) -> None:
        os.write(self._master, f"{text}\n".encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        code = self._process.wait(PATIENCE)
        while self._read():
            pass
        os.close(self._master)
        return code

    def _read(self) -> bool:
        """Read what is available. Return whether more may follow."""
        ready, _, _ = select.select([self._master], [], [], 0.05)
        if not ready:
            return self._process.poll() is None
        try:
            part = os.read(self._master, 65536)
        except OSError:  # on Linux: the other end is closed
            return False
        self.text += part.decode()
        return bool(part)


def test_a_terminal_shows_a_table_and_a_pipe_plain_text(server: Server) -> None:
    jobs.note.enqueue_sync("a")
    terminal = Terminal("queues", url=server.url)
    assert terminal.end() == 0
    assert "\x1b[" in terminal.text
    assert re.sub(r"\x1b\[[0-9;]*m", "", terminal.text).splitlines() == [
        server.url,
        "queue    ready  running  scheduled  dead  paused  workers",
        "default      1        0          0     0  no            0",
    ]
    answer = millstream("queues", url=server.url)
    assert answer.stdout.splitlines()[0] == "QUEUE    READY  RUNNING  SCHEDULED  DEAD  PAUSED  WORKERS"
    assert "\x1b" not in answer.stdout


def test_on_a_terminal_doctor_shows_the_fix_below_the_finding(server: Server) -> None:
    jobs.note.enqueue_sync("a")
    terminal = Terminal("doctor", url=server.url)
    assert terminal.end() == 0
    lines = [" ".join(line.split()) for line in re.sub(r"\x1b\[[0-9;]*m", "", terminal.text).splitlines()]
    assert lines[:2] == [server.url, "health check found"]
    at = lines.index("warn queue default 1 job waiting, but no worker serves this queue")
    assert lines[at + 1] == "→ start a worker: millstream worker module:app --queue default"


@pytest.mark.parametrize(("reply", "code", "left"), [("n", 1, 1000), ("", 1, 1000), ("y", 0, 0)])
def test_a_destructive_command_asks_for_confirmation_on_a_terminal(server: Server, reply: str, code: int, left: int) -> None:
    jobs.app.enqueue_many_sync(jobs.note.bind(str(n)) for n in range(1000))
    terminal = Terminal("queues", "purge", "default", url=server.url)
    terminal.read_until("Cancel 1,000 ready and 0 scheduled jobs of queue default? [y/N]:")
    terminal.answer(reply)
    assert terminal.end() == code
    assert ("nothing was changed" if left else "1,000 jobs of queue default cancelled") in terminal.text
    assert jobs.app.inspector.queue_sync("default").ready == left


def test_an_interrupt_ends_a_wait_without_a_traceback(server: Server) -> None:
    terminal = Terminal("enqueue", "note", '["a"]', "--wait", "600", url=server.url)
    terminal.read_until("waiting for its result")
    terminal.interrupt()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text
