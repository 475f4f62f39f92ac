"""Enqueueing one job: the returned job, and the calls that are refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Millstream
from millstream.broker import Broker
from millstream.client import outbox
from millstream.errors import BrokerUnavailable, IdConflict, PayloadTooLarge, QueueFull, UsageError
from millstream.model.address import Address
from tests.stage import done, looped, new_app, published, work

pytestmark = pytest.mark.usefixtures("every_backend")


def build(**options: Any) -> tuple[Millstream, Any]:
    app = new_app(**options)

    @app.task
    async def resize(image_id: int, width: int = 800) -> str:
        return f"{image_id}:{width}"

    return app, resize


@looped
async def test_an_enqueued_job_is_ready_and_has_its_id_task_and_queue() -> None:
    _, resize = build()
    job = await resize.enqueue(42, width=100)
    assert (job.queue, job.task, job.created, await job.status()) == ("default", "resize", True, "ready")
    assert repr(job) == f"<job {job.id!r} of task 'resize' in queue 'default'>"


@looped
async def test_a_generated_id_is_an_incarnation_and_a_counter_per_queue() -> None:
    app, resize = build()
    app.queue("mail")
    here = [await resize.enqueue(i) for i in range(3)]
    there = await resize.options(queue="mail").enqueue(1)
    sender, _, first = here[0].id.partition("-")
    assert len(sender) >= 10
    assert [job.id for job in here] == [f"{sender}-1", f"{sender}-2", f"{sender}-3"]
    assert first == "1"
    assert there.id.endswith("-1")
    assert not there.id.startswith(sender)


@looped
async def test_the_message_contains_the_id_task_and_arguments() -> None:
    app, resize = build()
    job = await resize.enqueue(42, width=100)
    [message] = await work(app, done())
    assert (message.id, message.task, message.attempt, message.given_id) == (job.id, "resize", 1, False)
    assert resize.arguments.decode(message.args) == ((42, 100), {})


@pytest.mark.parametrize("arguments", [((), {}), (("x",), {}), ((1, 2, 3), {}), ((1,), {"hight": 3}), ((object(),), {})])
@looped
async def test_arguments_of_the_wrong_type_raise_type_error_and_nothing_is_written(arguments: Any) -> None:
    app, resize = build()
    args, kwargs = arguments
    with pytest.raises(TypeError, match="resize"):
        await resize.enqueue(*args, **kwargs)
    assert await published(app) == {}


@looped
async def test_bind_checks_nothing_and_enqueue_checks_the_arguments() -> None:
    _, resize = build()
    call = resize.bind("x")
    assert repr(call) == "<call resize('x')>"
    with pytest.raises(TypeError, match="image_id"):
        await call.enqueue()
    assert (await resize.bind(1).enqueue()).created


@looped
async def test_a_payload_of_exactly_the_limit_is_accepted_and_one_byte_more_is_refused() -> None:
    app = new_app(max_payload_bytes=100)

    @app.task
    def take(data: bytes) -> None: ...

    @app.task(max_payload_bytes=200)
    def take_more(data: bytes) -> None: ...

    @app.task(max_payload_bytes=None)
    def take_all(data: bytes) -> None: ...

    overhead = len(take.arguments.encode((b"x" * 90,), {})) - 90
    await take.enqueue(b"x" * (100 - overhead))
    with pytest.raises(PayloadTooLarge, match=r"'take'.*101 bytes.*100"):
        await take.enqueue(b"x" * (101 - overhead))
    await take_more.enqueue(b"x" * 150)
    await take_all.enqueue(b"x" * (2 << 20))
    assert await published(app) == {"default": 3}


@looped
async def test_an_explicit_id_is_enqueued_once() -> None:
    app, resize = build()
    first = await resize.options(id="img-42").enqueue(42)
    again = await resize.options(id="img-42").enqueue(42)
    assert (first.id, first.created, again.id, again.created) == ("img-42", True, "img-42", False)
    await work(app, done("small"))
    assert (await resize.options(id="img-42").enqueue(42)).created is False
    assert await published(app) == {"default": 1}


@looped
async def test_an_explicit_id_used_by_another_task_raises_id_conflict() -> None:
    app, resize = build()

    @app.task
    def other() -> None: ...

    await resize.options(id="img-42").enqueue(42)
    with pytest.raises(IdConflict, match=r"'img-42'.*'default'.*'other'"):
        await other.options(id="img-42").enqueue()


@looped
async def test_a_full_queue_refuses_jobs_and_names_its_max_length() -> None:
    app, resize = build()
    app.queue("small", max_length=2)
    small = resize.options(queue="small")
    await small.enqueue(1)
    await small.options(delay=60).enqueue(2)
    with pytest.raises(QueueFull, match=r"'small'.*max_length=2"):
        await small.enqueue(3)
    await work(app, done(), queue=Address("small"))
    job = await small.enqueue(4)
    assert await job.status() == "ready", "a refused serial is not mistaken for an accepted one"


class LostReplies:
    """A broker that accepts jobs but loses the replies."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch, *, lost: int) -> None:
        self.lost = lost
        self._publish = broker.publish
        monkeypatch.setattr(broker, "publish", self.publish)

    async def publish(self, *args: Any, **options: Any) -> Any:
        receipts = await self._publish(*args, **options)
        if self.lost:
            self.lost -= 1
            raise BrokerUnavailable("the reply was lost")
        return receipts


