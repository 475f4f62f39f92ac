"""Each command on a real server: its piped output, its JSON and its exit code."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream import DeadEvent, Millstream, RetryPolicy, __version__
from millstream.broker import Team, WorkerInfo
from millstream.cli.main import run
from millstream.errors import JobFailed
from millstream.model.address import Address
from tests.stage import PATIENCE, dead, done, work

NO_ARGUMENTS = msgspec.Raw(b"\x90")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

QUEUE_FIELDS = ["queue", "ready", "running", "scheduled", "dead", "paused", "workers", "shards", "blocked", "stopped"]
JOB_FIELDS = ["id", "task", "queue", "status", "attempt", "enqueued_at"]
DEAD_FIELDS = ["id", "task", "queue", "group", "reason", "error", "traceback", "attempts", "crashes", "died_at", "key"]
DEAD_FIELDS += ["failures", "unhandled"]
WORKER_FIELDS = ["id", "host", "pid", "version", "queues", "started_at", "done", "retried", "dead", "refused"]


class Console:
    """The command line in one namespace of the server, with an app in the same namespace."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.app = Millstream(url, namespace=f"test-{secrets.token_hex(6)}")
        self._where = ["--url", url, "--namespace", self.app.settings.namespace]
        self._capsys = capsys

        @self.app.task
        async def greet(name: str, times: int = 1) -> None: ...

        @self.app.task(queue="mail")
        async def send_mail(to: str) -> None: ...

        self.greet, self.send_mail = greet, send_mail

    def __call__(self, *words: str, code: int = 0, err: str = "") -> str:
        """Run a command, check its exit code and error line, and return its output."""
        self._capsys.readouterr()
        answer = run([*words, *self._where])
        printed, error = self._capsys.readouterr()
        assert (answer, err in error) == (code, True), (answer, error)
        assert error.count("\n") == bool(error)
        if not err:
            assert error == ""
        return printed

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def do(self, scenario: Callable[[Millstream], Awaitable[Any]]) -> Any:
        async def connected() -> Any:
            async with self.app:
                return await scenario(self.app)

        return asyncio.run(connected())

    def status(self, job_id: str, queue: str = "default") -> str:
        return str(self.do(lambda app: app.inspector.status(queue, job_id)))

    def die(self, *ids: str, queue: str = "default", **how: Any) -> None:
        """Create dead jobs."""

        async def scenario(app: Millstream) -> None:
            task = self.greet if queue == "default" else self.send_mail
            for job_id in ids:
                await task.options(id=job_id).enqueue("Ada")
            await work(app, dead(**how), queue=Address(queue))

        self.do(scenario)


@pytest.fixture
def console(embedded_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.delenv("MILLSTREAM_APP", raising=False)
    return Console(embedded_url, capsys)


# -- queues ----------------------------------------------------------------------------------------------------------------


def test_queues_are_listed(console: Console) -> None:
    async def scenario(app: Millstream) -> None:
        await console.greet.enqueue("a")
        await console.greet.options(delay=60).enqueue("b")
        await console.send_mail.enqueue("c")
        await (await app.broker()).register(WorkerInfo("w", "h", 7, "1", ["mail", "x"], 1.5, {}), 60)

    console.do(scenario)
    console("queues", "pause", "mail")
    assert (
        console("queues")
        == console("queues", "ls")
        == (
            "QUEUE    READY  RUNNING  SCHEDULED  DEAD  PAUSED  WORKERS\n"
            "default      1        0          1     0  no            0\n"
            "mail         1        0          0     0  yes           1\n"
        )
    )
    rows = console.json("queues")
    assert [list(row) for row in rows] == [QUEUE_FIELDS, QUEUE_FIELDS]
    assert rows[1] == dict(zip(QUEUE_FIELDS, ["mail", 1, 0, 0, 0, True, 1, 0, 0, 0], strict=True))


def test_in_an_empty_namespace_lists_are_empty(console: Console) -> None:
    assert console.json("queues") == console.json("jobs") == console.json("dead") == console.json("workers") == []
    assert console("queues") == "QUEUE  READY  RUNNING  SCHEDULED  DEAD  PAUSED  WORKERS\n"


def test_a_queue_is_shown_in_detail(console: Console) -> None:
    async def scenario(app: Millstream) -> None:
        await console.greet.enqueue("a")
        await console.greet.options(delay=60).enqueue("b")

    console.do(scenario)
    fields = console.json("queues", "show", "default")
    assert list(fields) == [*QUEUE_FIELDS, "next_ready_since", "next_due_at", "totals", "stopped_keys"]
    assert MOMENT.fullmatch(fields["next_ready_since"]) and MOMENT.fullmatch(fields["next_due_at"])
    assert fields["totals"]["published"] == 2
    printed = console("queues", "show", "default")
    assert re.search(r"^ready +1$", printed, re.M) and re.search(r"^totals +published 2, ", printed, re.M)


def test_a_queue_is_paused_and_resumed(console: Console) -> None:
    console("enqueue", "greet", '["a"]')
    assert console("queues", "pause", "default") == "queue default is paused\n"
    assert console.json("queues")[0]["paused"] is True
    assert console("queues", "resume", "default") == "queue default is resumed\n"
    assert console.json("queues")[0]["paused"] is False


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "purge"])
def test_an_unknown_queue_is_refused_and_the_known_queues_are_named(console: Console, verb: str) -> None:
    console("enqueue", "greet", '["a"]')
    assert console("queues", verb, "defualt", code=1, err="there is no queue 'defualt'; existing queues: default") == ""


