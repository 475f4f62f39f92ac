"""Ordered tasks and sharded queues: the jobs of a key run one at a time, in order, and are found in any shard."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from typing import Any

import pytest

from millstream import AsyncTask, Millstream, Reject, RetryPolicy, current_job
from millstream.broker import OrderRules
from millstream.errors import (
    BulkError,
    IdConflict,
    JobFailed,
    JobNotFound,
    QueueFull,
    ResultTimeout,
    ShardsChanged,
    ShardsInUse,
    UsageError,
)
from millstream.model.ordering import shard_of_key
from tests.stage import looped, new_app, place, until

SOON = RetryPolicy(3, delay=0.001, jitter=False)

in_every_backend = pytest.mark.usefixtures("every_backend")


def beside(app: Millstream | None = None) -> Millstream:
    """Return an app in the namespace of another app, or in a new namespace."""
    name = f"test-{secrets.token_hex(6)}" if app is None else app.settings.namespace
    url = f"memory://{name}" if place.url == "memory://" else place.url
    return Millstream(url, namespace=name, retry=SOON)


def make(app: Millstream, got: list[tuple[str, int]], **options: Any) -> AsyncTask[[str, int], int]:
    @app.task(queue="mail", order_by=lambda customer, **_: customer, **options)
    async def send(customer: str, number: int) -> int:
        got.append((customer, number))
        return number

    return send


# -- declaring -------------------------------------------------------------------------------------------------------------


def test_a_task_without_order_by_refuses_ordering_options() -> None:
    app = new_app()
    with pytest.raises(UsageError, match=r"on_failure='stop' of task 'send'.*order_by"):
        app.task(on_failure="stop", name="send")(lambda: None)
    with pytest.raises(UsageError, match=r"max_pending_per_key=5 of task 'send'.*order_by"):
        app.task(max_pending_per_key=5, name="send")(lambda: None)


def test_a_key_function_must_accept_the_parameters_of_its_task() -> None:
    app = new_app()

    def send(customer: str, number: int = 0) -> None: ...

    wrong: list[Any] = [lambda customer: customer, lambda customer, size, **_: customer, "customer"]
    for each in wrong:
        with pytest.raises(UsageError, match=r"order_by of task 'send'"):
            app.task(order_by=each)(send)
    halt: Any = "halt"
    with pytest.raises(UsageError, match="on_failure"):
        app.task(order_by=lambda customer, **_: customer, on_failure=halt)(send)
    app.task(order_by=lambda customer, number: customer)(send)
    assert app.tasks["send"].settings.order == OrderRules()


def test_ordered_tasks_of_one_queue_must_have_the_same_on_failure() -> None:
    app = new_app()

    @app.task(queue="mail", order_by=lambda to: to, on_failure="stop")
    async def one(to: str) -> None: ...

    @app.task(queue="mail", order_by=lambda to: to, on_failure="stop")
    async def same(to: str) -> None: ...

    @app.task(queue="mail")
    async def unordered(to: str) -> None: ...

    @app.task(queue="other", order_by=lambda to: to)
    async def elsewhere(to: str) -> None: ...

    with pytest.raises(UsageError, match=r"task 'two' has on_failure='skip'.*'one'.*on_failure='stop'"):

        @app.task(queue="mail", order_by=lambda to: to)
        async def two(to: str) -> None: ...

    assert "two" not in app.tasks


# -- keys ------------------------------------------------------------------------------------------------------------------


@in_every_backend
@looped
async def test_a_key_function_receives_all_parameters_by_name_including_defaults() -> None:
    app = beside()
    seen: list[dict[str, Any]] = []

    def key(**given: Any) -> str:
        seen.append(given)
        return "x"

    @app.task(order_by=key)
    async def send(first: int, /, customer: str, *rest: int, size: int = 7, **more: int) -> None: ...

    async with app:
        await send.enqueue(1, "ann")
        await send.enqueue(1, "ann", 5, 6, size=8, extra=9)
        await send.enqueue(1, customer="ann")
    assert seen == [
        {"first": 1, "customer": "ann", "rest": (), "size": 7},
        {"first": 1, "customer": "ann", "rest": (5, 6), "size": 8, "extra": 9},
        {"first": 1, "customer": "ann", "rest": (), "size": 7},
    ]


@in_every_backend
@looped
async def test_a_job_whose_key_function_fails_is_refused_and_not_written() -> None:
    app = beside()

    def key(customer: str) -> Any:
        return 1 / 0 if customer == "bad" else [customer]

    @app.task(order_by=key)
    async def send(customer: str) -> None: ...

    async with app:
        with pytest.raises(TypeError, match=r"order_by of task 'send'.*raised ZeroDivisionError") as raised:
            await send.enqueue("bad")
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        with pytest.raises(TypeError, match=r"order_by of task 'send'.*text, bytes or a number, not list"):
            await send.bind("good").enqueue()
        with pytest.raises(BulkError) as refused:
            await app.enqueue_many([send.bind("bad"), send.bind("good")])
        assert len(refused.value.failed) == 2
        assert await app.inspector.queues() == []


# -- order -----------------------------------------------------------------------------------------------------------------


@in_every_backend
@pytest.mark.parametrize("shards", [0, 3])
@looped
async def test_jobs_of_a_key_run_one_at_a_time_and_in_order_through_retries(shards: int) -> None:
    app = beside()
    if shards:
        app.queue("mail", shards=shards)
    got: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()

    @app.task(queue="mail", order_by=lambda customer, **_: customer)
    async def send(customer: str, number: int) -> None:
        assert customer not in running
        assert current_job().queue == "mail"
        running.add(customer)
        await asyncio.sleep(0)
        running.discard(customer)
        if number % 7 == 0 and current_job().attempt < 3:
            raise ValueError("once more")
        got[customer].append(number)

    async with app:
        jobs = await app.enqueue_many(send.bind(f"c{n % 13}", n) for n in range(300))
        jobs += [await send.enqueue(f"c{n % 13}", n) for n in range(300, 310)]
        assert len({job.id for job in jobs}) == 310
        assert {job.queue for job in jobs} == {"mail"}
        async with app.worker(), app.worker():
            await until(lambda: sum(map(len, got.values())) == 310)
    for customer, numbers in got.items():
        assert numbers == [n for n in range(310) if f"c{n % 13}" == customer]


@in_every_backend
@looped
async def test_unordered_jobs_are_spread_over_all_shards_and_an_explicit_id_exists_once() -> None:
    app = beside()
    mail = app.queue("mail", shards=4)

    @app.task(queue="mail")
    async def send(number: int) -> int:
        return number

    async with app:
        await app.enqueue_many(send.bind(n) for n in range(40))
        counts = [(await app.inspector.queue(f"mail:{shard}")).ready for shard in range(4)]
        assert counts == [10] * 4
        for n in range(4):
            await send.options(delay=60).enqueue(n)  # each call has its own options object
        assert [(await app.inspector.queue(f"mail:{shard}")).scheduled for shard in range(4)] == [1] * 4
        once = send.options(id="once")
        assert [(await once.enqueue(1)).created for _ in range(5)] == [True, False, False, False, False]

        @app.task(queue="mail")
        async def other(number: int) -> None: ...

        with pytest.raises(IdConflict, match="'once'"):
            await other.options(id="once").enqueue(1)
        state = await app.inspector.queue("mail")
        assert (state.ready, state.scheduled, state.shards, mail.shards) == (41, 4, 4, 4)


@in_every_backend
@looped
async def test_a_queue_may_be_sharded_after_its_tasks_were_declared() -> None:
    app = beside()
    got: list[tuple[str, int]] = []
    send = make(app, got)
    later = send.options(timeout=5)
    app.queue("mail", shards=3)
    async with app:
        await later.enqueue("ann", 1)
        shard = shard_of_key(b"ann", 3)
        assert (await app.inspector.queue(f"mail:{shard}")).ready == 1


@in_every_backend
@looped
async def test_a_call_may_use_another_queue_with_or_without_shards() -> None:
    app = beside()
    got: list[tuple[str, int]] = []
    send = make(app, got)
    app.queue("wide", shards=3)
    app.queue("narrow")
    async with app:
        wide = await send.options(queue="wide").enqueue("ann", 1)
        narrow = await send.options(queue="narrow").enqueue("ann", 2)
        assert (wide.queue, narrow.queue) == ("wide", "narrow")
        assert await app.inspector.queues() == ["narrow", "wide"]
        async with app.worker():
            assert await wide.result(timeout=20) == 1
            assert await narrow.result(timeout=20) == 2
        assert await send.options(queue="wide").job(wide.id).result(timeout=20) == 1


@in_every_backend
@looped
async def test_max_length_is_divided_among_the_shards() -> None:
    app = beside()
    app.queue("mail", shards=2, max_length=5)
    send = make(app, [])
    async with app:
        for n in range(3):
            await send.enqueue("ann", n)
        with pytest.raises(QueueFull, match=r"'mail' is full: it holds max_length=3 jobs.*shard"):
            await send.enqueue("ann", 3)


# -- jobs ------------------------------------------------------------------------------------------------------------------


@in_every_backend
@looped
async def test_a_job_is_found_in_any_shard_with_its_status_and_result() -> None:
    app = beside()
    app.queue("mail", shards=4)
    got: list[tuple[str, int]] = []
    send = make(app, got)
    stranger = beside(app)  # this app does not declare the queue
    async with app, stranger:
        jobs = [await send.enqueue(f"c{n}", n) for n in range(8)]
        waiting = asyncio.gather(*(send.job(job.id).result(timeout=20) for job in jobs))
        for job in jobs:
            assert await send.job(job.id).status() == "ready"
            assert await stranger.job(job.id, queue="mail").status() == "ready"
            assert await app.inspector.status("mail", job.id) == "ready"
            view = await app.inspector.job("mail", job.id)
            assert view is not None
            assert view.queue == f"mail:{shard_of_key(f'c{job_number(job.id, jobs)}'.encode(), 4)}"
        gone = await send.enqueue("ann", 99)
        assert await stranger.job(gone.id, queue="mail").cancel() is True
        assert await gone.status() == "cancelled"
        async with app.worker():
            assert await waiting == list(range(8))
            assert await stranger.job(jobs[3].id, queue="mail").result(timeout=20) == 3
        assert [job.queue for job in jobs] == ["mail"] * 8


def job_number(job_id: str, jobs: list[Any]) -> int:
    return next(n for n, job in enumerate(jobs) if job.id == job_id)


@in_every_backend
@looped
async def test_a_job_unknown_to_every_shard_is_reported_as_unknown_immediately() -> None:
    app = beside()
    app.queue("mail", shards=4)
    send = make(app, [])
    async with app:
        nobody = send.job("nobody")
        assert await nobody.status() == "unknown"
        for ask in (nobody.cancel, nobody.info, nobody.result):
            with pytest.raises(JobNotFound, match="never existed"):
                await ask()
        waiting = await send.enqueue("ann", 1)
        for job in (waiting, send.job(waiting.id)):
            with pytest.raises(ResultTimeout, match="no worker serves queue 'mail'"):
                await job.result(timeout=0.01)


@in_every_backend
@looped
async def test_a_dead_job_of_a_sharded_queue_has_its_reason_and_can_be_replayed() -> None:
    app = beside()
    app.queue("mail", shards=4)
    spoilt = True

    @app.task(queue="mail", order_by=lambda customer: customer)
    async def send(customer: str) -> str:
        if spoilt:
            raise Reject("no stamp")
        return customer

    async with app:
        job = await send.enqueue("ann")
        async with app.worker():
            with pytest.raises(JobFailed, match="no stamp"):
                await send.job(job.id).result(timeout=20)
            (letter,) = await app.dead.list(queue="mail")
            assert (letter.queue, letter.order_key, letter.shard) == ("mail", b"ann", shard_of_key(b"ann", 4))
            assert await app.dead.list() == [letter]
            spoilt = False
            assert await app.dead.replay(job.id) == [job.id]
            assert await job.result(timeout=20) == "ann"


# -- operations ------------------------------------------------------------------------------------------------------------


@in_every_backend
@pytest.mark.parametrize("shards", [0, 3])
@looped
async def test_a_stopped_key_of_a_queue_is_listed_and_resumes_when_it_is_cleared(shards: int) -> None:
    app = beside()
    mail = app.queue("mail", shards=shards or None)
    got: list[int] = []
    spoilt = True

    @app.task(queue="mail", order_by=lambda customer, **_: customer, on_failure="stop")
    async def send(customer: int, number: int) -> None:
        if number == 0 and spoilt:
            raise Reject("no")
        got.append(number)

    async with app:
        for n in range(3):
            await send.enqueue(7, n)
        async with app.worker():
            async with asyncio.timeout(20):
                while (await app.inspector.queue("mail")).dead < 3:
                    await asyncio.sleep(0.01)
        (stopped,) = await mail.stopped_keys()
        assert (stopped.key, stopped.text, stopped.waiting) == (b"7", "7", 3)
        assert (await app.inspector.queue("mail")).stopped == 1
        for key in (8, "8", b"8"):
            with pytest.raises(UsageError, match=r"key '8' of <queue 'mail'> is not stopped"):
                await mail.clear(key)
        spoilt = False
        assert await mail.clear(7) == 3
        async with app.worker():
            await until(lambda: got == [0, 1, 2])


@in_every_backend
@looped
async def test_a_sharded_queue_is_paused_and_resumed_in_all_shards() -> None:
    app = beside()
    mail = app.queue("mail", shards=3)
    got: list[tuple[str, int]] = []
    send = make(app, got)
    async with app:
        await mail.pause()
        for n in range(6):
            await send.enqueue(f"c{n}", n)
        state = await app.inspector.queue("mail")
        assert (state.paused, state.ready) == (True, 6)
        await mail.resume()
        async with app.worker():
            await until(lambda: len(got) == 6)
        assert not (await app.inspector.queue("mail")).paused


@in_every_backend
@looped
async def test_jobs_of_all_shards_are_listed_page_by_page() -> None:
    app = beside()
    app.queue("mail", shards=4)
    send = make(app, [])
    async with app:
        jobs = [await send.options(delay=100 + n).enqueue(f"c{n}", n) for n in range(25)]
        found, after = [], ""
        while page := await app.inspector.jobs("mail", "scheduled", after=after, limit=4):
            found += page
            after = page[-1].cursor
        assert [view.id for view in found] == [job.id for job in jobs]
        assert (await app.inspector.jobs("mail", "scheduled", limit=1))[0].id == jobs[0].id


@in_every_backend
@looped
async def test_a_queue_can_be_resharded_only_when_it_is_idle() -> None:
    app = beside()
    mail = app.queue("mail", shards=2)
    got: list[tuple[str, int]] = []
    send = make(app, got)
    async with app:
        await send.enqueue("ann", 1)
        with pytest.raises(ShardsInUse, match="1 ready"):
            await mail.reshard(5)
        async with app.worker():
            await until(lambda: len(got) == 1)
        await mail.pause()
        await mail.reshard(5)
        with pytest.raises(ShardsChanged, match=r"queue 'mail' has 5 shards.*declares 2.*queues reshard mail 2"):
            await send.enqueue("ann", 2)
        with pytest.raises(ShardsChanged, match="has 5 shards"):
            async with app.worker():
                pass
        after = beside(app)
        after.queue("mail", shards=5)
        again = make(after, got)
        async with after:
            assert (await after.inspector.queue("mail")).paused
            await after.queue("mail", shards=5).resume()
            for n in range(10):
                await again.enqueue(f"c{n}", n)
            async with after.worker():
                await until(lambda: len(got) == 11)
        await mail.reshard(0)
        plain = beside(app)
        send_plainly = make(plain, got)
        async with plain:
            await send_plainly.enqueue("ann", 3)
            assert (await plain.inspector.queue("mail")).shards == 0


@in_every_backend
@looped
async def test_an_app_that_declares_no_shards_cannot_use_a_sharded_queue() -> None:
    app = beside()
    app.queue("mail", shards=2)
    send = make(app, [])
    async with app:
        await send.enqueue("ann", 1)
        plain = beside(app)
        other = make(plain, [])
        async with plain:
            with pytest.raises(ShardsChanged, match=r"has 2 shards.*declares none"):
                await other.enqueue("ann", 2)
            with pytest.raises(ShardsChanged, match=r"has 2 shards.*declares none"):
                async with plain.worker():
                    pass