@looped
async def test_a_job_whose_reply_was_lost_is_sent_again_and_accepted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app, resize = build()
    LostReplies(await app.broker(), monkeypatch, lost=2)
    job = await resize.enqueue(1)
    assert job.created, "the retry recognises its own job"
    assert (await resize.enqueue(2)).created
    assert await published(app) == {"default": 2}


@looped
async def test_a_bulk_request_whose_reply_was_lost_is_accepted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app, resize = build()
    LostReplies(await app.broker(), monkeypatch, lost=1)
    jobs = await app.enqueue_many(resize.bind(i) for i in range(500))
    assert all(job.created for job in jobs)
    assert await published(app) == {"default": 500}


@looped
async def test_a_job_that_may_have_been_accepted_can_be_enqueued_again_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    app, resize = build()
    replies = LostReplies(await app.broker(), monkeypatch, lost=1000)
    with monkeypatch.context() as hasty, pytest.raises(BrokerUnavailable) as caught:
        hasty.setattr(outbox, "PATIENCE_SECONDS", 0.2)
        await resize.enqueue(1)
    replies.lost = 0
    assert caught.value.job_id is not None
    again = await resize.options(id=caught.value.job_id).enqueue(1)
    assert (again.id, again.created) == (caught.value.job_id, False)
    await work(app, done(ttl=0))
    assert (await resize.options(id=caught.value.job_id).enqueue(1)).created is False, "even after the job has run"
    assert await published(app) == {"default": 1}


@looped
async def test_a_job_lookup_refuses_an_invalid_id_or_queue() -> None:
    app, resize = build()
    assert resize.job("img-42").created is False
    for look_up in (resize.job, app.job):
        with pytest.raises(UsageError, match="id"):
            look_up("")
    with pytest.raises(UsageError, match="queue"):
        app.job("x", queue="a:b")


@looped
async def test_a_waiting_job_is_cancelled_once() -> None:
    _, resize = build()
    for job in (await resize.enqueue(1), await resize.options(delay=60).enqueue(1)):
        assert await job.cancel() is True
        assert await job.status() == "cancelled"
        assert await job.cancel() is False


@looped
async def test_a_running_job_cannot_be_cancelled() -> None:
    app, resize = build()
    job = await resize.enqueue(1)
    broker = await app.broker()
    await broker.join(Address("default"), "hand", 30.0)
    await broker.claim(Address("default"), "hand", 1)
    assert await job.cancel() is False
    assert await job.status() == "running"


def test_a_method_name_of_another_library_raises_an_error_that_names_ours() -> None:
    _, resize = build()
    for name, hint in (("delay", r"use \.enqueue\(…\)"), ("apply_async", "options"), ("s", "bind")):
        with pytest.raises(AttributeError, match=hint):
            getattr(resize, name)
    with pytest.raises(AttributeError, match=r"a task has no attribute 'nonsense'$"):
        _ = resize.nonsense
