"""``millstream demo`` as a newcomer runs it: piped, on a terminal, interrupted, and when something really fails."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millstream import DeadJob
from millstream.cli.demo.account import Account, Kill
from millstream.cli.demo.record import Record

# Seconds before a test gives up on a demo. A demo takes ten.
PATIENCE = 90.0

DEMO = [sys.executable, "-m", "millstream", "demo"]
CLOSED = "3,246 accepted = 3,244 done + 1 dead + 1 cancelled, nothing lost"

Environment = dict[str, str]


@pytest.fixture
def surroundings() -> Iterator[Environment]:
    """An environment with its own temporary and runtime folders, which must be empty again at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ms-", dir="/tmp")).resolve()
    (folder / "tmp").mkdir()
    (folder / "run").mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
    yield {**clean, "TMPDIR": str(folder / "tmp"), "XDG_RUNTIME_DIR": str(folder / "run"), "PYTHONPATH": "", "COLUMNS": "100"}
    left = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() or path.is_socket()]
    processes = processes_of(str(folder))
    shutil.rmtree(folder)
    assert left == []
    assert processes == []


def processes_of(folder: str) -> list[str]:
    """Return the command lines of the processes that were started in this environment."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if folder.encode() in (process / "environ").read_bytes() and int(process.name) != os.getpid():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def start(environment: Environment) -> subprocess.Popen[str]:
    return subprocess.Popen(
        DEMO, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def read_until(demo: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read what the demo prints until a line matches. Return the match."""
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if found := re.search(pattern, line):
            return found
    pytest.fail(f"the demo ended without printing {pattern!r}:\n{seen}")


def finish(demo: subprocess.Popen[str]) -> str:
    """Wait until the demo ends. Return the rest of its output."""
    rest, _ = demo.communicate(timeout=PATIENCE)
    return rest