def test_purging_a_queue_cancels_its_waiting_jobs_and_nothing_else(console: Console) -> None:
    console.die("dead")

    async def scenario(app: Millstream) -> list[str]:
        jobs = await app.enqueue_many(console.greet.bind(f"n{n}") for n in range(450))
        jobs += await app.enqueue_many(console.greet.options(delay=60 + n).bind("later") for n in range(250))
        broker = await app.broker()
        await broker.join(Address("default"), "c", 30.0)
        await broker.claim(Address("default"), "c", 3)
        return [job.id for job in jobs]

    ids = console.do(scenario)
    question = "Cancel 447 ready and 250 scheduled jobs of queue default?"
    console("queues", "purge", "default", code=2, err=f"{question} There is no terminal for an answer: confirm with --yes")
    assert console.json("queues")[0]["ready"] == 447
    assert console("queues", "purge", "default", "--yes") == "697 jobs of queue default cancelled\n"
    assert console.json("queues") == [dict(zip(QUEUE_FIELDS, ["default", 0, 3, 0, 1, False, 0, 0, 0, 0], strict=True))]
    assert [console.status(ids[at]) for at in (0, 3, -1)] == ["running", "cancelled", "cancelled"]
    assert console("queues", "purge", "default", "-y") == "0 jobs of queue default cancelled\n"


# -- jobs ------------------------------------------------------------------------------------------------------------------


def some_jobs(console: Console) -> None:
    """One job in each state."""
    console.die("dead")

    async def scenario(app: Millstream) -> None:
        await console.greet.options(id="running").enqueue("Ada", times=2)
        broker = await app.broker()
        await broker.join(Address("default"), "host-77-ab.1", 30.0)
        await broker.claim(Address("default"), "host-77-ab.1", 1)
        await console.greet.options(id="ready").enqueue("Bob")
        await console.greet.options(id="scheduled", delay=3600, expires=7200, timeout=5).enqueue("Cleo")
        await console.send_mail.options(id="mail").enqueue("d@e.f")

    console.do(scenario)


def test_jobs_in_every_state_are_listed_and_filtered(console: Console) -> None:
    some_jobs(console)
    rows = console.json("jobs")
    assert [list(row) for row in rows] == [JOB_FIELDS] * 5
    assert all(MOMENT.fullmatch(row["enqueued_at"]) for row in rows)
    assert [tuple(row.values())[:-1] for row in rows] == [
        ("running", "greet", "default", "running", 1),
        ("ready", "greet", "default", "ready", 1),
        ("mail", "send_mail", "mail", "ready", 1),
        ("scheduled", "greet", "default", "scheduled", 1),
        ("dead", "greet", "default", "dead", 3),
    ]
    printed = MOMENT.sub("TIME", console("jobs", "ls", "--state", "dead", "-s", "ready"))
    assert printed == (
        "ID     TASK       QUEUE    STATUS  ATTEMPT  ENQUEUED_AT\n"
        "ready  greet      default  ready         1  TIME\n"
        "mail   send_mail  mail     ready         1  TIME\n"
        "dead   greet      default  dead          3  TIME\n"
    )
    assert [row["id"] for row in console.json("jobs", "--queue", "mail")] == ["mail"]
    assert [row["id"] for row in console.json("jobs", "--task", "send_mail")] == ["mail"]
    assert [row["id"] for row in console.json("jobs", "--limit", "2")] == ["running", "ready"]
    console("jobs", "--limit", "2", err="only the first 2 are listed: use --limit N to list more")
    console("jobs", "--queue", "none", code=1, err="there is no queue 'none'")


def test_a_long_list_of_jobs_is_complete_and_in_order(console: Console) -> None:
    jobs = console.do(lambda app: app.enqueue_many(console.greet.bind(str(n)) for n in range(500)))
    assert [row["id"] for row in console.json("jobs", "--limit", "1000")] == [job.id for job in jobs]


