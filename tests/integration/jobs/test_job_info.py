"""Looking up a job by its id: where it is found, its fields, and why it has not ended."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream import Millstream, RetryPolicy
from millstream.errors import JobFailed, JobNotFound, ResultTimeout, UsageError
from millstream.model.message import Attempt
from tests.stage import dead, looped, new_app, until, work

in_every_backend = pytest.mark.usefixtures("every_backend")


@in_every_backend
@looped
async def test_a_job_is_found_by_its_id_in_any_queue() -> None:
    app = new_app()
    app.queue("wide", shards=3)

    @app.task(queue="mail")
    async def send(n: int) -> int:
        return n

    async with app:
        narrow, wide = await send.enqueue(1), await send.options(queue="wide").enqueue(2)
        for job in (narrow, wide):
            found = app.job(job.id)
            assert (found.queue, await found.status(), (await found.info()).queue) == ("", "ready", job.queue)
        assert await app.job(wide.id).cancel() is True
        async with app.worker():
            assert await app.job(narrow.id).result(timeout=20) == 1


@in_every_backend
@looped
async def test_an_id_unknown_to_every_queue_is_not_found() -> None:
    app = new_app()
    app.queue("mail")
    async with app:
        for job in (app.job("nobody"), app.job("nobody", queue="mail")):
            assert await job.status() == "unknown"
            for ask in (job.info, job.result, job.cancel):
                with pytest.raises(JobNotFound, match=r"'nobody'.* was not found at "):
                    await ask()
            with pytest.raises(JobNotFound):
                await job.result(timeout=0)


@in_every_backend
@looped
async def test_an_id_that_exists_in_several_queues_requires_a_queue() -> None:
    app = new_app()
    app.queue("b")

    @app.task(queue="a")
    async def send() -> None: ...

    async with app:
        await send.options(id="x").enqueue()
        await send.options(id="x", queue="b").enqueue()
        for ask in (app.job("x").status, app.job("x").info, app.job("x").cancel, app.job("x").result):
            with pytest.raises(UsageError, match=r"several queues have a job 'x' \('a', 'b'\)"):
                await ask()
        assert await app.job("x", queue="b").cancel() is True
        assert await app.job("x", queue="a").status() == "ready"


def test_creating_a_job_handle_does_no_io(tmp_path: Path) -> None:
    app = Millstream(f"unix://{tmp_path}/nobody-listens.sock")
    assert app.job("x").id == "x"


@in_every_backend
@looped
async def test_info_returns_all_known_fields_of_a_job() -> None:
    app = new_app()

    @app.task(retry=RetryPolicy(5, delay=60, jitter=False))
    async def send() -> None:
        raise ValueError("no luck")

    async with app:
        later = await send.options(delay=50, expires=90).enqueue()
        waiting = await later.info()
        assert (waiting.id, waiting.task, waiting.queue, waiting.status) == (later.id, "send", "default", "scheduled")
        assert (waiting.attempt, waiting.last_error, waiting.failures, waiting.worker) == (1, None, (), "")
        assert waiting.why.code == "scheduled"
        now = datetime.now(UTC)
        assert waiting.due_at is not None and now < waiting.due_at < now + timedelta(seconds=51)
        assert waiting.expires_at is not None and waiting.due_at < waiting.expires_at
        assert waiting.enqueued_at is not None and waiting.started_at is None and waiting.ended_at is None
        async with app.worker() as worker:
            failing = await send.enqueue()
            await until(lambda: worker.totals["retried"] == 1)
        failed = await failing.info()
        assert (failed.status, failed.attempt, failed.last_error) == ("scheduled", 2, "ValueError: no luck")
        assert failed.why.code == "retry" and failed.why.error == "ValueError: no luck"
        (attempt,) = failed.failures
        assert isinstance(attempt, Attempt)
        assert (attempt.error_type, attempt.error, attempt.worker, attempt.number) == ("ValueError", "no luck", worker.id, 1)


@in_every_backend
@looped
async def test_info_of_a_running_job_names_its_worker_and_of_a_done_job_its_task_and_times() -> None:
    app = new_app()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def send() -> int:
        begun.set()
        await go_on.wait()
        return 7

    async with app, app.worker() as worker:
        job = await send.enqueue()
        await begun.wait()
        running = await job.info()
        assert (running.status, running.worker, running.why.code) == ("running", worker.id, "running")
        assert running.started_at is not None
        before = datetime.now(UTC)
        go_on.set()
        await job.result(timeout=20)
        done = await app.job(job.id).info()
        assert (done.task, done.status, done.why.code, done.worker) == ("send", "done", "done", "")
        assert done.enqueued_at == running.enqueued_at
        assert done.ended_at is not None and abs(done.ended_at - before) < timedelta(seconds=20)


@in_every_backend
@looped
async def test_a_result_ttl_override_does_not_change_the_end_time_of_a_job() -> None:
    app = new_app()

    @app.task
    async def send() -> None: ...

    async with app, app.worker():
        first = await send.enqueue()
        await first.result(timeout=20)
        long = await send.options(result_ttl=100_000).enqueue()
        await long.result(timeout=20)
        ends = [(await job.info()).ended_at for job in (first, long)]
        assert all(end is not None and abs(end - datetime.now(UTC)) < timedelta(seconds=60) for end in ends)


@in_every_backend
@looped
async def test_a_worker_reports_its_tasks_and_its_used_slots() -> None:
    app = new_app()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task(aliases=["old"], queue="mail")
    async def send() -> None:
        begun.set()
        await go_on.wait()

    @app.task
    def compute() -> None: ...

    async with app, app.worker(concurrency=1, threads=2) as worker:
        (idle,) = await app.inspector.workers()
        assert (idle.tasks, idle.slots, idle.running, idle.full) == (
            {"send": False, "old": False, "compute": True},
            (1, 2),
            (0, 0),
            [],
        )
        await send.enqueue()
        await begun.wait()
        await worker._registrar.beat()
        (busy,) = await app.inspector.workers()
        assert (busy.running, busy.full) == ((1, 0), ["mail"])
        go_on.set()


# -- waiting for a result ------------------------------------------------------------------------------------------------------


@in_every_backend
@looped
async def test_a_timeout_says_why_the_job_has_not_ended_and_where_it_is() -> None:
    app = new_app()

    @app.task
    async def send() -> None: ...

    async with app:
        job = await send.enqueue()
        await app.queue("default").pause()
        with pytest.raises(ResultTimeout, match="queue 'default' is paused") as caught:
            await job.result(timeout=0)
        assert caught.value.why is not None and caught.value.why.code == "paused"
        assert app.where in str(caught.value)
        assert app.settings.namespace in app.where


@in_every_backend
@looped
async def test_a_dead_job_without_a_kept_ending_raises_job_failed_with_a_timeout_of_zero() -> None:
    app = new_app()

    @app.task
    async def send() -> None: ...

    async with app:
        job = await send.enqueue()
        await work(app, dead(ttl=0))
        with pytest.raises(JobFailed):
            await job.result(timeout=0)


@in_every_backend
@looped
async def test_a_dead_job_whose_dead_letter_was_purged_still_says_why_it_died() -> None:
    app = new_app()

    @app.task
    async def send() -> None: ...

    async with app:
        job = await send.enqueue()
        await work(app, dead(error="no route"))
        assert await app.dead.purge(ids=[job.id]) == [job.id]
        info = await job.info()
        assert (info.why.code, info.last_error) == ("dead", "ValueError: no route")
        assert "no route" in info.why.text


def test_where_contains_no_password_and_names_the_embedded_folder(tmp_path: Path, monkeypatch: Any) -> None:
    assert Millstream("redis://user:secret@host:7000/3").where == "redis://user:***@host:7000/3"
    assert Millstream("redis://host", namespace="shop").where == "redis://host:6379/0, namespace shop"
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path))
    assert Millstream("embedded://").where == f"embedded server in {tmp_path.resolve()}"


@in_every_backend
@looped
async def test_due_jobs_of_all_shards_count_as_due_in_the_queue() -> None:
    app = new_app()
    app.queue("wide", shards=3)

    @app.task(queue="wide")
    async def send() -> None: ...

    async with app:
        for _ in range(6):
            await send.options(delay=0.001).enqueue()
        async with asyncio.timeout(20):
            while await app.inspector.due("wide") < 6:
                await asyncio.sleep(0.001)
