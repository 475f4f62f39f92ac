"""The loops of a worker: no loop stops another, whatever a claim returns and the server answers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from millstream import Batch, Delivery, Millstream, RetryPolicy, current_job
from millstream.backends.memory import MemoryBroker
from millstream.errors import BrokerError, BrokerUnavailable, JobFailed
from millstream.model.address import Address
from millstream.model.outcome import DONE, Kind, Outcome
from millstream.reporting.reporter import Reporter
from millstream.worker import suspects
from millstream.worker.hot.hold import ASYNC, THREAD, Hold
from millstream.worker.hot.lane import Lane
from millstream.worker.hot.settler import Settler
from tests.stage import PATIENCE, looped, new_app, place, until

GROUP = Address("orders/billing")
DEFAULT = Address("default")


async def until_lapsed(app: Millstream, address: Address) -> None:
    async with asyncio.timeout(PATIENCE):
        while not (await app.inspector.queue(address)).totals["lapsed"]:
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("every_backend")
@pytest.mark.parametrize("how", ["limit", "batch", "manual", "consume"])
@looped
async def test_a_worker_at_its_limit_still_detects_that_another_worker_died(how: str) -> None:
    app = new_app()
    orders = app.topic("orders", int)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def one(n: int) -> None:
        begun.set()
        await go_on.wait()

    async def many(numbers: list[int]) -> None:
        begun.set()
        await go_on.wait()

    kept: list[Delivery] = []

    async def keep(n: int, delivery: Delivery) -> None:
        kept.append(delivery)
        begun.set()

    async with app:
        if how == "limit":
            orders.subscribe("billing", concurrency=1)(one)
        elif how == "batch":
            orders.subscribe("billing", concurrency=1, batch=Batch(size=1))(many)
        elif how == "manual":
            orders.subscribe("billing", concurrency=1, ack="manual")(keep)
        else:
            orders.subscribe("other")(lambda n: None)
        if how == "consume":
            async with await orders.consume("billing", one, concurrency=1):
                await orders.publish(1)
                await _one_that_dies(app)
                await begun.wait()
                await until_lapsed(app, GROUP)
                go_on.set()
            return
        async with app.worker(queues=[GROUP]):
            await orders.publish(1)
            await begun.wait()
            await _one_that_dies(app)
            await until_lapsed(app, GROUP)
            go_on.set()
            kept.clear()


async def _one_that_dies(app: Millstream) -> None:
    broker = await app.broker()
    await broker.join(GROUP, "one-that-dies", 0.05)


@pytest.fixture
def on_a_server(embedded_url: str) -> Iterator[None]:
    """A real server, where every call yields to other tasks; calls to the memory backend do not."""
    place.url = embedded_url
    yield
    place.url = "memory://"


@pytest.mark.usefixtures("on_a_server")
@looped
async def test_a_coroutine_starts_although_at_most_once_functions_before_it_wait_for_a_thread() -> None:
    app = new_app()
    go_on, begun = threading.Event(), threading.Event()

    @app.task(max_crashes=0)
    def once() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    @app.task
    async def quick() -> str:
        return "done"

    async with app, app.worker(threads=1):
        await once.enqueue()
        await until(begun.is_set)
        for _ in range(20):
            await once.enqueue()
        job = await quick.enqueue()
        try:
            assert await job.result(PATIENCE / 2) == "done"
            assert (await app.inspector.queue("default")).totals["released"] < 1_000
        finally:
            go_on.set()


@looped
async def test_a_coroutine_queue_that_receives_a_plain_function_also_uses_threads() -> None:
    app = new_app()

    @app.task(queue="elsewhere")
    def function() -> str:
        return "done"

    @app.task
    async def coroutine() -> None: ...

    async with app, app.worker(queues=["default"]) as worker:
        (lane,) = worker._lanes
        assert set(lane.kinds) == {ASYNC}
        assert await (await function.options(queue="default").enqueue()).result(PATIENCE) == "done"
        assert set(lane.kinds) == {ASYNC, THREAD}


def fail_settling(monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    settle = MemoryBroker.settle

    async def settle_or_fail(self: MemoryBroker, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> Any:
        error = fails(outcomes)
        if error is not None:
            raise error
        return await settle(self, queue, consumer, outcomes)

    monkeypatch.setattr(MemoryBroker, "settle", settle_or_fail)


@looped
async def test_jobs_start_again_after_an_outage_that_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()
    together = asyncio.Barrier(2)

    @app.task
    async def job() -> None:
        await together.wait()

    @app.task
    async def later() -> str:
        return "done"

    faults: list[BrokerError] = [BrokerUnavailable("the connection was reset"), BrokerError("ERR upstream failure")]
    fail_settling(monkeypatch, lambda outcomes: faults.pop(0) if faults and len(outcomes) > 1 else None)
    async with app, app.worker():
        await app.enqueue_many([job.bind(), job.bind()])
        await until(lambda: not faults)
        assert await (await later.enqueue()).result(PATIENCE / 2) == "done"


@looped
async def test_a_job_whose_result_the_server_rejects_is_done_without_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()

    @app.task
    async def answer() -> int:
        return 42

    rejected = BrokerError("ERR string exceeds maximum allowed size")
    fail_settling(monkeypatch, lambda outcomes: rejected if any(each.result for each in outcomes) else None)
    async with app, app.worker() as worker:
        job = await answer.enqueue()
        await until(lambda: worker.totals["done"])
        assert (await app.inspector.queue("default")).running == 0
        assert await job.status() == "unknown"


@looped
async def test_a_job_whose_retry_the_server_rejects_becomes_a_dead_letter_with_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = new_app(retry=RetryPolicy(1, delay=0.0))

    @app.task
    async def fail() -> None:
        raise ValueError("no")

    rejected = BrokerError("ERR no such thing")
    fail_settling(monkeypatch, lambda outcomes: rejected if any(each.kind is Kind.RETRY for each in outcomes) else None)
    async with app, app.worker():
        job = await fail.enqueue()
        with pytest.raises(JobFailed):
            await job.result(PATIENCE / 2)
        letter = await app.dead.show(job.id)
    assert letter is not None and (letter.task, letter.error_type) == ("fail", "OutcomeRejected")
    assert "no such thing" in letter.error


@looped
async def test_a_restarted_settler_settles_under_the_consumer_name_that_claimed() -> None:
    names: list[str] = []

    class Server:
        async def settle(self, queue: Address, consumer: str, outcomes: Sequence[Outcome]) -> int:
            names.append(consumer)
            if len(names) == 1:
                raise RuntimeError("a bug")
            return len(outcomes)

    server: Any = Server()
    hold, lane = Hold(1, 1, asyncio.get_running_loop().time), Lane(Address("mail"))
    settler = Settler(server, hold, [lane], Reporter(None, logging.getLogger("test")), lambda *_: None)
    lane.consumer = "worker.1"
    settler.add(lane, Outcome(DONE, b"1-0", "a"))
    with pytest.raises(RuntimeError, match="a bug"):
        await settler.run()
    lane.consumer = "worker.2"  # the lease was lost in between
    again = asyncio.create_task(settler.run())
    await settler.drained()
    again.cancel()
    assert names == ["worker.1", "worker.1"]


async def two_workers_die_with_it(app: Millstream, queue: Address = DEFAULT, count: int = 1) -> None:
    """Make the ready messages suspects."""
    broker = await app.broker()
    for name in ("first-to-die", "second-to-die"):
        await broker.join(queue, name, 30.0)
        assert len((await broker.claim(queue, name, count, suspect_after=9)).entries) == count
        await broker.leave(queue, name)


@pytest.mark.usefixtures("every_backend")
@looped
async def test_a_suspect_stops_new_work_only_briefly_although_a_long_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "DRAIN_SECONDS", 0.05)
    app = new_app()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def long() -> None:
        begun.set()
        await go_on.wait()

    @app.task
    async def quick() -> int:
        return current_job().crashes

    async with app:
        suspect = await quick.enqueue()
        await two_workers_die_with_it(app)
        await long.enqueue()
        async with app.worker():
            await begun.wait()
            assert await (await quick.enqueue()).result(PATIENCE / 2) == 0
            assert await suspect.result(PATIENCE / 2) == 2
            go_on.set()


@looped
async def test_a_suspect_is_released_to_other_workers_while_every_slot_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "DRAIN_SECONDS", 0.05)
    app = new_app()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task(queue="long")
    async def long() -> None:
        begun.set()
        await go_on.wait()

    @app.task
    async def quick() -> int:
        return current_job().crashes

    async with app:
        suspect = await quick.enqueue()
        await two_workers_die_with_it(app)
        await long.enqueue()
        async with app.worker(concurrency=1, queues=["long"]) as busy:
            await begun.wait()
            lane = Lane(Address("default"), suspect_after=2)
            await busy._leases.join(lane)
            assert (await (await app.broker()).claim(Address("default"), lane.consumer, 1, suspect_after=2)).suspects
            await busy._suspects.wait_in(lane)
            await (await app.broker()).release(Address("default"), lane.consumer, lane.handed_back)
            async with app.worker(queues=["default"]):
                assert await suspect.result(PATIENCE / 2) == 2
            go_on.set()


@pytest.mark.usefixtures("every_backend")
@looped
async def test_a_suspect_only_needs_a_free_slot_of_its_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "DRAIN_SECONDS", 0.05)
    app = new_app()
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def long() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    @app.task
    async def quick() -> int:
        return current_job().crashes

    async with app:
        suspect = await quick.enqueue()
        await two_workers_die_with_it(app)
        await long.enqueue()
        async with app.worker(threads=1):
            await until(begun.is_set)
            try:
                assert await suspect.result(PATIENCE / 2) == 2
            finally:
                go_on.set()


@looped
async def test_a_suspect_is_released_while_every_slot_of_its_kind_is_in_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(suspects, "DRAIN_SECONDS", 10.0)  # longer than half of the trusted part of this lease
    app = new_app(lease=3.0)
    begun, go_on = threading.Event(), threading.Event()

    @app.task(queue="long")
    def long() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    @app.task
    def quick() -> None: ...

    async with app:
        await quick.enqueue()
        await two_workers_die_with_it(app)
        await long.enqueue()
        async with app.worker(threads=1, queues=["long"]) as busy:
            await until(begun.is_set)
            lane = Lane(Address("default"), suspect_after=2)  # a queue of coroutine tasks that received a plain function
            await busy._leases.join(lane)
            assert (await (await app.broker()).claim(Address("default"), lane.consumer, 1, suspect_after=2)).suspects
            try:
                await busy._suspects.wait_in(lane)
                assert len(lane.handed_back) == 1
                assert not busy._hold.ready[THREAD]
                assert "no slot became free within 1 s for a job that must run alone" in caplog.text
            finally:
                go_on.set()


@pytest.mark.usefixtures("every_backend")
@pytest.mark.parametrize("batch", [None, Batch(size=2)], ids=["single", "batch"])
@looped
async def test_suspects_of_a_group_respect_its_concurrency_and_run_one_at_a_time(
    batch: Batch | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "DRAIN_SECONDS", 0.05)
    monkeypatch.setattr(suspects, "RESUME_SECONDS", 0.05)
    app = new_app()
    orders = app.topic("orders", int)
    begun, go_on = asyncio.Event(), asyncio.Event()
    calls: list[tuple[list[int], int]] = []
    at_once, running = 1 if batch is None else batch.size, 0

    async def handle(events: list[int]) -> None:
        nonlocal running
        running += 1
        calls.append((events, running))
        begun.set()
        await go_on.wait()
        running -= 1

    async def one(n: int) -> None:
        await handle([n])

    if batch is None:
        orders.subscribe("billing", concurrency=1)(one)
    else:
        orders.subscribe("billing", concurrency=1, batch=batch)(handle)

    async with app:
        broker = await app.broker()
        claim, tried = broker.claim, asyncio.Event()

        async def note_suspects(*args: Any, **options: Any) -> Any:
            claimed = await claim(*args, **options)
            if options.get("alone") and claimed.entries:
                tried.set()
            return claimed

        monkeypatch.setattr(broker, "claim", note_suspects)
        await orders.publish(2)
        await orders.publish(3)
        await two_workers_die_with_it(app, GROUP, 2)
        for _ in range(at_once):
            await orders.publish(1)
        async with app.worker() as worker:
            await begun.wait()
            await tried.wait()
            await until(lambda: suspects.ALONE not in worker._hold.shut)
            go_on.set()
            await until(lambda: len([n for events, _ in calls for n in events]) == at_once + 2)
    assert sorted(calls) == [([1] * at_once, 1), ([2], 1), ([3], 1)]


@looped
async def test_only_one_worker_drains_for_a_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "DRAIN_SECONDS", 1e9)
    app = new_app(lease=1e6)
    begun, go_on = asyncio.Barrier(3), asyncio.Event()

    async def long() -> None:
        await begun.wait()
        await go_on.wait()

    longs = [app.task(name=queue, queue=queue)(long) for queue in ("a", "b")]

    @app.task
    async def quick() -> int:
        return current_job().crashes

    async with app:
        suspect = await quick.enqueue()
        await two_workers_die_with_it(app)
        for task in longs:
            await task.enqueue()
        async with app.worker(queues=["a", "default"]), app.worker(queues=["b", "default"]):
            await begun.wait()
            assert await (await quick.enqueue()).result(PATIENCE / 2) == 0
            go_on.set()
            assert await suspect.result(PATIENCE / 2) == 2