def test_a_running_job_is_shown_in_detail(console: Console) -> None:
    some_jobs(console)

    async def register(app: Millstream) -> None:
        await (await app.broker()).register(WorkerInfo("host-77-ab", "host", 77, "1", ["default"], 1.5, {}), 60)

    console.do(register)
    fields = console.json("jobs", "show", "running")
    assert list(fields)[:6] == JOB_FIELDS
    assert (fields["status"], fields["worker"], fields["runs_on"]) == ("running", "host-77-ab", "host, process 77")
    assert fields["arguments"] == ["Ada", 2]
    assert MOMENT.fullmatch(fields["running_since"])


def test_a_scheduled_job_is_shown_in_detail(console: Console) -> None:
    some_jobs(console)
    fields = console.json("jobs", "show", "scheduled")
    assert MOMENT.fullmatch(fields["due_at"]) and MOMENT.fullmatch(fields["expires_at"])
    assert (fields["timeout"], fields["arguments"], fields["crashes"]) == (5.0, ["Cleo"], 0)
    printed = console("jobs", "show", "scheduled")
    assert printed.endswith('\narguments\n[\n  "Cleo"\n]\n')


def test_a_done_job_shows_its_result(console: Console) -> None:
    async def scenario(app: Millstream) -> None:
        await console.greet.options(id="j").enqueue("Ada")
        await work(app, done({"said": "Hello"}))

    console.do(scenario)
    fields = console.json("jobs", "show", "j")
    assert (fields["status"], fields["result"]) == ("done", {"said": "Hello"})
    assert '"said": "Hello"' in console("jobs", "show", "j")


def test_a_job_that_a_worker_ran_shows_its_task_and_timestamps(console: Console) -> None:
    async def scenario(app: Millstream) -> None:
        async with app.worker():
            await (await console.greet.options(id="j").enqueue("Ada")).result(timeout=20)

    console.do(scenario)
    fields = console.json("jobs", "show", "j")
    assert (fields["task"], fields["status"], fields["why"]["code"]) == ("greet", "done", "done")
    assert MOMENT.fullmatch(fields["enqueued_at"]) and MOMENT.fullmatch(fields["ended_at"])
    printed = console("jobs", "show", "j")
    assert "\nended_at" in printed and "\nwhy" not in printed


def test_a_waiting_job_shows_why_it_is_not_running(console: Console) -> None:
    console("enqueue", "greet", '["a"]', "--id", "j")
    assert re.search(r"\nwhy +no worker serves queue 'default' \(no worker is registered\)\n", console("jobs", "show", "j"))
    console("queues", "pause", "default")
    why = console.json("jobs", "show", "j")["why"]
    assert (why["code"], why["also"]) == ("paused", ["no_worker"])
    assert "millstream queues resume default" in why["text"]


def test_the_ordering_key_of_a_scheduled_job_is_shown_as_text(console: Console) -> None:
    console("enqueue", "greet", '["a"]', "--id", "j", "--key", "ann", "--delay", "60")
    assert console.json("jobs", "show", "j")["key"] == "ann"


def test_failed_attempts_are_shown_for_a_job_and_for_its_dead_letter(console: Console) -> None:
    @console.app.task(retry=RetryPolicy(1, delay=0.001, jitter=False))
    async def fail() -> None:
        raise ValueError("no\nluck")

    async def scenario(app: Millstream) -> str:
        async with app.worker() as worker:
            with pytest.raises(JobFailed):
                await (await fail.options(id="j").enqueue()).result(timeout=20)
        (letter,) = await app.dead.list()
        assert [failure.number for failure in letter.failures] == [1, 2]
        return worker.id

    worker = console.do(scenario)
    for words in (("jobs", "show", "j"), ("dead", "show", "j")):
        failures = console.json(*words)["failures"]
        assert [(each["attempt"], each["error"], each["worker"]) for each in failures] == [
            (attempt, "ValueError: no\nluck", worker) for attempt in (1, 2)
        ]
        assert f"Z  attempt 2 on {worker}  ValueError: no\\nluck\n" in console(*words).partition("\nfailures\n")[2]
    assert console.json("dead")[0]["failures"] == console.json("dead", "show", "j")["failures"]


def test_jobs_due_at_the_same_time_are_listed_in_numeric_order(console: Console) -> None:
    async def scenario(app: Millstream) -> None:
        at = datetime.now(UTC) + timedelta(hours=1)
        for n in (10, 2, 1, 100):
            await console.greet.options(id=f"j-{n}", at=at).enqueue("a")

    console.do(scenario)
    assert [row["id"] for row in console.json("jobs")] == ["j-1", "j-2", "j-10", "j-100"]


