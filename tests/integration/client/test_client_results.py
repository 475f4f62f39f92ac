"""Waiting for a result: the value, or the reason why there is no value."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from millstream import Millstream
from millstream.broker import Broker, WorkerInfo
from millstream.errors import (
    BrokerUnavailable,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    ResultError,
    ResultsDisabled,
    ResultTimeout,
    UsageError,
)
from millstream.model.address import Address
from tests.stage import dead, done, expired, looped, new_app, until, work

pytestmark = pytest.mark.usefixtures("every_backend")


@dataclass
class Picture:
    name: str
    width: int


def build() -> tuple[Millstream, Any]:
    app = new_app()

    @app.task
    async def shrink(n: int) -> Picture:
        return Picture("small", n)

    return app, shrink


@looped
async def test_a_result_is_converted_to_its_annotated_type() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    await work(app, done({"name": "small", "width": 3}))
    assert await job.result() == Picture("small", 3)
    assert await shrink.job(job.id).result(timeout=1) == Picture("small", 3)


@looped
async def test_an_untyped_job_returns_plain_values() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    await work(app, done({"name": "small", "width": 3}))
    assert await app.job(job.id).result() == {"name": "small", "width": 3}


@looped
async def test_every_waiter_receives_the_result() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    waiting = [asyncio.create_task(job.result(timeout=timedelta(seconds=20))) for _ in range(3)]
    await asyncio.sleep(0)
    await work(app, done({"name": "small", "width": 3}))
    assert await asyncio.gather(*waiting) == [Picture("small", 3)] * 3


@looped
async def test_a_dead_job_raises_its_reason_in_one_line_with_the_traceback_separate() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    await work(app, dead("timeout", error="took\ntoo " + "l" * 500 + "ong"))
    with pytest.raises(JobFailed, match=r"'shrink'.*\(timeout\): ValueError: took too l+…$") as caught:
        await job.result()
    failed = caught.value
    assert (failed.job_id, failed.reason, failed.error_type, failed.traceback) == (
        job.id,
        "timeout",
        "ValueError",
        "Traceback: …",
    )
    assert failed.error.startswith("took\ntoo")
    assert "\n" not in str(failed)


@looped
async def test_a_dead_job_without_an_ending_is_read_from_its_dead_letter() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    await work(app, dead("rejected", ttl=0))
    with pytest.raises(JobFailed, match="rejected"):
        await job.result()


@looped
async def test_waiting_for_a_cancelled_job_raises_job_cancelled() -> None:
    _, shrink = build()
    job = await shrink.enqueue(3)
    waiting = asyncio.create_task(job.result())
    await asyncio.sleep(0)
    await job.cancel()
    with pytest.raises(JobCancelled, match=job.id):
        await waiting


@looped
async def test_waiting_for_an_expired_job_raises_job_expired() -> None:
    app, shrink = build()
    job = await shrink.options(expires=60).enqueue(3)
    await work(app, expired)
    with pytest.raises(JobExpired, match=job.id):
        await job.result()


@looped
async def test_a_timeout_says_where_the_job_is_and_that_no_worker_serves_its_queue() -> None:
    _, shrink = build()
    job = await shrink.options(delay=60).enqueue(3)
    with pytest.raises(ResultTimeout, match=r"scheduled and due .* no worker serves queue 'default'") as caught:
        await job.result(timeout=0.01)
    assert (caught.value.status, caught.value.served) == ("scheduled", False)
    assert caught.value.why is not None
    assert (caught.value.why.code, caught.value.why.also) == ("scheduled", ("no_worker",))
    assert isinstance(caught.value, TimeoutError)


@looped
async def test_a_timeout_says_how_many_workers_serve_the_queue() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    broker = await app.broker()
    await broker.join(Address("default"), "hand.1", 30.0)
    await broker.register(WorkerInfo("hand", "host", 1, "0", ["default"], 0.0, {}), 30.0)
    with pytest.raises(ResultTimeout, match="ready and waits for a worker: 1 ready in queue 'default', 1 worker") as caught:
        await job.result(timeout=0)
    assert caught.value.served


@looped
async def test_a_timeout_of_zero_returns_a_result_that_is_ready() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    await work(app, done({"name": "small", "width": 3}))
    assert await job.result(timeout=0) == Picture("small", 3)


ENDS = {
    "done": (done({"name": "small", "width": 3}), None),
    "dead": (dead("rejected"), JobFailed),
    "dead, letter only": (dead("rejected", ttl=0), JobFailed),
    "expired": (expired, JobExpired),
    "not kept": (done(ttl=0), ResultsDisabled),
}


@pytest.mark.parametrize("ends", ENDS)
@looped
async def test_a_job_that_ends_during_the_last_check_is_not_a_timeout(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    broker = await app.broker()
    settle, error = ENDS[ends]
    get = broker.results.get

    async def get_before_it_ends(queue: Address, job_id: str) -> bytes | None:
        ending = await get(queue, job_id)
        await work(app, settle)
        return ending

    monkeypatch.setattr(broker.results, "get", get_before_it_ends)
    if error is None:
        assert await job.result(timeout=0) == Picture("small", 3)
    else:
        with pytest.raises(error):
            await job.result(timeout=0)


@looped
async def test_a_job_replayed_during_the_lookup_of_its_dead_letter_is_still_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    await work(app, dead("rejected", ttl=0))
    broker = await app.broker()
    wait = broker.results.wait

    async def wait_and_replay(*key: Any) -> bytes | None:
        ending = await wait(*key)
        if ending is None:
            assert await app.dead.replay(job.id) == [job.id]
            await work(app, done({"name": "small", "width": 3}))
        return ending

    monkeypatch.setattr(broker.results, "wait", wait_and_replay)
    assert await job.result() == Picture("small", 3)


@looped
async def test_a_timeout_while_the_server_is_unreachable_is_still_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    broker = await app.broker()

    async def away(*_: Any) -> Any:
        raise BrokerUnavailable("the server is away")

    monkeypatch.setattr(broker.results, "get", away)
    with pytest.raises(ResultTimeout, match="could not be read: the server is away") as caught:
        await job.result(timeout=0)
    assert caught.value.status == "unknown"


@looped
async def test_waiting_for_a_task_that_keeps_no_results_raises_immediately() -> None:
    app, shrink = build()

    @app.task(result_ttl=0)
    def forget() -> None: ...

    for job in (await forget.enqueue(), await shrink.options(result_ttl=0).enqueue(1)):
        with pytest.raises(ResultsDisabled, match="result_ttl=0"):
            await job.result()
    kept = await forget.options(result_ttl=60).enqueue()
    with pytest.raises(ResultTimeout):
        await kept.result(timeout=0)


@looped
async def test_a_job_that_kept_no_result_or_never_existed_has_no_result() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    await work(app, done(ttl=0))
    for gone, error in ((job, ResultsDisabled), (shrink.job("never"), JobNotFound)):
        for timeout in (None, 0):
            with pytest.raises(error, match="or it never existed"):
                await gone.result(timeout=timeout)
        assert await gone.status() == "unknown"


@looped
async def test_a_dead_job_without_a_kept_ending_raises_job_failed_even_with_a_short_timeout() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    await work(app, dead("exhausted", ttl=0))
    for timeout in (None, 0, 0.001):
        with pytest.raises(JobFailed, match="exhausted"):
            await job.result(timeout=timeout)


@looped
async def test_a_stored_result_of_the_wrong_type_raises_an_error_that_names_the_job() -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    await work(app, done("not a picture"))
    with pytest.raises(ResultError, match=job.id):
        await job.result()


@looped
async def test_an_invalid_timeout_is_refused() -> None:
    _, shrink = build()
    job = await shrink.enqueue(3)
    with pytest.raises(UsageError, match="timeout"):
        await job.result(timeout=-1)


@looped
async def test_a_call_is_repeated_during_a_short_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    app, shrink = build()
    job = await shrink.enqueue(3)
    broker = await app.broker()
    answers: list[Any] = [BrokerUnavailable("away"), BrokerUnavailable("away")]
    cancel = type(broker).cancel

    async def flaky(self: Broker, queue: Address, job_id: str, **options: Any) -> Any:
        if answers:
            raise answers.pop()
        return await cancel(self, queue, job_id, **options)

    monkeypatch.setattr(type(broker), "cancel", flaky)
    assert await job.cancel() is True


@looped
async def test_a_long_wait_for_many_jobs_of_a_task_logs_the_obstacle_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millstream.jobs.job.LONG_WAIT_SECONDS", 1.0)
    app, shrink = build()
    async with app:
        jobs = [await shrink.enqueue(1) for _ in range(20)]
        waiting = [asyncio.create_task(job.result()) for job in jobs]
        await until(lambda: caplog.messages)
        await work(app, done({"name": "a", "width": 1}))
        await asyncio.gather(*waiting)
        assert len(caplog.messages) == 1


@looped
async def test_a_long_wait_logs_that_no_worker_serves_the_queue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millstream.jobs.job.LONG_WAIT_SECONDS", 0.0)
    app, shrink = build()
    async with app:
        job = await shrink.enqueue(1)
        waiting = asyncio.create_task(job.result())
        await until(lambda: caplog.messages)
        (message,) = caplog.messages
        assert job.id in message and "no worker" in message
        await work(app, done({"name": "a", "width": 1}))
        await waiting