def test_without_a_terminal_the_demo_accounts_for_every_job_and_exits_with_0(surroundings: Environment) -> None:
    demo = subprocess.run(DEMO, env=surroundings, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    assert "\x1b" not in demo.stdout
    assert CLOSED in demo.stdout
    assert re.search(r"kill -9 \d+, a worker process that is running jobs", demo.stdout)
    assert "all jobs it was running have restarted in other processes" in demo.stdout
    assert re.search(r"was killed while it was running \d+ jobs", demo.stdout), "the count of running jobs"
    assert re.search(r"render_invoice, job \S+: exhausted after 3 attempts", demo.stdout)
    assert "KeyError: 'Atlantis'" in demo.stdout
    assert "worker tasks:app" in demo.stdout


def test_on_a_terminal_the_demo_shows_live_progress_and_the_same_account(surroundings: Environment) -> None:
    ours, theirs = pty.openpty()
    demo = subprocess.Popen(DEMO, env={**surroundings, "TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # on Linux: the other end is closed
    finally:
        os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert demo.wait(PATIENCE) == 0, text
    assert re.search(r"task +done +dead +cancelled +running +waiting +retried", text)
    assert re.search(r"remind_of_cart +\S* *\d/6 +· +1 ", text), "the cancelled job is in its column"
    assert CLOSED in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(surroundings: Environment, number: signal.Signals) -> None:
    demo = start(surroundings)
    read_until(demo, "the worker serves")
    demo.send_signal(number)
    rest = finish(demo)
    assert demo.returncode == 128 + number
    assert "Stopped." in rest
    assert "Traceback" not in rest


def test_a_demo_interrupted_during_its_start_leaves_nothing_behind(surroundings: Environment) -> None:
    demo = start(surroundings)
    read_until(demo, "supervisor: process")
    demo.send_signal(signal.SIGINT)
    assert "Traceback" not in finish(demo)
    assert demo.returncode == 128 + signal.SIGINT


def test_a_demo_whose_worker_dies_exits_with_1_and_names_the_log_file(surroundings: Environment) -> None:
    demo = start(surroundings)
    supervisor = int(read_until(demo, r"supervisor: process (\d+)").group(1))
    read_until(demo, "the worker serves")
    os.kill(supervisor, signal.SIGKILL)
    rest = finish(demo)
    assert demo.returncode == 1
    assert "the worker exited with code -9 during the demo" in rest
    log = Path(rest.split("The worker's log: ")[1].strip())
    assert "serving 'default'" in log.read_text()
    log.unlink()


# --- the account ------------------------------------------------------------------------------------------------------

KILL = Kill(101, 2.0)
ORDERLY = """\
1.0 began 101 a 1 charge
1.1 began 102 b 1 charge
1.2 failed 102 b 1 charge
1.3 began 102 broken 1 invoice
1.4 failed 102 broken 1 invoice
2.3 began 102 a 1 charge
2.4 done 102 a 1 charge
2.5 began 102 b 2 charge
2.6 done 102 b 2 charge
"""
STATUSES = {"a": "done", "b": "done", "broken": "dead", "bought": "cancelled"}

MakeAccount = Callable[..., Account]


@pytest.fixture
def account(tmp_path: Path) -> MakeAccount:
    def make(
        record: str = ORDERLY, *, letters: tuple[str, ...] = ("broken",), kill: Kill | None = KILL, **statuses: str
    ) -> Account:
        path = tmp_path / "record"
        path.write_text(record)
        read = Record(path)
        read.read()
        tasks = {"a": "charge", "b": "charge", "broken": "invoice", "bought": "reminder"}
        dead = [letter(job) for job in letters]
        return Account(tasks, {**STATUSES, **statuses}, dead, read, kill, {"broken"}, {"bought"})

    return make


def letter(job: str) -> DeadJob:
    return DeadJob(
        id=job,
        task="invoice",
        queue="default",
        reason="exhausted",
        error_type="KeyError",
        error="'Atlantis'",
        traceback="",
        attempts=1,
        crashes=0,
        enqueued_at=None,
        died_at=datetime.now(UTC),
    )


def test_an_account_without_complaints_has_no_lost_job_and_explains_each_second_run(account: MakeAccount) -> None:
    assert account().complaints() == []
    total = account().total()
    assert (total.accepted, total.ended, total.lost) == (4, {"done": 2, "dead": 1, "cancelled": 1, "expired": 0}, 0)
    assert (total.retried, total.again) == (1, 1)
    assert account().recoveries() == [pytest.approx(0.3)]
    assert [row.task for row in account().rows()] == ["charge", "invoice", "reminder"]


def test_a_job_that_never_ended_is_reported_and_counted_as_lost(account: MakeAccount) -> None:
    assert account(b="scheduled").complaints() == ["1 job was accepted and never ended: b (charge, scheduled)"]
    assert account(b="scheduled").total().lost == 1


def test_a_job_whose_status_and_result_differ_counts_as_lost(account: MakeAccount) -> None:
    assert account(b="done, but dead according to its result").total().lost == 1


def test_a_second_run_without_a_crash_is_reported(account: MakeAccount) -> None:
    again = "3.0 began 101 b 2 charge\n3.1 done 101 b 2 charge\n"
    assert account(ORDERLY + again).complaints() == ["1 job was run twice without a crash: b (charge, done)"]


def test_a_second_run_that_began_before_the_kill_is_reported(account: MakeAccount) -> None:
    assert "1 job was run twice without a crash: a (charge, done)" in account(kill=Kill(KILL.pid, 2.4)).complaints()


def test_a_run_of_a_job_that_was_never_enqueued_is_reported(account: MakeAccount) -> None:
    assert account(ORDERLY + "3.0 began 102 x 1 charge\n").complaints() == [
        "1 job was run without being enqueued: x (unknown task, unknown)"
    ]


def test_a_done_job_that_no_handler_finished_is_reported(account: MakeAccount) -> None:
    without = ORDERLY.replace("2.6 done 102 b 2 charge\n", "")
    assert account(without).complaints() == [
        "1 job was done according to the server, but not according to the handler: b (charge, done)"
    ]


def test_a_cancelled_job_that_ran_is_reported(account: MakeAccount) -> None:
    assert account(ORDERLY + "3.0 began 102 bought 1 reminder\n").complaints() == [
        "1 job was cancelled and still run: bought (reminder, cancelled)"
    ]


def test_dead_jobs_and_dead_letters_must_agree(account: MakeAccount) -> None:
    assert account(letters=()).complaints() == ["1 job was dead without a dead letter: broken (invoice, dead)"]
    assert account(letters=("broken", "b")).complaints() == ["1 job was among the dead letters but not dead: b (charge, done)"]
    assert "1 job was dead but expected to succeed: b (charge, dead)" in account(b="dead").complaints()
    assert "1 job was expected to die but not dead: broken (invoice, done)" in account(broken="done").complaints()


def test_a_demo_without_a_killed_process_fails(account: MakeAccount) -> None:
    assert any("no worker process was killed" in complaint for complaint in account(kill=None).complaints())
