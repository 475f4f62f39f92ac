"""Why a job is not running: the decision, computed from values."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from millstream.backends.redis.inspector import trouble
from millstream.broker import JobView, QueueState, Standing, Trouble, Why, WhyCode, WorkerInfo
from millstream.broker.explaining import Facts, explain
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter
from millstream.model.message import ErrorNote, Message, encode_message

MAIL = Address("mail")

NOW = 1_800_000_000.0
READ_ONLY = Trouble("read_only", "the server is a read-only replica")
MEMORY_FULL = Trouble("full", "the server's memory is full", claims=True)


def message(**fields: Any) -> bytes:
    return encode_message(Message("a", "send", msgspec.Raw(b"\x90"), 17, **fields))


def job(status: Any = "ready", said: dict[str, Any] | None = None, **fields: Any) -> JobView:
    return JobView(id="a", queue=Address("mail"), status=status, body=message(**said or {}), **fields)


def worker(name: str = "w", **said: Any) -> WorkerInfo:
    settings: dict[str, Any] = {"tasks": {"send": False}, "slots": (2, 1), "queues": ["mail"], **said}
    return WorkerInfo(name, "host", 1, "0", settings.pop("queues"), 0.0, {}, **settings)


def why(view: JobView | None, *workers: WorkerInfo, address: Address = MAIL, **facts: Any) -> Why:
    state = QueueState(address, 3, 0, 0, 0, facts.pop("paused", False), len(workers), {})
    standing = Standing(NOW, **facts.pop("standing", {}))
    return explain(Facts(address=address, view=view, standing=standing, state=state, workers=workers, **facts))


def test_nothing_prevents_a_ready_job_with_an_idle_worker_from_running() -> None:
    found = why(job(), worker())
    assert (found.code, found.also) == ("ready", ())
    assert str(found) == found.text == "it is ready and waits for a worker: 3 ready in queue 'mail', 1 worker"


def test_a_server_that_refuses_writes_takes_precedence_over_every_other_reason() -> None:
    found = why(job("scheduled", due_at=NOW + 5), trouble=READ_ONLY, paused=True)
    assert (found.code, found.also) == ("read_only", ("paused", "no_worker"))


def test_a_full_server_does_not_hold_up_an_accepted_job() -> None:
    assert why(job(), worker(), trouble=MEMORY_FULL).code == "ready"


def test_an_unknown_job_on_a_full_server_may_have_been_refused() -> None:
    found = why(None, trouble=MEMORY_FULL)
    assert (found.code, found.also) == ("unknown", ("full",))
    assert "memory is full" in found.text


def test_a_paused_queue_names_the_command_that_resumes_it() -> None:
    assert "millstream queues resume mail" in why(job(), worker(), paused=True).text
    of_group = why(job(), worker(queues=["new orders/bill"]), paused=True, address=Address("new orders/bill"))
    assert "millstream groups resume 'new orders/bill'" in of_group.text


def test_a_queue_without_workers_names_the_queues_that_are_served() -> None:
    assert why(job()).text == "no worker serves queue 'mail' (no worker is registered)"
    assert "serve default, video" in why(job(), worker(queues=["video", "default"])).text


def test_a_shard_is_served_by_the_workers_of_its_base_queue() -> None:
    assert why(job(), worker(), address=Address("mail:3")).code == "ready"


def test_an_overdue_job_is_explained_like_a_ready_job() -> None:
    assert why(job("scheduled", due_at=NOW - 1), worker()).code == "ready"
    assert why(job("scheduled", due_at=NOW - 1)).code == "no_worker"


def test_a_scheduled_job_says_when_it_is_due() -> None:
    found = why(job("scheduled", due_at=NOW + 90), worker())
    assert (found.code, found.at) == ("scheduled", NOW + 90)
    assert found.text == "it is scheduled and due at 2027-01-15 08:01:30 UTC (in 90 s)"


def test_a_due_time_past_the_year_9999_is_shown_in_seconds() -> None:
    assert "999999999999 (epoch seconds)" in why(job("scheduled", due_at=999_999_999_999.0), worker()).text


def test_a_snoozed_job_says_that_its_handler_snoozed_it() -> None:
    assert "its handler snoozed it" in why(job("scheduled", {"first_received_ms": 1}, due_at=NOW + 5), worker()).text


def test_a_retry_shows_the_next_attempt_and_the_last_error() -> None:
    failed = {"attempt": 3, "last_error": ErrorNote("ValueError", "bad\nword " + 300 * "x")}
    found = why(job("scheduled", failed, due_at=NOW + 5), worker())
    assert found.code == "retry"
    assert found.error.startswith("ValueError: bad word xxx") and len(found.error) < 220
    assert found.text.startswith("it failed and waits for attempt 3, due at")


def test_a_job_delayed_for_an_unknown_task_says_so_instead_of_scheduled() -> None:
    put_off = job("scheduled", {"unknown_since_ms": 1}, due_at=NOW + 5)
    assert why(put_off, worker(tasks={"other": False})).code == "unknown_task"
    knows = why(put_off, worker(), worker("old", tasks={}))
    assert knows.code == "unknown_task" and "postponed it until" in knows.text


def test_an_unknown_task_names_the_workers_and_some_of_their_tasks() -> None:
    found = why(job(), worker("v", tasks={}), worker("w", tasks=dict.fromkeys("abcdefg", False)))
    assert (found.code, found.workers) == ("unknown_task", ("v", "w"))
    assert found.text.endswith("knows task 'send': v knows none; w knows a, b, c, d, e and 2 more")


def test_an_event_cannot_have_an_unknown_task() -> None:
    assert why(job(), worker(tasks={}, queues=["news/g"]), address=Address("news/g")).code == "ready"


def test_busy_workers_are_named_with_their_running_jobs() -> None:
    found = why(job(), worker(running=(2, 0)))
    assert (found.code, found.workers) == ("busy", ("w",))
    assert found.text.endswith("at its limit: w runs 2 of 2 coroutines")
    of_group = why(job(), worker(queues=["news/g"], full=["news/g"]), address=Address("news/g"))
    assert of_group.text.endswith("at its limit: w runs 0 of 2 coroutines and 0 of 1 threads")


def test_an_idle_worker_that_does_not_know_the_task_does_not_count() -> None:
    assert why(job(), worker(running=(2, 0)), worker("idle", tasks={})).code == "busy"


def test_one_worker_with_a_free_slot_is_enough() -> None:
    assert why(job(), worker(running=(2, 0)), worker("idle")).code == "ready"


def test_a_blocked_job_names_the_job_ahead_and_its_state() -> None:
    ahead = JobView(id="first", queue=Address("mail"), status="running", consumer="w.2")
    found = why(job("blocked"), worker(), standing={"key": b"ann", "turn": "first"}, ahead=ahead)
    assert (found.code, found.job, found.key) == ("blocked", "first", b"ann")
    assert found.text == "it is blocked behind job 'first' with the same key, which is running on worker w (key ann)"


def test_a_stopped_key_names_the_command_that_clears_it() -> None:
    letter = DeadLetter("stopped", ErrorNote("KeyStopped", ""), 1, 0, 0, id="a", task="send", queue="mail", died_at=NOW)
    dead = JobView.of_letter(letter)
    stopped = {"key": b"ann lee", "stopped_by": "first"}
    found = why(dead, worker(), standing=stopped)
    assert (found.code, found.job) == ("stopped_key", "first")
    assert "millstream queues clear mail 'ann lee'" in found.text
    of_group = why(dead, worker(), standing=stopped, address=Address("orders:3/bill"))
    assert "millstream topics clear orders 'ann lee' --group bill" in of_group.text
    assert why(dead, worker()).code == "dead"


def test_a_running_job_says_if_its_worker_is_no_longer_registered() -> None:
    running = job("running", consumer="w.1", since=NOW)
    assert why(running, worker()).text == "it is running on worker w since 2027-01-15 08:00:00 UTC"
    assert "no longer registered" in why(running, worker("other")).text


def test_a_suspect_says_that_it_waits_to_run_alone() -> None:
    found = why(job(alone=True, crashes=2), worker())
    assert (found.code, found.text) == ("suspect", "it waits to run alone, because 2 workers died while running it")


@pytest.mark.parametrize("status", ["done", "cancelled", "expired"])
def test_an_ended_job_says_how_it_ended(status: Any) -> None:
    assert why(job(status)).code == status


def test_every_explanation_has_a_code_of_the_closed_list() -> None:
    assert {"running", "retry", "stopped_key", "busy", "full"} < set(get_args(WhyCode))


# -- problems of a server, from its own report ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "code"),
    [
        ({"role": "slave"}, "read_only"),
        ({"role": "master", "aof_enabled": "1", "aof_last_write_status": "err"}, "full"),
        ({"role": "master", "rdb_last_bgsave_status": "err"}, "full"),
        ({"role": "master", "rdb_last_bgsave_status": "err", "refuses": "no"}, None),
        ({"role": "master", "used_memory": "9", "maxmemory": "8"}, "full"),
        ({"role": "master", "used_memory": "9", "maxmemory": "8", "maxmemory_policy": "allkeys-lru"}, None),
        ({"role": "master", "used_memory": "9", "maxmemory": "0"}, None),
        ({}, None),
    ],
)
def test_the_server_state_explains_why_it_refuses_writes(info: dict[str, str], code: str | None) -> None:
    found = trouble(info)
    assert (None if found is None else found.code) == code