def test_on_a_terminal_a_list_names_its_server_and_namespace(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console("enqueue", "greet", '["a"]')
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (["queues"], ["jobs"], ["doctor"]):
        assert console(*words).splitlines()[0] == console.app.where
    for words in (["dead"], ["topics"], ["groups"], ["workers"]):
        assert console(*words, err=f"(at {console.app.where})") == ""


def test_an_unknown_job_is_not_found(console: Console) -> None:
    some_jobs(console)
    for verb in ("show", "retry"):
        console("jobs", verb, "never", code=1, err="there is no job 'never'")
    console("jobs", "cancel", "never", "--yes", code=1, err="there is no job 'never'")
    console("jobs", "show", "mail", "--queue", "default", code=1, err="there is no job 'mail' in queue 'default'")


def test_an_id_that_exists_in_two_queues_requires_a_queue(console: Console) -> None:
    console("enqueue", "greet", "--id", "shared", err="")
    console("enqueue", "greet", "--id", "shared", "--queue", "other")
    console("jobs", "show", "shared", code=2, err="there is a job 'shared' in queues default, other: choose one with --queue")
    assert console.json("jobs", "show", "shared", "--queue", "other")["queue"] == "other"


def test_cancelling_a_job_requires_confirmation(console: Console) -> None:
    some_jobs(console)
    console(
        "jobs",
        "cancel",
        "ready",
        code=2,
        err="Cancel job ready (greet)? There is no terminal for an answer: confirm with --yes",
    )
    assert console.status("ready") == "ready"
    assert console("jobs", "cancel", "ready", "scheduled", "--yes") == "job ready is cancelled\njob scheduled is cancelled\n"
    assert [console.status("ready"), console.status("scheduled")] == ["cancelled", "cancelled"]
    console("jobs", "cancel", "running", "--yes", code=1, err="job 'running' cannot be cancelled: it is running")
    console("jobs", "cancel", "dead", "--yes", code=1, err="job 'dead' cannot be cancelled: it has already ended (dead)")


def test_a_job_that_cannot_be_cancelled_does_not_prevent_the_cancellation_of_others(console: Console) -> None:
    some_jobs(console)
    both = "job 'running' cannot be cancelled: it is running. The command also failed for 1 more of the 3 jobs"
    assert console("jobs", "cancel", "running", "ready", "dead", "-y", code=1, err=both) == "job ready is cancelled\n"
    assert console.status("ready") == "cancelled"


def test_dead_and_scheduled_jobs_are_retried(console: Console) -> None:
    some_jobs(console)
    assert console("jobs", "retry", "dead", "scheduled") == (
        "job dead was dead and is now ready\njob scheduled was scheduled and is now ready\n"
    )
    assert [console.status("dead"), console.status("scheduled")] == ["ready", "ready"]
    console("jobs", "retry", "running", code=1, err="job 'running' is running: only dead and scheduled jobs can be retried")


def test_an_entry_written_by_another_program_is_listed_without_job_fields(console: Console) -> None:
    async def scenario(app: Millstream) -> None:
        await console.greet.enqueue("a")
        broker: Any = await app.broker()
        await broker._calls.node(None).commands.call("XADD", broker._names("default")["stream"], "*", "not", "ours")

    console.do(scenario)
    assert console.json("jobs")[1] == dict(zip(JOB_FIELDS, [None, None, "default", "ready", None, None], strict=True))
    assert console(
        "queues", "purge", "default", "--yes", err="1 entry is not a Millstream job and was not cancelled"
    ).startswith("1 job of")


# -- dead ------------------------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_and_filtered(console: Console) -> None:
    console.die("a", "b")
    console.die("m", queue="mail", reason="rejected", error="two\nlines")
    rows = console.json("dead")
    assert [list(row) for row in rows] == [DEAD_FIELDS] * 3
    assert all(MOMENT.fullmatch(row.pop("died_at")) for row in rows)
    assert rows[2] == {
        "id": "m",
        "task": "send_mail",
        "queue": "mail",
        "group": None,
        "reason": "rejected",
        "error": "ValueError: two\nlines",
        "traceback": "Traceback: …",
        "attempts": 3,
        "crashes": 0,
        "key": None,
        "failures": [],
        "unhandled": None,
    }
    for words, ids in {
        ("--queue", "mail"): ["m"],
        ("--reason", "exhausted"): ["a", "b"],
        ("--task", "send_mail"): ["m"],
        ("--task", "greet", "--reason", "rejected"): [],
        ("--limit", "1"): ["a"],
    }.items():
        assert [row["id"] for row in console.json("dead", *words)] == ids
    printed = MOMENT.sub("TIME", console("dead", "--queue", "mail"))
    assert printed == (
        "ID  TASK       QUEUE  REASON    ATTEMPTS  DIED_AT                   ERROR\n"
        "m   send_mail  mail   rejected         3  TIME  ValueError: two\\nlines\n"
    )


def test_a_dead_letter_is_shown_in_detail(console: Console) -> None:
    console.die("a", error="no luck")
    fields = console.json("dead", "show", "a")
    assert (fields["reason"], fields["error"], fields["traceback"]) == ("exhausted", "ValueError: no luck", "Traceback: …")
    assert fields["arguments"] == ["Ada"] and fields["source"]
    assert MOMENT.fullmatch(fields["died_at"]) and MOMENT.fullmatch(fields["enqueued_at"])
    printed = console("dead", "show", "a")
    assert printed.endswith('\narguments\n[\n  "Ada"\n]\n\ntraceback\nTraceback: …\n')
    console("dead", "show", "never", code=1, err="job 'never' has no dead letter")


def test_a_dead_letter_whose_handler_gave_up_shows_the_error_of_the_handler(console: Console) -> None:
    orders = console.app.topic("orders", int)

    @orders.subscribe("billing", retry=0)
    async def bill(order: int) -> None:
        raise ValueError("no money")

    @orders.on_dead("billing", retry=RetryPolicy(1, delay=0))
    async def sorry(letter: DeadEvent[int]) -> None:
        raise OSError("no mail")

    async def scenario(app: Millstream) -> None:
        await orders.publish(1, id="o-1")
        async with asyncio.timeout(PATIENCE), app.worker():
            while (letter := await app.dead.show("o-1")) is None or letter.unhandled is None:
                await asyncio.sleep(0.001)

    console.do(scenario)
    (row,) = console.json("dead")
    assert (row["error"], row["unhandled"]) == ("ValueError: no money", "OSError: no mail")
    printed = console("dead")
    assert "UNHANDLED" in printed and "OSError: no mail" in printed
    fields = console.json("dead", "show", "o-1")
    unhandled = fields["unhandled"]
    assert (unhandled["reason"], unhandled["error"], unhandled["attempts"]) == ("exhausted", "OSError: no mail", 2)
    assert [failure["attempt"] for failure in unhandled["failures"]] == [1, 2]
    assert "in sorry" in unhandled["traceback"]
    assert fields["why"]["text"].endswith("; its on_dead handler gave up: OSError: no mail")
    printed = console("dead", "show", "o-1")
    assert "unhandled    the on_dead handler gave up after 2 attempts (exhausted): OSError: no mail\n" in printed
    assert "\n\ntraceback of the on_dead handler\n" in printed


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["a"], ["b", "m"]),
        (["a", "m"], ["b"]),
        (["--queue", "mail"], ["a", "b"]),
        (["--reason", "exhausted"], ["m"]),
        (["--task", "greet"], ["m"]),
        (["--all"], []),
    ],
)
def test_dead_letters_are_replayed_and_purged_by_id_by_filter_or_all(
    console: Console, words: list[str], left: list[str]
) -> None:
    def fill() -> None:
        console.die("a", "b")
        console.die("m", queue="mail", reason="rejected")

    fill()
    count = 3 - len(left)
    noun = "dead letter" + "s" * (count > 1)
    assert console("dead", "replay", *words) == f"{count} {noun} replayed\n"
    assert [row["id"] for row in console.json("dead")] == left
    console("queues", "purge", "default", "--yes")
    console("queues", "purge", "mail", "--yes")
    console("dead", "purge", "--all", "--yes")

    async def again(app: Millstream) -> None:
        for job_id, task in (("a", console.greet), ("b", console.greet), ("m", console.send_mail)):
            await task.options(id=f"{job_id}2").enqueue("x")
        await work(app, dead())
        await work(app, dead("rejected"), queue=Address("mail"))

    console.do(again)
    words = [f"{word}2" if word in ("a", "m") else word for word in words]
    noun = "dead letter" + "s" * (count > 1)
    console(
        "dead",
        "purge",
        *words,
        code=2,
        err=f"Delete {count} {noun} permanently? There is no terminal for an answer: confirm with --yes",
    )
    assert len(console.json("dead")) == 3
    assert console("dead", "purge", *words, "--yes") == f"{count} {noun} deleted\n"
    assert [row["id"] for row in console.json("dead")] == [f"{job_id}2" for job_id in left]


