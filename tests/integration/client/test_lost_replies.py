"""A request reaches the server but its reply is lost: the client sends it again, and the caller learns what really happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream import Millstream
from millstream.broker import Broker, Post
from millstream.errors import BrokerUnavailable, UsageError
from millstream.model.address import Address
from tests.stage import looped, new_app

pytestmark = pytest.mark.usefixtures("every_backend")


async def lose_reply(app: Millstream, monkeypatch: pytest.MonkeyPatch, verb: str) -> Callable[[], int]:
    """Execute the next call of a broker method but lose its reply. Return a function that counts the calls since then."""
    broker: Broker = await app.broker()
    made = getattr(broker, verb)
    calls = 0

    async def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        answer = await made(*args, **kwargs)
        if calls == 1:
            raise BrokerUnavailable("the reply was lost")
        return answer

    monkeypatch.setattr(broker, verb, call)
    return lambda: calls


@looped
async def test_a_cancel_whose_reply_was_lost_reports_that_it_cancelled_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()

    @app.task
    def nothing() -> None: ...

    job = await nothing.options(delay=60).enqueue()
    calls = await lose_reply(app, monkeypatch, "cancel")
    assert await job.cancel()
    assert (calls(), await job.status()) == (2, "cancelled")
    assert not await job.cancel()


@looped
async def test_an_enqueue_by_id_whose_reply_was_lost_reports_that_it_created_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()

    @app.task
    def nothing() -> None: ...

    calls = await lose_reply(app, monkeypatch, "publish")
    assert (await nothing.options(id="own").enqueue()).created
    assert calls() == 2
    assert not (await nothing.options(id="own").enqueue()).created


@looped
async def test_a_bulk_enqueue_by_id_whose_reply_was_lost_reports_the_jobs_it_created(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()

    @app.task
    def nothing() -> None: ...

    await nothing.options(id="before").enqueue()
    await lose_reply(app, monkeypatch, "publish")
    jobs = await app.enqueue_many(nothing.options(id=name).bind() for name in ("before", "new", "new"))
    assert [job.created for job in jobs] == [False, True, False]


@looped
async def test_clearing_a_key_with_a_lost_reply_reports_the_number_of_replayed_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app(retry=0)

    @app.task(order_by=lambda n: "k", on_failure="stop")
    def fail(n: int) -> None:
        raise KeyError(n)

    async with app.worker():
        await app.enqueue_many(fail.bind(n) for n in range(3))
        while len(await app.dead.list()) < 3:
            await asyncio.sleep(0.01)
        await app.queue("default").pause()
        calls = await lose_reply(app, monkeypatch, "clear_key")
        assert await app.queue("default").clear("k") == 3
        assert calls() == 2
        with pytest.raises(UsageError, match="not stopped"):
            await app.queue("default").clear("k")


@looped
async def test_a_replay_and_a_purge_with_lost_replies_report_the_moved_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app(retry=0)

    @app.task
    def fail() -> None:
        raise KeyError

    async with app.worker():
        jobs = [await fail.enqueue() for _ in range(2)]
        while len(await app.dead.list()) < 2:
            await asyncio.sleep(0.01)
    await lose_reply(app, monkeypatch, "replay")
    assert await app.dead.replay(jobs[0].id) == [jobs[0].id]
    await lose_reply(app, monkeypatch, "purge")
    assert await app.dead.purge([job.id for job in jobs]) == [jobs[1].id]


@looped
async def test_removing_a_prefix_with_a_lost_reply_reports_the_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()

    @app.subscribe_prefix("orders.", "audit", type=bytes)
    async def audit(event: bytes) -> None: ...

    await app.topic("orders.new", bytes).publish(b"1")
    await lose_reply(app, monkeypatch, "remove_prefix")
    await app.remove_prefix("orders.", "audit")
    with pytest.raises(UsageError):
        await app.remove_prefix("orders.", "audit")


@looped
async def test_resharding_with_a_lost_reply_succeeds_although_new_jobs_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()
    app.queue("mail")
    calls = await lose_reply(app, monkeypatch, "reshard")
    broker = await app.broker()
    sent_again = broker.reshard

    async def reshard(address: Address, shards: int) -> None:
        if calls() == 1:
            await broker.publish(Address("mail:1"), [Post("a", b"")], shards=2)
        await sent_again(address, shards)

    monkeypatch.setattr(broker, "reshard", reshard)
    await app.queue("mail").reshard(2)
    assert await broker.inspector.shards(Address("mail")) == 2
