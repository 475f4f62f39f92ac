"""enqueue_many: any mix of calls; every call is tried, in order, read lazily and sent in requests of limited size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from millstream import Call, Millstream
from millstream.client import outbox as outbox_module
from millstream.client.outbox import MAX_BYTES, MAX_POSTS
from millstream.errors import BrokerUnavailable, BulkError, IdConflict, PayloadTooLarge, QueueFull, UsageError
from millstream.model.address import Address
from tests.stage import Wire, done, looped, new_app, published, work

pytestmark = pytest.mark.usefixtures("every_backend")


def build() -> tuple[Millstream, Any, Any]:
    app = new_app()

    @app.task
    async def shrink(n: int) -> int:
        return n

    @app.task(queue="mail", max_payload_bytes=1 << 24)
    def send(data: bytes) -> None: ...

    return app, shrink, send


@looped
async def test_jobs_are_returned_in_call_order_for_any_mix_of_calls() -> None:
    app, shrink, send = build()
    calls = [
        shrink.bind(1),
        send.bind(b"x"),
        shrink.options(id="mine").bind(2),
        shrink.options(queue="mail").bind(3),
        shrink.options(delay=60).bind(4),
        shrink.options(id="mine").bind(2),
    ]
    jobs = await app.enqueue_many(calls)
    assert [(job.task, job.queue, job.created) for job in jobs] == [
        ("shrink", "default", True),
        ("send", "mail", True),
        ("shrink", "default", True),
        ("shrink", "mail", True),
        ("shrink", "default", True),
        ("shrink", "default", False),
    ]
    assert [await job.status() for job in jobs] == ["ready", "ready", "ready", "ready", "scheduled", "ready"]
    assert await published(app) == {"default": 3, "mail": 2}


@looped
async def test_jobs_of_a_queue_run_in_call_order() -> None:
    app, shrink, _ = build()
    jobs = await app.enqueue_many(shrink.bind(i) for i in range(1000))
    taken = await work(app, done())
    assert [message.id for message in taken] == [job.id for job in jobs]
    assert [shrink.arguments.decode(message.args)[0][0] for message in taken] == list(range(1000))


@looped
async def test_invalid_calls_are_named_and_the_others_are_sent() -> None:
    app, shrink, _ = build()
    with pytest.raises(BulkError, match=r"2 of 5.*index 1: TypeError") as caught:
        await app.enqueue_many([shrink.bind(0), shrink.bind("x"), shrink.bind(2), shrink.bind(), shrink.bind(4)])
    error = caught.value
    assert {place: type(refusal) for place, refusal in error.failed.items()} == {1: TypeError, 3: TypeError}
    assert [error.results[place].created for place in (0, 2, 4)] == [True, True, True]
    assert await published(app) == {"default": 3}


@looped
async def test_with_return_exceptions_errors_are_returned_at_their_positions() -> None:
    app, shrink, _ = build()
    app.queue("small", max_length=1)
    small = shrink.options(queue="small")

    @app.task(max_payload_bytes=10)
    def other(data: bytes) -> None: ...

    await shrink.options(id="taken").enqueue(0)
    calls: list[Any] = [small.bind(1), small.bind(2), other.bind(b"x" * 20), other.options(id="taken").bind(b""), 42, shrink]
    results = await app.enqueue_many(calls, return_exceptions=True)
    assert getattr(results[0], "created", None) is True
    assert [type(result) for result in results[1:]] == [QueueFull, PayloadTooLarge, IdConflict, TypeError, TypeError]


@looped
async def test_a_task_of_another_app_is_refused() -> None:
    app, shrink, _ = build()
    _, foreign, _ = build()
    results = await app.enqueue_many([foreign.bind(1), shrink.bind(2), foreign.bind(3)], return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["UsageError", "Job", "UsageError"]
    assert isinstance(results[0], UsageError)
    assert await published(app) == {"default": 1}


@looped
async def test_an_empty_iterable_returns_an_empty_list() -> None:
    app, _, _ = build()
    assert await app.enqueue_many([]) == []


@looped
async def test_the_number_of_messages_per_request_is_limited() -> None:
    app, shrink, _ = build()
    wire = await Wire.tap(app)
    await app.enqueue_many(shrink.bind(i) for i in range(2 * MAX_POSTS + 1))
    assert [len(posts) for _, posts in wire.calls] == [MAX_POSTS, MAX_POSTS, 1]


@looped
async def test_the_bytes_per_request_are_limited_and_a_larger_message_is_sent_alone() -> None:
    app, shrink, send = build()
    wire = await Wire.tap(app)
    sizes = [MAX_BYTES // 3] * 7 + [3 * MAX_BYTES] + [1] * 3 + [MAX_BYTES - 200] + [10] * 3
    await app.enqueue_many(call for size in sizes for call in (send.bind(b"x" * size), shrink.bind(1)))
    assert sum(len(posts) for queue, posts in wire.calls if queue == "mail") == len(sizes)
    for _, posts in wire.calls:
        assert len(posts) == 1 or sum(len(post.body) for post in posts) <= MAX_BYTES


@looped
async def test_an_iterable_is_read_only_slightly_ahead_of_what_is_sent() -> None:
    app, shrink, _ = build()
    wire = await Wire.tap(app)
    ahead: list[int] = []

    def calls() -> Iterator[Call[int]]:
        for i in range(20 * MAX_POSTS):
            ahead.append(i - wire.jobs)
            yield shrink.bind(i)

    await app.enqueue_many(calls())
    assert max(ahead) <= 3 * MAX_POSTS


@looped
async def test_serials_stay_in_order_when_single_enqueues_interleave() -> None:
    app, shrink, send = build()
    wire = await Wire.tap(app)

    async def singles() -> None:
        for i in range(50):
            await asyncio.gather(shrink.enqueue(i), send.enqueue(b""))

    many = (call for i in range(2000) for call in (shrink.bind(i), send.bind(b"x")))
    await asyncio.gather(app.enqueue_many(many), singles(), app.enqueue_many(shrink.bind(i) for i in range(500)))
    for queue, count in (("default", 2550), ("mail", 2050)):
        serials = [post.serial for to, posts in wire.calls if to == queue for post in posts]
        assert serials == list(range(1, count + 1))


@looped
async def test_other_tasks_of_the_event_loop_run_even_if_every_call_is_refused() -> None:
    app, shrink, _ = build()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await app.enqueue_many((shrink.bind("x") for _ in range(10 * MAX_POSTS)), return_exceptions=True)
    task.cancel()
    assert turns >= 10


@looped
async def test_when_the_server_stays_unreachable_the_remaining_jobs_fail_without_waiting_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "PATIENCE_SECONDS", 1.0)  # longer than a busy machine needs to serve the other queue
    app, shrink, send = build()
    broker = await app.broker()
    publish = broker.publish

    async def away(queue: Address, *args: Any, **options: Any) -> Any:
        if queue == "default":
            raise BrokerUnavailable("the server is away")
        return await publish(queue, *args, **options)

    monkeypatch.setattr(broker, "publish", away)
    calls = [call for i in range(5 * MAX_POSTS) for call in (shrink.bind(i), send.bind(b""))]
    results = await app.enqueue_many(calls, return_exceptions=True)
    refused, sent = results[::2], results[1::2]
    assert all(isinstance(result, BrokerUnavailable) for result in refused)
    ids = [result.job_id for result in refused if isinstance(result, BrokerUnavailable)]
    assert ids[0] is not None
    assert ids[0].endswith("-1"), "a job that was sent may have arrived, so the error has its id"
    assert ids[-1] is None, "a job that was never sent has no id"
    assert "not sent" in str(refused[-1])
    assert not [result for result in sent if isinstance(result, Exception)], "the other queue is not affected"