@pytest.mark.parametrize("verb", ["replay", "purge"])
def test_replaying_or_purging_dead_letters_requires_a_selection(console: Console, verb: str) -> None:
    console.die("a")
    console("dead", verb, code=2, err="no dead letter selected: give ids, a filter (--queue, --reason, --task), or --all")
    console("dead", verb, "a", "never", code=1, err="no dead letter found for never. Nothing was changed")
    assert console.status("a") == "dead"


def test_many_dead_letters_are_replayed_once_each(console: Console) -> None:
    console.die(*(f"n{n}" for n in range(450)))
    assert console("dead", "replay", "--all") == "450 dead letters replayed\n"
    assert console.json("queues")[0]["ready"] == 450


# -- workers and tasks -----------------------------------------------------------------------------------------------------


def test_workers_are_listed(console: Console) -> None:
    async def register(app: Millstream) -> None:
        totals = {"done": 1200, "retried": 2, "dead": 3, "refused": 0}
        info = WorkerInfo("w-1", "host", 4711, __version__, ["a", "b"], 1e9, totals)
        await (await app.broker()).register(info, 60)

    console.do(register)
    (row,) = console.json("workers")
    values = ["w-1", "host", 4711, __version__, ["a", "b"], "2001-09-09T01:46:40.000Z", 1200, 2, 3, 0]
    assert {field: row[field] for field in WORKER_FIELDS} == dict(zip(WORKER_FIELDS, values, strict=True))
    assert {value for field, value in row.items() if field not in WORKER_FIELDS} == {None}
    assert console("workers").splitlines()[1].split() == (
        ["w-1", "host", "4711", __version__, "-", "-", "2001-09-09T01:46:40.000Z", "-", "1200", "2", "3", "a,", "b"]
    )


