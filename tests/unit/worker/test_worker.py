"""A worker in this process, on the memory backend: the outcomes of jobs."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from millstream import Millstream, Reject, Retry, RetryPolicy, Snooze, current_job
from millstream.backends.memory import MemoryBroker
from millstream.broker import Entry
from millstream.errors import BrokerError, BrokerRefused, JobCancelled, JobExpired, JobFailed, ResultsDisabled, UsageError
from millstream.model.address import Address
from millstream.model.message import Message, encode_message
from tests.stage import looped, new_app, until

SOON = RetryPolicy(2, delay=0.001, jitter=False)
PATIENCE = 10.0


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * PATIENCE):
            await coroutine

    asyncio.run(bounded())


def make_app(**options: Any) -> Millstream:
    return Millstream("memory://", retry=SOON, **options)


def test_a_coroutine_and_a_thread_return_their_values() -> None:
    app = make_app()
    threads: list[str] = []

    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.task
    def shout(text: str) -> str:
        threads.append(threading.current_thread().name)
        return text.upper()

    async def main() -> None:
        async with app.worker():
            assert await (await double.enqueue(21)).result(PATIENCE) == 42
            assert await (await shout.enqueue("hi")).result(PATIENCE) == "HI"

    run(main())
    assert threads[0].startswith("millstream-")


def test_retry_policy_n_makes_n_plus_one_attempts_and_then_the_job_is_exhausted() -> None:
    app = make_app()
    attempts: list[int] = []

    @app.task
    async def fail() -> None:
        attempts.append(current_job().attempt)
        raise ValueError("no good")

    async def main() -> None:
        async with app.worker():
            job = await fail.enqueue()
            with pytest.raises(JobFailed) as failure:
                await job.result(PATIENCE)
            assert failure.value.reason == "exhausted"
            assert (failure.value.error_type, failure.value.error) == ("ValueError", "no good")
            assert "in fail" in failure.value.traceback

    run(main())
    assert attempts == [1, 2, 3]


def test_a_due_job_starts_although_the_nudge_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    nudges: list[str] = []
    awake = asyncio.Event()

    @app.task
    async def remind() -> str:
        return "reminded"

    async def wait_for_a_nudge(*_: Any) -> None:
        await awake.wait()
        awake.clear()

    async def lose_the_first(_: MemoryBroker, queue: Address, consumer: str) -> None:
        nudges.append(queue)
        if len(nudges) > 1:
            awake.set()

    monkeypatch.setattr(MemoryBroker, "_idle", wait_for_a_nudge)
    monkeypatch.setattr(MemoryBroker, "nudge", lose_the_first)

    async def main() -> None:
        async with app:
            job = await remind.options(delay=0.3).enqueue()
            async with app.worker():
                assert await job.result(PATIENCE) == "reminded"

    run(main())
    assert len(nudges) > 1


@pytest.mark.parametrize(("retry", "expected"), [(0, 1), (1, 2), (RetryPolicy(3, delay=0, jitter=False), 4)])
def test_a_call_overrides_the_retry_count_or_the_whole_policy(retry: RetryPolicy | int, expected: int) -> None:
    app = make_app()
    attempts: list[int] = []

    @app.task
    async def fail() -> None:
        attempts.append(current_job().attempt)
        raise ValueError

    async def main() -> None:
        async with app.worker():
            with pytest.raises(JobFailed):
                await (await fail.options(retry=retry).enqueue()).result(PATIENCE)

    run(main())
    assert len(attempts) == expected


def test_a_rejected_job_is_dead_immediately() -> None:
    app = make_app()

    @app.task
    async def fussy() -> None:
        raise Reject("not mine")

    async def main() -> None:
        async with app.worker():
            with pytest.raises(JobFailed) as failure:
                await (await fussy.enqueue()).result(PATIENCE)
            assert (failure.value.reason, failure.value.error) == ("rejected", "not mine")

    run(main())


def test_an_exception_in_never_on_makes_the_job_dead_as_rejected() -> None:
    app = make_app()

    @app.task(retry=RetryPolicy(5, delay=0, never_on=(KeyError,)))
    async def picky() -> None:
        raise KeyError("x")

    async def main() -> None:
        async with app.worker():
            with pytest.raises(JobFailed, match="rejected"):
                await (await picky.enqueue()).result(PATIENCE)

    run(main())


def test_snooze_uses_no_attempt_and_retry_uses_one() -> None:
    app = make_app()
    seen: list[int] = []

    @app.task
    async def later() -> str:
        seen.append(current_job().attempt)
        if len(seen) <= 4:
            raise Snooze(0.001)
        if len(seen) == 5:
            raise Retry(delay=timedelta(milliseconds=1))
        return "done"

    async def main() -> None:
        async with app.worker():
            assert await (await later.enqueue()).result(PATIENCE) == "done"

    run(main())
    assert seen == [1, 1, 1, 1, 1, 2]


def test_system_exit_keyboard_interrupt_and_a_stray_cancellation_are_failed_attempts() -> None:
    app = make_app()
    errors: list[BaseException] = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
    left = list(errors)

    @app.task(retry=RetryPolicy(3, delay=0, jitter=False))
    async def rude() -> str:
        if left:
            raise left.pop()
        return "still here"

    @app.task(retry=RetryPolicy(1, delay=0, jitter=False))
    def rude_thread() -> str:
        if current_job().attempt == 1:
            sys.exit(3)
        return "still here"

    async def main() -> None:
        async with app.worker():
            assert await (await rude.enqueue()).result(PATIENCE) == "still here"
            assert await (await rude_thread.enqueue()).result(PATIENCE) == "still here"

    run(main())


def test_a_coroutine_past_its_timeout_is_cancelled_and_dead_as_timeout() -> None:
    app = make_app()
    cancelled: list[bool] = []

    @app.task(timeout=0.01, retry=0)
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(current_job().cancelled)
            raise

    async def main() -> None:
        async with app.worker():
            with pytest.raises(JobFailed) as failure:
                await (await endless.enqueue()).result(PATIENCE)
            assert failure.value.reason == "timeout"

    run(main())
    assert cancelled == [True]


def test_a_timeout_is_not_retried_with_retry_timeouts_false_but_errors_are() -> None:
    app = make_app()
    attempts: list[str] = []

    @app.task(timeout=0.01, retry=RetryPolicy(1, delay=timedelta(0), retry_timeouts=False))
    async def work(fails: bool) -> None:
        attempts.append("fails" if fails else "hangs")
        if fails:
            raise ValueError
        await asyncio.Event().wait()

    async def main() -> None:
        async with app.worker():
            reasons: list[str] = []
            for job in (await work.enqueue(False), await work.options(retry=work.retry.replace(delay=0)).enqueue(False)):
                with pytest.raises(JobFailed) as failure:
                    await job.result(PATIENCE)
                reasons.append(failure.value.reason)
            assert reasons == ["timeout", "timeout"]
            with pytest.raises(JobFailed, match="exhausted"):
                await (await work.options(timeout=None).enqueue(True)).result(PATIENCE)

    run(main())
    assert attempts == ["hangs", "hangs", "fails", "fails"]


def test_a_coroutine_that_swallows_its_cancellation_still_ends_as_a_timeout() -> None:
    app = make_app()

    @app.task(timeout=0.01, retry=0)
    async def stubborn() -> str:
        while not current_job().cancelled:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                break
        return "I finished anyway"

    async def main() -> None:
        async with app.worker():
            with pytest.raises(JobFailed) as failure:
                await (await stubborn.enqueue()).result(PATIENCE)
            assert failure.value.reason == "timeout"

    run(main())


def test_a_retry_of_a_thread_past_its_timeout_starts_only_after_the_thread_has_returned() -> None:
    app = make_app()
    running, most = 0, 0
    lock = threading.Lock()

    @app.task(timeout=0.01, retry=RetryPolicy(1, delay=0, jitter=False))
    def slow() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        told = threading.Event()
        while not current_job().cancelled:
            told.wait(0.005)
        with lock:
            running -= 1

    async def main() -> None:
        async with app.worker(threads=4):
            with pytest.raises(JobFailed) as failure:
                await (await slow.enqueue()).result(PATIENCE)
            assert failure.value.reason == "timeout"

    run(main())
    assert most == 1


def test_lifespan_state_is_available_in_coroutines_and_threads_and_closed_at_the_end() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Millstream) -> AsyncIterator[dict[str, str]]:
        events.append("open")
        yield {"db": "connected"}
        events.append("closed")

    app = make_app(lifespan=lifespan)

    @app.task
    async def look() -> str:
        return str(current_job().state["db"])

    @app.task
    def look_in_thread() -> str:
        return str(current_job().state["db"])

    async def main() -> None:
        async with app.worker():
            assert await (await look.enqueue()).result(PATIENCE) == "connected"
            assert await (await look_in_thread.enqueue()).result(PATIENCE) == "connected"

    run(main())
    assert events == ["open", "closed"]


def test_current_job_outside_a_handler_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="outside a handler"):
        current_job()


def test_at_most_concurrency_coroutines_run_at_the_same_time() -> None:
    app = make_app()
    running, most = 0, 0

    @app.task(result_ttl=0)
    async def count(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async def main() -> None:
        async with app.worker(concurrency=5) as worker:
            await app.enqueue_many(count.bind(n) for n in range(300))
            await worker.until_idle()

    run(main())
    assert most == 5


def test_every_job_of_a_large_batch_runs_exactly_once() -> None:
    app = make_app()
    seen: list[int] = []

    @app.task(result_ttl=0)
    async def note(n: int) -> None:
        seen.append(n)

    async def main() -> None:
        async with app.worker(concurrency=100) as worker:
            await app.enqueue_many(note.bind(n) for n in range(5000))
            await worker.until_idle()
            assert worker.totals["done"] == 5000

    run(main())
    assert sorted(seen) == list(range(5000))


def test_a_finished_job_leaves_nothing_for_the_garbage_collector() -> None:
    app = make_app()
    tasks: list[weakref.ref[asyncio.Task[Any]]] = []

    @app.task
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(weakref.ref(task))

    async def main() -> None:
        async with app.worker():
            await (await work.enqueue()).result(PATIENCE)
            assert [task() for task in tasks] == [None]

    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()


def test_a_job_expires_instead_of_running_late() -> None:
    app = make_app()
    ran: list[int] = []

    @app.task
    async def offer() -> None:
        ran.append(1)

    async def main() -> None:
        job = await offer.options(expires=0.001).enqueue()
        await asyncio.sleep(0.01)  # lets the job expire; there is nothing to wait for
        async with app.worker():
            with pytest.raises(JobExpired):
                await job.result(PATIENCE)
        assert await job.status() == "expired"

    run(main())
    assert ran == []


def test_a_cancelled_job_never_runs() -> None:
    app = make_app()
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    async def main() -> None:
        doomed, kept = await note.enqueue(1), await note.enqueue(2)
        assert await doomed.cancel()
        async with app.worker():
            await kept.result(PATIENCE)
            with pytest.raises(JobCancelled):
                await doomed.result(PATIENCE)
            assert not await kept.cancel()

    run(main())
    assert ran == [2]


def test_a_paused_queue_is_not_served_until_resumed() -> None:
    app = make_app()
    queue = app.queue("default")
    ran = asyncio.Event()

    @app.task
    async def note() -> None:
        ran.set()

    @app.task(queue="other")
    async def elsewhere() -> str:
        return "served"

    async def main() -> None:
        await queue.pause()
        async with app.worker():
            job = await note.enqueue()
            assert await (await elsewhere.enqueue()).result(PATIENCE) == "served"
            assert await job.status() == "ready"
            assert not ran.is_set()
            await queue.resume()
            await job.result(PATIENCE)

    run(main())


def test_a_job_whose_result_cannot_be_encoded_is_dead_and_not_run_again() -> None:
    app = make_app()
    runs: list[int] = []

    @app.task
    async def odd() -> Any:
        runs.append(1)
        return object()

    async def main() -> None:
        async with app.worker():
            with pytest.raises(JobFailed) as failure:
                await (await odd.enqueue()).result(PATIENCE)
            assert failure.value.reason == "invalid_result"

    run(main())
    assert runs == [1]


@pytest.mark.parametrize("plain", [False, True])
def test_a_job_whose_result_has_the_wrong_type_is_dead_and_not_run_again(plain: bool) -> None:
    app = make_app()
    runs: list[int] = []

    @app.task
    async def number() -> int:
        runs.append(1)
        return "text"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    @app.task
    async def numbers() -> list[int]:
        runs.append(1)
        return ["text"]  # type: ignore[list-item]  # pyright: ignore[reportReturnType]

    async def main() -> None:
        async with app.worker():
            with pytest.raises(JobFailed) as failure:
                await (await (number if plain else numbers).enqueue()).result(PATIENCE)
            assert failure.value.reason == "invalid_result"
            assert "Expected `int`, got `str`" in failure.value.error

    run(main())
    assert runs == [1]


def test_a_job_whose_result_exceeds_max_payload_bytes_is_dead_as_invalid_result() -> None:
    app = make_app(max_payload_bytes=100)

    @app.task
    async def big(n: int) -> str:
        return "x" * n

    async def main() -> None:
        async with app.worker():
            assert await (await big.enqueue(90)).result(PATIENCE) == "x" * 90
            with pytest.raises(JobFailed, match="invalid_result"):
                await (await big.enqueue(101)).result(PATIENCE)

    run(main())


def test_without_a_result_ttl_no_result_is_kept_and_the_status_is_unknown() -> None:
    app = make_app()

    @app.task(result_ttl=0)
    async def quiet() -> int:
        return 1

    async def main() -> None:
        async with app.worker() as worker:
            job = await quiet.enqueue()
            with pytest.raises(ResultsDisabled):
                await job.result(PATIENCE)
            await worker.until_idle()
            assert await job.status() == "unknown"

    run(main())


def test_a_job_whose_arguments_no_longer_fit_is_dead_as_invalid_arguments() -> None:
    app = make_app()
    newer = make_app()

    @app.task(name="grow")
    async def grow(a: int) -> None: ...

    @newer.task(name="grow")
    async def grow_more(a: int, b: int) -> None: ...

    async def main() -> None:
        with app.override("memory://fit"), newer.override("memory://fit"):
            job = await grow.enqueue(1)
            async with newer.worker():
                with pytest.raises(JobFailed) as failure:
                    await job.result(PATIENCE)
                assert failure.value.reason == "invalid_arguments"
                assert "b" in failure.value.error

    run(main())


def test_a_job_of_an_unknown_task_is_delayed_then_dead_as_unknown_task(caplog: pytest.LogCaptureFixture) -> None:
    old = make_app()
    app = make_app(unknown_task_grace=0.2)

    @old.task
    async def removed() -> None: ...

    @app.task
    async def present() -> None: ...

    async def main() -> None:
        with old.override("memory://unknown"), app.override("memory://unknown"):
            job = await removed.enqueue()
            async with app.worker():
                with pytest.raises(JobFailed) as failure:
                    await job.result(PATIENCE)
                assert failure.value.reason == "unknown_task"

    with caplog.at_level(logging.WARNING, "millstream.worker"):
        run(main())
    assert sum("does not know" in record.getMessage() for record in caplog.records) == 1


def test_an_alias_serves_jobs_sent_under_the_old_name() -> None:
    old, app = make_app(), make_app()

    @old.task(name="before")
    async def before() -> str:
        return "old"

    @app.task(name="after", aliases=("before",))
    async def after() -> str:
        return "new"

    async def main() -> None:
        with old.override("memory://alias"), app.override("memory://alias"):
            job = await before.enqueue()
            async with app.worker():
                assert await job.result(PATIENCE) == "new"

    run(main())


def test_oversize_and_malformed_entries_are_dead_and_the_others_run() -> None:
    app = make_app(max_payload_bytes=50)

    @app.task
    async def echo(text: str) -> str:
        return text

    async def main() -> None:
        from millstream.broker import Post

        broker = await app.broker()
        before = await echo.enqueue("before")
        args = msgspec.Raw(msgspec.msgpack.encode(["x" * 60]))
        big = encode_message(Message("big", "echo", args, 0))
        await broker.publish(Address("default"), [Post("garbage", b"\xc1 not msgpack"), Post("big", big, "echo")])
        after = await echo.enqueue("after")
        async with app.worker():
            assert await before.result(PATIENCE) == "before"
            assert await after.result(PATIENCE) == "after"
        letters = {letter.reason: letter for letter in await app.dead.list()}
        assert set(letters) == {"malformed", "oversize"}

    run(main())


def test_a_success_is_not_logged_at_info_and_a_failure_names_job_task_and_attempt(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app()

    @app.task
    async def fine() -> None: ...

    @app.task(retry=0)
    async def broken() -> None:
        raise ValueError("oops")

    ids: list[str] = []

    async def main() -> None:
        async with app.worker():
            await (await fine.enqueue()).result(PATIENCE)
            job = await broken.enqueue()
            ids.append(job.id)
            with pytest.raises(JobFailed):
                await job.result(PATIENCE)

    with caplog.at_level(logging.INFO, "millstream"):
        run(main())
    lines = [record.getMessage() for record in caplog.records]
    failures = [line for line in lines if "broken" in line]
    assert len(failures) == 1
    assert ids[0] in failures[0]
    assert "attempt 1 of 1" in failures[0]
    assert not any("fine" in line for line in lines)


def test_a_worker_without_queues_to_serve_is_refused() -> None:
    app = make_app()

    async def main() -> None:
        with pytest.raises(UsageError, match="no tasks"):
            async with app.worker():
                pass

    run(main())


@pytest.mark.parametrize(
    ("options", "why"),
    [({"concurrency": 0}, "concurrency"), ({"threads": -1}, "threads"), ({"queues": ["nope"]}, "does not declare 'nope'")],
)
def test_worker_options_are_checked(options: dict[str, Any], why: str) -> None:
    app = make_app()

    @app.task
    async def fine() -> None: ...

    async def main() -> None:
        with pytest.raises(UsageError, match=why):
            async with app.worker(**options):
                pass

    run(main())


def test_run_returns_when_until_is_done_or_stop_is_called() -> None:
    app = make_app()

    @app.task
    async def last() -> None:
        app.stop()

    async def main() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        assert (await app.run(until=done)).interrupted == 0
        await last.enqueue()
        assert (await app.run()).totals["done"] == 1

    run(main())


def test_shutdown_cancels_jobs_after_the_grace_period_and_releases_them_without_an_attempt() -> None:
    app = make_app(grace=0)
    started = asyncio.Event()
    seen: list[tuple[int, int]] = []

    @app.task
    async def long() -> str:
        seen.append((current_job().attempt, current_job().crashes))
        if len(seen) == 1:
            started.set()
            await asyncio.Event().wait()
        return "second time"

    async def main() -> None:
        job = await long.enqueue()
        async with app.worker():
            await started.wait()
        assert await job.status() == "ready"
        async with app.worker():
            assert await job.result(PATIENCE) == "second time"

    run(main())
    assert seen == [(1, 0), (1, 0)]


def test_an_interrupted_at_most_once_job_is_dead_as_crashed() -> None:
    app = make_app(grace=0)
    started = asyncio.Event()

    @app.task(max_crashes=0)
    async def once() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        job = await once.enqueue()
        async with app.worker():
            await started.wait()
        assert await job.status() == "dead"
        assert [letter.reason for letter in await app.dead.list()] == ["crashed"]

    run(main())


def test_workers_are_listed_while_they_run_and_removed_after_a_clean_stop() -> None:
    app = make_app()

    @app.task
    async def fine() -> None: ...

    async def main() -> None:
        async with app.worker() as worker:
            (info,) = await app.inspector.workers()
            assert (info.id, info.queues) == (worker.id, ["default"])
        assert await app.inspector.workers() == []

    run(main())


def test_an_exception_whose_str_fails_is_a_failed_attempt_like_any_other() -> None:
    app = make_app()

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @app.task(retry=1)
    async def odd() -> None:
        raise Unprintable

    async def main() -> None:
        async with app.worker():
            with pytest.raises(JobFailed) as failure:
                await (await odd.options(retry=0).enqueue()).result(PATIENCE)
            assert (failure.value.reason, failure.value.error_type) == ("exhausted", "Unprintable")

    run(main())


def test_a_traceback_starts_in_the_users_code() -> None:
    app = make_app()

    @app.task(retry=0)
    async def fail() -> None:
        raise ValueError

    async def main() -> None:
        async with app.worker():
            with pytest.raises(JobFailed) as failure:
                await (await fail.enqueue()).result(PATIENCE)
            assert "runner.py" not in failure.value.traceback

    run(main())


def test_a_lifespan_that_fails_leaves_no_worker_registered() -> None:
    @asynccontextmanager
    async def lifespan(app: Millstream) -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    app = make_app(lifespan=lifespan)

    @app.task
    async def fine() -> None: ...

    async def main() -> None:
        with pytest.raises(OSError, match="no database"):
            async with app.worker():
                pass
        assert await app.inspector.workers() == []

    run(main())


def test_a_blocked_event_loop_is_reported_with_the_task_and_its_stack(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.worker.services.watch.BLOCKED_SECONDS", 0.2)
    app = make_app()
    reported = threading.Event()

    class Noticing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "task 'hog'" in record.getMessage():
                reported.set()

    @app.task
    async def hog() -> bool:
        return reported.wait(PATIENCE)  # blocks the event loop until the report arrives

    async def main() -> None:
        async with app.worker():
            assert await (await hog.enqueue()).result(2 * PATIENCE)

    logger = logging.getLogger("millstream.worker")
    handler = Noticing()
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.WARNING, "millstream.worker"):
            run(main())
    finally:
        logger.removeHandler(handler)
    report = next(record.getMessage() for record in caplog.records if "task 'hog'" in record.getMessage())
    assert "blocked" in report
    assert "reported.wait" in report


def test_suspects_run_one_at_a_time_and_alone() -> None:
    app = make_app()
    beside: list[tuple[int, int]] = []
    running = 0

    @app.task
    async def count() -> None:
        nonlocal running
        running += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        beside.append((current_job().crashes, running))
        running -= 1

    async def main() -> None:
        jobs = [await count.enqueue() for _ in range(6)]
        broker = await app.broker()
        for n in range(2):  # two workers die while they hold the first three jobs
            await broker.join(Address("default"), f"dying-{n}", 30.0)
            await broker.claim(Address("default"), f"dying-{n}", 3)
            await broker.leave(Address("default"), f"dying-{n}")
        async with app.worker(concurrency=10):
            for job in jobs:
                await job.result(PATIENCE)

    run(main())
    assert sorted(crashes for crashes, _ in beside) == [0, 0, 0, 2, 2, 2]
    assert [together for crashes, together in beside if crashes == 2] == [1, 1, 1]


def test_a_worker_that_lost_its_lease_continues_as_a_new_incarnation() -> None:
    app = make_app()
    started = asyncio.Event()
    cancelled = asyncio.Event()
    runs: list[int] = []

    @app.task
    async def work() -> str:
        runs.append(1)
        if len(runs) == 1:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
        return "by the new incarnation"

    async def main() -> None:
        async with app.worker() as worker:
            job = await work.enqueue()
            await started.wait()
            (lane,) = worker._lanes
            broker = await app.broker()
            await broker.leave(Address("default"), lane.consumer)  # simulate a lapsed lease
            assert await job.result(PATIENCE) == "by the new incarnation"
            assert cancelled.is_set()

    run(main())
    assert len(runs) == 2


def test_an_entry_that_raises_any_decoding_error_is_malformed_and_the_other_jobs_run() -> None:
    app = make_app()

    @app.task
    async def echo(n: int) -> int:
        return n

    async def main() -> None:
        from millstream.broker import Post

        broker = await app.broker()
        before = await echo.enqueue(1)
        nested = b"\x91" * 100_000  # msgspec raises RecursionError for this
        await broker.publish(Address("default"), [Post("nested", nested)])
        after = await echo.enqueue(2)
        async with app.worker():
            assert [await before.result(PATIENCE), await after.result(PATIENCE)] == [1, 2]
        assert [letter.reason for letter in await app.dead.list()] == ["malformed"]

    run(main())


def test_an_error_text_that_is_not_utf8_is_stored_and_its_slot_becomes_free() -> None:
    app = make_app()

    @app.task(retry=0)
    async def read() -> None:
        raise ValueError("cannot read caf\udce9.txt")

    @app.task
    async def fine() -> str:
        return "fine"

    async def main() -> None:
        async with app.worker(concurrency=1):
            with pytest.raises(JobFailed) as failure:
                await (await read.enqueue()).result(PATIENCE)
            assert failure.value.error == "cannot read caf\\udce9.txt"
            assert await (await fine.enqueue()).result(PATIENCE) == "fine"

    run(main())


def test_outcomes_refused_by_the_server_for_a_while_are_kept_and_nothing_runs_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    runs: list[int] = []

    @app.task(max_crashes=0)
    async def once(n: int) -> int:
        runs.append(n)
        return n

    async def main() -> None:
        broker = await app.broker()
        settle, refusals = broker.settle, 3

        async def refusing(queue: Address, consumer: str, outcomes: Any) -> int:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise BrokerRefused("the password was changed, and is put right soon")
            return await settle(queue, consumer, outcomes)

        monkeypatch.setattr(broker, "settle", refusing)
        async with app.worker():
            jobs = [await once.enqueue(n) for n in range(3)]
            assert [await job.result(PATIENCE) for job in jobs] == [0, 1, 2]

    run(main())
    assert sorted(runs) == [0, 1, 2]


def test_an_outcome_that_the_server_cannot_store_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()

    @app.task
    async def echo(n: int) -> int:
        return n

    async def main() -> None:
        broker = await app.broker()
        settle = broker.settle
        jobs = [await echo.enqueue(n) for n in range(5)]

        async def choking(queue: Address, consumer: str, outcomes: Any) -> int:
            if any(outcome.id == jobs[2].id for outcome in outcomes):
                raise BrokerError("cannot digest this one")
            return await settle(queue, consumer, outcomes)

        monkeypatch.setattr(broker, "settle", choking)
        async with app.worker() as worker:
            for n in (0, 1, 3, 4):
                assert await jobs[n].result(PATIENCE) == n
            assert worker.totals["refused"] == 1

    run(main())


def test_a_full_worker_does_not_repeat_claims_in_a_tight_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    claims = 0

    @app.task(result_ttl=0)
    async def nap(n: int) -> None:
        await asyncio.sleep(0.01)  # the work of the job

    async def main() -> None:
        broker = await app.broker()
        claim = broker.claim

        async def counting(*args: Any, **options: Any) -> Any:
            nonlocal claims
            claims += 1
            return await claim(*args, **options)

        monkeypatch.setattr(broker, "claim", counting)
        async with app.worker(concurrency=1) as worker:
            for n in range(40):
                await nap.enqueue(n)
            await worker.until_idle()

    run(main())
    assert claims < 40 * 20  # without a bound it was hundreds per job


@looped
async def test_a_claim_that_emptied_the_queue_is_followed_by_a_blocking_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()
    waits: list[float] = []

    @app.task
    async def note(number: int) -> int:
        return number

    async with app:
        broker = await app.broker()
        claim = broker.claim

        async def noting(*args: Any, **options: Any) -> Any:
            waits.append(options.get("wait", 0.0))
            return await claim(*args, **options)

        async with app.worker():
            await (await note.enqueue(0)).result(PATIENCE)
            monkeypatch.setattr(broker, "claim", noting)
            for number in range(1, 10):
                await (await note.enqueue(number)).result(PATIENCE)
    assert waits
    assert all(waits)


def test_a_function_whose_thread_cannot_be_started_fails_and_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    refused: list[int] = []
    start = threading.Thread.start

    def stingy(thread: threading.Thread) -> None:
        if thread.name == "millstream-1" and not refused:
            refused.append(1)
            raise RuntimeError("can't start new thread")
        start(thread)

    @app.task
    def work() -> int:
        return current_job().attempt

    async def main() -> None:
        async with app.worker(threads=1):
            monkeypatch.setattr(threading.Thread, "start", stingy)
            assert await (await work.enqueue()).result(PATIENCE) == 2

    run(main())


@looped
async def test_jobs_claimed_too_long_ago_are_recovered_from_the_server_before_they_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another worker may have taken over the jobs of a suspended process. Here every claim is too old to be sure."""
    app = new_app()
    ran: list[int] = []

    @app.task
    async def note(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0.01)

    recovered: list[int] = []
    async with app:
        broker = await app.broker()
        recover = broker.recover

        async def count(queue: Address, consumer: str, holding: Any) -> list[Entry]:
            entries = await recover(queue, consumer, holding)
            await asyncio.sleep(0.02)  # more jobs become doubtful during the call
            recovered.append(len(entries))
            return entries

        monkeypatch.setattr(broker, "recover", count)
        await app.enqueue_many(note.bind(n) for n in range(60))
        async with app.worker(concurrency=2) as worker:
            worker._runner.trusted = 0.03  # some of the jobs that wait for a slot are doubtful
            await until(lambda: len(ran) == 60)
    assert sorted(ran) == list(range(60))
    assert sum(recovered) > 0
