"""The record of failed attempts, in a waiting job and in its dead letter."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from millstream import Millstream, RetryPolicy, Snooze, current_job
from millstream.errors import JobFailed
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter, decode_letter, encode_letter
from millstream.model.message import FAILURES_KEPT, Attempt, ErrorNote, decode_message
from tests.stage import PATIENCE, looped, new_app

AT_ONCE = RetryPolicy(14, delay=0.0, jitter=False)


async def letter_of(app: Millstream, job_id: str) -> DeadLetter:
    found = await app.inspector.dead_letter("default", job_id)
    assert found is not None
    return found


@looped
async def test_a_dead_letter_lists_its_last_ten_failed_attempts_oldest_first() -> None:
    app = new_app(retry=AT_ONCE)

    @app.task
    async def fail() -> None:
        raise ValueError(f"attempt {current_job().attempt} went wrong")

    before = time.time()
    async with app, app.worker() as worker:
        job = await fail.enqueue()
        with pytest.raises(JobFailed):
            await job.result(PATIENCE)
        letter = await letter_of(app, job.id)
    assert len(letter.failures) == FAILURES_KEPT == 10
    assert [failure.error for failure in letter.failures] == [f"attempt {n} went wrong" for n in range(6, 16)]
    assert [failure.number for failure in letter.failures] == list(range(6, 16))
    assert {failure.error_type for failure in letter.failures} == {"ValueError"}
    assert {failure.worker for failure in letter.failures} == {worker.id}
    moments = [before, *(failure.at for failure in letter.failures), time.time()]
    assert moments == sorted(moments)


@looped
async def test_a_job_waiting_for_a_retry_lists_its_failed_attempts_without_snoozes() -> None:
    app = new_app(retry=RetryPolicy(1, delay=3600.0))
    snoozed: list[str] = []
    failed: list[str] = []

    @app.task
    async def fail() -> None:
        if not snoozed:
            snoozed.append(current_job().id)
            raise Snooze(0.0)
        failed.append(current_job().id)
        raise OSError("the printer is on fire")

    async with app, app.worker():
        job = await fail.enqueue()
        async with asyncio.timeout(PATIENCE):
            while (view := await app.inspector.job("default", job.id)) is None or view.status != "scheduled" or not failed:
                await asyncio.sleep(0.001)
    assert view.message is not None
    assert [(each.error_type, each.error, each.number) for each in view.message.failures] == [
        ("OSError", "the printer is on fire", 1)
    ]


@looped
async def test_the_crash_of_a_worker_is_listed_as_a_failed_attempt_of_its_job() -> None:
    app = new_app(retry=0, max_crashes=2)

    @app.task
    async def fail() -> None:
        raise ValueError("no")

    async with app:
        job = await fail.enqueue()
        broker = await app.broker()
        await broker.join(Address("default"), "one-that-dies", 30.0)
        assert (await broker.claim(Address("default"), "one-that-dies", 1)).entries
        await broker.leave(Address("default"), "one-that-dies")
        async with app.worker():
            with pytest.raises(JobFailed):
                await job.result(PATIENCE)
        crash, last = (await letter_of(app, job.id)).failures
    died = "the worker that held it died or lost the connection to the server"
    assert (crash.error_type, crash.error) == ("WorkerCrashed", died)
    assert (crash.worker, crash.number) == ("", 1)
    assert (last.error_type, last.error, last.number) == ("ValueError", "no", 1)


@looped
async def test_a_replayed_job_starts_without_failed_attempts() -> None:
    app = new_app(retry=0)

    @app.task
    async def fail() -> None:
        raise ValueError("no")

    async with app:
        async with app.worker():
            job = await fail.enqueue()
            with pytest.raises(JobFailed):
                await job.result(PATIENCE)
        found = await app.inspector.dead_letter("default", job.id)
        assert found is not None and found.failures
        assert decode_message(found.body).failures == ()


@looped
async def test_a_long_exception_text_is_truncated_and_its_frames_stay_readable() -> None:
    app = new_app(retry=RetryPolicy(1, delay=0.0))

    @app.task
    async def fail() -> None:
        raise ValueError("x" * 5_000_000)

    async with app, app.worker():
        job = await fail.enqueue()
        with pytest.raises(JobFailed) as failed:
            await job.result(PATIENCE)
        found = await app.inspector.dead_letter("default", job.id)
    assert found is not None
    assert len(msgspec.msgpack.encode(found)) < 40_000
    assert len(failed.value.error) < 5_000 and "more characters" in failed.value.error
    assert "in fail" in failed.value.traceback
    assert all(len(failure.error) < 400 for failure in found.failures)


def test_a_dead_letter_stored_without_failures_can_be_read() -> None:
    written = msgspec.msgpack.encode(["stopped", ["OrderError", "an earlier one is dead", ""], 0, 0, 0])
    assert decode_letter(written).failures == ()


def test_a_stored_dead_letter_starts_with_the_fields_of_the_older_format() -> None:
    written = DeadLetter("exhausted", ErrorNote("ValueError", "no", "Traceback"), 3, 1, 17, (Attempt(1.5, "E", "no", "w", 3),))
    before = ["exhausted", ["ValueError", "no", "Traceback"], 3, 1, 17, [[1.5, "E", "no", "w", 3]]]
    assert msgspec.msgpack.decode(encode_letter(written))[:6] == before
    assert decode_letter(msgspec.msgpack.encode(before)) == written


def test_a_failed_attempt_stored_with_fewer_fields_can_be_read() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([1.5, "E", "no"]), type=Attempt).worker == ""