def test_a_worker_is_listed_with_its_tasks_and_its_used_slots(console: Console) -> None:
    async def register(app: Millstream) -> None:
        tasks = {"b": False, "a": True}
        info = WorkerInfo("w", "host", 1, "0", ["q"], 1e9, {}, tasks=tasks, slots=(32, 8), running=(3, 1), full=["q"])
        await (await app.broker()).register(info, 60)

    console.do(register)
    (row,) = console.json("workers")
    assert (row["running"], row["tasks"], row["full"]) == ("4/40", ["a", "b"], ["q"])
    assert (row["coroutines"], row["threads"]) == ({"running": 3, "slots": 32}, {"running": 1, "slots": 8})
    assert " 4/40 " in console("workers")


def test_supervisors_are_listed_with_their_worker_processes(console: Console) -> None:
    async def register(app: Millstream) -> None:
        team = Team(2, 1, 4, "backlog", {"up": 3, "down": 2, "hold": 9, "refused": 1}, "scaled up", rates={"a": 12.5})
        broker = await app.broker()
        await broker.register(WorkerInfo("alone", "host", 3, __version__, ["a"], 1e9, {}), 60)
        await broker.register(WorkerInfo("child", "host", 2, __version__, ["a"], 2e9, {}, supervisor="boss"), 60)
        await broker.register(WorkerInfo("boss", "host", 1, __version__, ["a"], 3e9, {"done": 7}, team=team), 60)

    console.do(register)
    rows = console.json("workers")
    assert [(row["id"], row["supervisor"]) for row in rows] == [("boss", None), ("child", "boss"), ("alone", None)]
    boss = {name: rows[0][name] for name in ("processes", "minimum", "maximum", "strategy", "last_decision", "rates", "done")}
    assert list(boss.values()) == [2, 1, 4, "backlog", "scaled up", {"a": 12.5}, 7]
    assert rows[0]["decisions"] == {"up": 3, "down": 2, "hold": 9, "refused": 1}
    assert console("workers").splitlines()[1].split()[:6] == ["boss", "host", "1", __version__, "2", "1..4"]


APP = """
from dataclasses import dataclass

from millstream import Millstream

app = Millstream()
side_effect = print("imported") if {noisy} else None

@app.task(queue="mail", retry=3, timeout=None, aliases=["old_name"])
def send_mail(to: str, *, urgent: bool = False) -> None: ...

@app.task(name="greeting")
async def greet(name: str) -> str: ...

@dataclass
class Placed:
    order: int

@dataclass
class Sent:
    order: int

orders = app.topic("orders", Placed | Sent)

def create_app() -> Millstream:
    return app
"""


