"""Invalid entries in a queue: each becomes a dead letter with a reason, and the jobs around it are done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from millstream.errors import JobExpired, JobFailed
from millstream.model.dead_letter import DeadLetter
from tests.system.apps import jobs
from tests.system.harness import Ledger, Server, Workers, eventually, state, totals, until_done

STREAM = "{millstream:q:default}:s"


def letters() -> list[DeadLetter]:
    return jobs.app.inspector.dead_letters_sync("default")


def among_neighbours(ledger: Ledger, workers: Workers, put: Callable[[], object], app: str = "jobs:app") -> DeadLetter:
    """Call ``put`` between jobs and wait until those jobs are done. Return the dead letter that ``put`` led to."""
    jobs.app.enqueue_many_sync(jobs.measure.bind(f"before-{i}", "…") for i in range(20))
    put()
    jobs.app.enqueue_many_sync(jobs.measure.bind(f"after-{i}", "…") for i in range(20))
    workers.launch("--concurrency", "4", app=app)
    eventually(lambda: state().dead == 1, "the dead letter")
    until_done(40)
    neighbours = [f"{where}-{i}" for where in ("before", "after") for i in range(20)]
    assert {key: ledger.runs()[key] for key in neighbours} == dict.fromkeys(neighbours, 1)
    (letter,) = letters()
    return letter


GARBAGE: list[tuple[bytes, ...]] = [
    (b"user", b"42", b"name", b"\xff\xfe"),
    (b"d", b"\xc1 no msgpack at all"),
    (b"d", b""),
    (b"d", msgspec.msgpack.encode({"id": 1})),
    (b"d", msgspec.msgpack.encode(["id", "task"])),
    (b"d", b"\xff" * 300_000),
    (b"d", b"body", b"x", b"not a time"),
]


def test_an_entry_that_is_not_a_message_is_malformed_and_its_bytes_are_kept(
    ledger: Ledger, workers: Workers, server: Server
) -> None:
    jobs.note.enqueue_sync("before")
    for i, fields in enumerate(GARBAGE):
        server.call("XADD", STREAM, "*", *fields)
        jobs.note.enqueue_sync(f"between-{i}")
    workers.launch("--concurrency", "4")
    eventually(lambda: state().dead == len(GARBAGE), "the dead letters")
    until_done(1 + len(GARBAGE))
    assert sorted(ledger.runs().items()) == [("before", 1), *((f"between-{i}", 1) for i in range(len(GARBAGE)))]
    for letter, fields in zip(letters(), GARBAGE, strict=True):
        assert (letter.reason, letter.task) == ("malformed", "")
        only_body = len(fields) == 2 and fields[0] == b"d"
        assert [b"d", letter.body] == list(fields) if only_body else msgspec.msgpack.decode(letter.body) == list(fields)


def test_an_idle_worker_finds_an_entry_that_another_program_added(ledger: Ledger, workers: Workers, server: Server) -> None:
    workers.start()
    server.call("XADD", STREAM, "*", "foreign", "1")
    eventually(lambda: state().dead == 1, "the dead letter", within=10)
    assert letters()[0].reason == "malformed"


def test_a_malformed_dead_letter_stays_malformed_after_a_replay(ledger: Ledger, workers: Workers, server: Server) -> None:
    server.call("XADD", STREAM, "*", "d", "garbage")
    workers.start()
    eventually(lambda: state().dead == 1, "the dead letter")
    assert len(jobs.app.dead.replay_sync(reason="malformed")) == 1
    eventually(lambda: totals()["dead"] == 2, "the dead letter to die again")
    assert [(letter.reason, letter.body) for letter in letters()] == [("malformed", b"garbage")]


def test_an_entry_that_was_trimmed_after_its_claim_becomes_a_dead_letter(
    ledger: Ledger, gate: Path, workers: Workers, server: Server
) -> None:
    """Its worker is killed, so another worker takes over a claim whose entry is gone."""
    worker = workers.start(lease=1)
    jobs.hold.enqueue_sync("held", str(gate))
    ledger.until_started()
    server.call("XTRIM", STREAM, "MAXLEN", 0)
    worker.kill_all()
    workers.start(lease=1)
    eventually(lambda: state().dead == 1, "the dead letter")
    (letter,) = letters()
    assert letter.reason == "malformed"
    assert "trimmed" in letter.error.message
    assert ledger.runs() == {"held": 1}


def test_a_job_whose_arguments_exceed_the_workers_limit_is_oversize(ledger: Ledger, workers: Workers) -> None:
    letter = among_neighbours(ledger, workers, lambda: jobs.measure.enqueue_sync("large", "x" * 2000), app="older:app")
    assert (letter.reason, letter.task) == ("oversize", "measure")
    assert "max_payload_bytes=1,000" in letter.error.message
    assert "large" not in ledger.runs()


def test_a_job_whose_arguments_no_longer_match_the_task_is_invalid(ledger: Ledger, workers: Workers) -> None:
    letter = among_neighbours(ledger, workers, lambda: jobs.note.enqueue_sync("text"), app="older:app")
    assert (letter.reason, letter.task, letter.attempts) == ("invalid_arguments", "note", 1)
    assert "key" in letter.error.message
    assert "text" not in ledger.runs()


def test_a_job_of_an_unknown_task_is_snoozed_and_then_dead(ledger: Ledger, workers: Workers) -> None:
    job = jobs.nap.enqueue_sync("unknown", 0.0)
    worker = workers.launch(app="older:app", unknown_task_grace=1)
    worker.until_ready()
    eventually(lambda: job.status_sync() == "scheduled", "the job to be snoozed")
    with pytest.raises(JobFailed, match="unknown_task"):
        job.result_sync(timeout=30)
    (letter,) = letters()
    assert (letter.reason, letter.task, letter.attempts) == ("unknown_task", "nap", 1)
    assert totals()["retried"] >= 1
    assert worker.log.count("which this worker does not know") == 1


def test_a_job_of_an_unknown_task_runs_if_a_newer_worker_starts_in_time(ledger: Ledger, workers: Workers) -> None:
    """A rolling deploy: workers of the old release still run when the new release starts."""
    job = jobs.nap.enqueue_sync("new", 0.0)
    workers.launch(app="older:app", unknown_task_grace=60)
    eventually(lambda: job.status_sync() == "scheduled", "the job to be snoozed")
    workers.launch()
    until_done(1)
    assert [(line.key, line.attempt) for line in ledger.starts()] == [("new", 1)]


def test_a_job_whose_result_cannot_be_encoded_is_invalid_and_is_not_retried(ledger: Ledger, workers: Workers) -> None:
    letter = among_neighbours(ledger, workers, lambda: jobs.unspeakable.enqueue_sync("unspeakable"))
    assert (letter.reason, letter.task, letter.attempts) == ("invalid_result", "unspeakable", 1)
    assert ledger.runs()["unspeakable"] == 1


def test_an_expired_job_does_not_run(ledger: Ledger, workers: Workers) -> None:
    job = jobs.note.options(expires=0.05).enqueue_sync("late")
    jobs.note.options(expires=600).enqueue_sync("in_time")
    workers.start()
    with pytest.raises(JobExpired):
        job.result_sync(timeout=30)
    until_done(1)
    assert job.status_sync() == "expired"
    assert ledger.runs() == {"in_time": 1}
    assert (totals()["expired"], state().dead) == (1, 0)


def test_a_failing_job_is_retried_and_then_dead_with_its_traceback(ledger: Ledger, workers: Workers) -> None:
    job = jobs.fail.enqueue_sync("fail")
    worker = workers.start()
    with pytest.raises(JobFailed, match="exhausted"):
        job.result_sync(timeout=30)
    (letter,) = letters()
    assert (letter.reason, letter.attempts, letter.error.type) == ("exhausted", 3, "ValueError")
    assert "raise ValueError(key)" in letter.error.traceback
    assert [line.attempt for line in ledger.starts()] == [1, 2, 3]
    assert worker.log.count(f"job {job.id} (task 'fail', attempt ") == 3


def test_a_message_of_a_later_release_with_additional_fields_runs(ledger: Ledger, workers: Workers, server: Server) -> None:
    job = jobs.note.enqueue_sync("note")
    ((_, fields),) = server.call("XRANGE", STREAM, "-", "+")
    newer = [*msgspec.msgpack.decode(fields[b"d"], type=list[msgspec.Raw]), {"a field": "of tomorrow"}]
    server.call("XADD", STREAM, "*", "d", msgspec.msgpack.encode(newer))
    workers.start()
    eventually(lambda: len(ledger.ends()) == 2, "both to run")
    assert {line.job for line in ledger.starts()} == {job.id}