@pytest.fixture
def app_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The import path of an app in the working directory."""
    name = f"app_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(APP.format(noisy=False))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:app"


def test_tasks_are_listed(app_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["tasks", app_file, "--json"]) == 0
    first = capsys.readouterr().out
    assert json.loads(first)[0] == {
        "task": "send_mail",
        "queue": "mail",
        "kind": "sync",
        "signature": "(to: str, *, urgent: bool = False) -> None",
        "aliases": ["old_name"],
        "retries": 3,
        "timeout": None,
        "result_ttl": 600.0,
        "max_crashes": 3,
    }
    assert run(["tasks", "-A", app_file, "--json"]) == 0
    assert capsys.readouterr().out == first
    monkeypatch.setenv("MILLSTREAM_APP", app_file)
    assert run(["tasks"]) == 0
    assert capsys.readouterr().out == (
        "TASK       QUEUE    KIND   RETRIES  TIMEOUT  SIGNATURE\n"
        "send_mail  mail     sync         3        -  (to: str, *, urgent: bool = False) -> None\n"
        "greeting   default  async        8     1800  (name: str) -> str\n"
    )


@pytest.mark.parametrize("command", ["tasks", "enqueue greeting", "publish orders 1"])
def test_an_app_returned_by_a_function_requires_factory(
    command: str, app_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_URL", "memory://")
    words = [*command.split(), "-A", app_file.replace(":app", ":create_app")]
    assert run(words) == 2
    assert "create_app() returns an app, add --factory" in capsys.readouterr().err
    run([*words, "--factory"])
    assert "factory" not in capsys.readouterr().err


def test_an_app_that_cannot_be_imported_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"app_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text("\nraise RuntimeError('half an app')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["tasks", f"{name}:app"]) == 2
    says = f"millstream: {name}:app cannot be loaded: RuntimeError: half an app ({name}.py, line 2)\n"
    assert capsys.readouterr().err == says


# -- enqueue ---------------------------------------------------------------------------------------------------------------


def test_enqueue_prints_the_id(console: Console) -> None:
    job_id = console("enqueue", "greet", '["Ada"]').strip()
    assert console.status(job_id) == "ready"
    assert console.json("jobs", "show", job_id)["arguments"] == ["Ada"]


def test_jobs_show_prints_arguments_in_the_form_that_enqueue_accepts(console: Console) -> None:
    for arguments in (["Ada", 2], {"name": "Ada"}, {"": ["Ada"], "times": 2}, []):
        job_id = console("enqueue", "greet", json.dumps(arguments)).strip()
        assert console.json("jobs", "show", job_id)["arguments"] == arguments


def test_enqueue_accepts_options(console: Console) -> None:
    words = ("enqueue", "greet", '{"name": "Ada"}', "--queue", "mail", "--id", "x", "--delay", "60", "--expires", "90")
    fields = console.json(*words, "--timeout", "5", "--retry", "2")
    assert fields == {"id": "x", "task": "greet", "queue": "mail", "created": True}
    shown = console.json("jobs", "show", "x")
    assert (shown["status"], shown["queue"], shown["timeout"], shown["arguments"]) == ("scheduled", "mail", 5, {"name": "Ada"})
    assert console(*words, err="job x already exists; nothing was sent") == "x\n"
    console("enqueue", "another", "--queue", "mail", "--id", "x", code=1, err="belongs to a job of another task")


def test_with_an_app_enqueue_checks_arguments_and_options(console: Console, app_file: str) -> None:
    namespace = console.app.settings.namespace
    where = ["--url", console.app.url.text]
    capsys = console._capsys

    def fails(*words: str) -> str:
        assert run(["enqueue", *words, "-A", app_file, *where]) == 2
        return capsys.readouterr().err

    assert "the app has no task 'greting'; did you mean greeting?" in fails("greting")
    assert "argument 'name' must be str" in fails("greeting", "[1]")
    assert "queue='nowhere' is not declared in this app" in fails("greeting", '["Ada"]', "--queue", "nowhere")
    assert "delay must be at least 0 s" in fails("greeting", '["Ada"]', "--delay", "-1")
    assert "differs from the app's, millstream" in fails("greeting", '["Ada"]', "--namespace", namespace)
    assert run(["enqueue", "greeting", '["Ada"]', "-A", app_file, *where, "--delay", "60", "--id", secrets.token_hex(6)]) == 0
    job_id = capsys.readouterr().out.strip()
    assert run(["jobs", "cancel", job_id, "--yes", "--namespace", "millstream", *where]) == 0


def test_a_wait_that_times_out_says_why_the_job_is_not_running(console: Console) -> None:
    console("enqueue", "greet", '["Ada"]', "--wait", "0.05", code=1, err="no worker serves queue 'default'")


# -- doctor ----------------------------------------------------------------------------------------------------------------


def test_doctor_reports_the_state_of_the_server(console: Console) -> None:
    console.die("a")
    rows = console.json("doctor")
    assert [list(row) for row in rows] == [["check", "health", "found", "way_out"]] * len(rows)
    assert [row["check"] for row in rows] == [
        *("server", "persistence", "eviction", "memory", "connections", "latency", "clock", "workers"),
        "queue default",
    ]
    assert rows[-1] == {
        "check": "queue default",
        "health": "warn",
        "found": "1 dead job",
        "way_out": "list them: millstream dead ls --queue default",
    }
    assert console("doctor").splitlines()[-1].endswith(" bad")


def test_doctor_fails_if_a_check_is_bad(console: Console) -> None:
    async def scenario(app: Millstream) -> None:
        await console.greet.enqueue("a")
        broker: Any = await app.broker()
        await broker._calls.node(None).commands.call("XTRIM", broker._names("default")["stream"], "MAXLEN", 0)

    console.do(scenario)
    assert ", 1 bad" in console("doctor", code=1)


# -- topics and groups -----------------------------------------------------------------------------------------------------


def publish_orders(console: Console) -> None:
    async def scenario(app: Millstream) -> None:
        orders = app.topic("orders", dict[str, int])

        @orders.subscribe("billing")
        async def bill(order: dict[str, int]) -> None: ...

        @orders.subscribe("audit")
        async def audit(order: dict[str, int]) -> None: ...

        await orders.publish_many([{"number": 1}, {"number": 2}])
        await work(app, done(ttl=0), queue=Address("orders/billing"))
        await work(app, dead(ttl=0), queue=Address("orders/audit"))

    console.do(scenario)


def test_topics_and_groups_are_listed(console: Console) -> None:
    publish_orders(console)
    assert console("topics") == (
        "TOPIC   LENGTH  DELAYED  PUBLISHED  GROUPS\norders       2        0          2  audit, billing\n"
    )
    assert console("groups") == (
        "TOPIC   GROUP    LAG  READY  RUNNING  SCHEDULED  DEAD  PAUSED  CONSUMERS\n"
        "orders  audit      0      0        0          0     2  no              0\n"
        "orders  billing    0      0        0          0     0  no              0\n"
    )
    shown = console.json("topics", "show", "orders")
    assert [group["group"] for group in shown["groups"]] == ["audit", "billing"]
    assert "published  2" in console("topics", "show", "orders")
    letters = console.json("dead")
    assert [(letter["queue"], letter["group"]) for letter in letters] == [("orders/audit", "audit")] * 2
    console("topics", "show", "nope", code=1, err="there is no topic 'nope'; existing topics: orders")


def test_groups_are_paused_rewound_skipped_and_removed(console: Console) -> None:
    publish_orders(console)
    console("groups", "pause", "orders/billing")
    assert [group["paused"] for group in console.json("groups")] == [False, True]
    console("groups", "resume", "orders/billing")
    console("groups", "rewind", "orders/billing", "--yes")
    assert [group["lag"] for group in console.json("groups", "ls", "--topic", "orders")] == [0, 2]
    console("groups", "skip", "orders/billing", "--yes")
    assert [group["lag"] for group in console.json("groups")] == [0, 0]
    console("groups", "rewind", "orders/billing", "--to", "2000-01-01T00:00+00:00", "--yes")
    assert [group["lag"] for group in console.json("groups")] == [0, 2]
    console("groups", "rewind", "orders/billing", "--to", "soon", code=2, err="--to soon")
    console("groups", "rewind", "orders/billing", "--to", "2000-01-01T00:00", code=2, err="has no time zone")
    console("groups", "pause", "orders/nope", code=1, err="its groups are: audit, billing")
    console(
        "groups", "pause", "orders", code=2, err="'orders' does not name a group: write TOPIC/GROUP, for example orders/billing"
    )
    console("groups", "rm", "orders/billing", "--yes")
    assert [group["group"] for group in console.json("groups")] == ["audit"]


def test_publish_publishes_an_event(console: Console) -> None:
    event_id = console("publish", "orders", '{"number": 3}', "--header", "tenant=acme").strip()
    assert event_id
    assert console.json("publish", "orders", "[1]", "--id", "mine") == {"id": "mine", "topic": "orders"}
    console("publish", "orders", "[1]", "--id", "mine")
    assert console.json("topics")[0]["length"] == 2
    console("publish", "orders", "{", code=2, err="not JSON")
    console("publish", "orders", "1", "--header", "x", code=2, err="NAME=VALUE")


def test_publishing_to_a_union_topic_requires_the_type_of_the_event(console: Console, app_file: str) -> None:
    capsys = console._capsys
    publish = ["publish", "orders", "-A", app_file, "--url", console.app.url.text]
    assert run([*publish, '["Sent", {"order": 1}]']) == 0
    assert capsys.readouterr().err == ""
    for wrong in ('{"order": 1}', '["Paid", {"order": 1}]', "1"):
        assert run([*publish, wrong]) == 2
        assert "expected [CLASS, VALUE], where CLASS is one of Placed, Sent" in capsys.readouterr().err
    assert run([*publish, '["Sent", {"order": "one"}]']) == 2
    assert "Expected `int`, got `str`" in capsys.readouterr().err


def test_headers_are_sent_with_a_job(console: Console) -> None:
    job_id = console("enqueue", "greet", '["Ada"]', "--header", "tenant=acme", "--header", "trace=1=2").strip()
    info = console.do(lambda app: app.job(job_id).info())
    assert info.headers == {"tenant": "acme", "trace": "1=2"}
    console("enqueue", "greet", "--header", "tenant", code=2, err="--header tenant must have the form NAME=VALUE")
