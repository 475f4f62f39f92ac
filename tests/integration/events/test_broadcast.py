"""Broadcasts: every worker receives every new event, and learns which events it missed."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import Any

import pytest

from millstream import Delivery, Millstream, Problem, Topic
from millstream.broker import Post
from millstream.errors import EventsMissed, TopicFull, UsageError
from tests.stage import looped, place, until

pytestmark = pytest.mark.usefixtures("every_backend")


@dataclass
class Order:
    number: int


def make(**options: Any) -> tuple[Millstream, Topic[Order]]:
    name = f"test-{secrets.token_hex(6)}"
    app = Millstream(f"memory://{name}" if place.url == "memory://" else place.url, namespace=name)
    return app, app.topic("orders", Order, **options)


def another(app: Millstream) -> Millstream:
    """Return a second app that sees the same topics."""
    return Millstream(app.url.text, namespace=app.settings.namespace)


# -- every worker receives every event -------------------------------------------------------------------------------------


@looped
async def test_every_worker_receives_every_new_event_in_order_alongside_the_groups() -> None:
    app, orders = make(retention=600)  # keeps settled events from being trimmed before a slow worker reads them
    seen: dict[str, list[int]] = {"one": [], "other": [], "group": []}
    mine = iter(("one", "other"))
    names: dict[int, str] = {}

    @orders.broadcast
    async def refresh(order: Order, delivery: Delivery) -> None:
        who = names.setdefault(id(delivery.state), "")
        if not who:
            who = names[id(delivery.state)] = next(mine)
        seen[who].append(order.number)

    @orders.subscribe("billing", concurrency=1)
    async def bill(order: Order) -> None:
        seen["group"].append(order.number)

    states: list[object] = []

    class Lifespan:
        async def __aenter__(self) -> object:
            states.append(object())
            return states[-1]

        async def __aexit__(self, *_: object) -> None: ...

    app.lifespan = lambda _: Lifespan()
    async with app:
        await orders.publish(Order(-1))
        async with app.worker(), app.worker():
            await orders.publish_many(Order(n) for n in range(500))
            await until(lambda: [len(numbers) for numbers in seen.values()] == [500, 500, 501])
        await orders.publish(Order(1000))
    assert seen["one"] == seen["other"] == list(range(500))


@looped
async def test_a_topic_may_have_several_broadcasts_and_they_may_be_plain_functions() -> None:
    app, orders = make()
    seen: list[tuple[str, int]] = []

    @orders.broadcast(timeout=30, max_payload_bytes=None)
    def plain(order: Order) -> None:
        seen.append(("plain", order.number))

    @orders.broadcast()
    def told(order: Order, delivery: Delivery) -> None:
        seen.append((delivery.topic + "/" + delivery.group, order.number))

    @orders.broadcast
    async def quick(order: Order) -> None:
        seen.append(("quick", order.number))

    async with app, app.worker():
        await orders.publish_many([Order(1), Order(2)])
        await until(lambda: len(seen) == 6)
    for who in ("plain", "orders/", "quick"):
        assert [number for name, number in seen if name == who] == [1, 2]
    assert [broadcast.name for broadcast in app.catalog.broadcasts] == ["orders//plain", "orders//told", "orders//quick"]


@looped
async def test_a_broadcast_handles_at_most_concurrency_events_at_the_same_time() -> None:
    app, orders = make()
    gate = asyncio.Event()
    begun: list[int] = []

    @orders.broadcast(concurrency=3)
    async def wide(order: Order) -> None:
        begun.append(order.number)
        await gate.wait()

    async with app, app.worker():
        await orders.publish_many(Order(n) for n in range(10))
        await until(lambda: len(begun) == 3)
        for _ in range(20):
            await app.inspector.topic("orders")
        assert begun == [0, 1, 2]
        gate.set()
        await until(lambda: len(begun) == 10)
    assert begun == list(range(10))


@looped
async def test_a_broadcast_and_the_jobs_of_a_queue_share_the_slots_of_a_worker() -> None:
    app, orders = make()
    done: list[str] = []

    @app.task
    async def work(number: int) -> None:
        await asyncio.sleep(0)
        done.append("job")

    @orders.broadcast
    async def refresh(order: Order) -> None:
        await asyncio.sleep(0)
        done.append("event")

    async with app, app.worker(concurrency=1):
        await app.enqueue_many(work.bind(n) for n in range(300))
        await orders.publish_many(Order(n) for n in range(300))
        await until(lambda: len(done) == 600)
    assert done.count("event") == 300


@looped
async def test_a_delayed_event_is_broadcast_when_it_is_due() -> None:
    app, orders = make()
    seen: list[int] = []

    @orders.broadcast
    async def refresh(order: Order) -> None:
        seen.append(order.number)

    async with app, app.worker():
        await orders.publish(Order(1), delay=0.2)
        await orders.publish(Order(2))
        await until(lambda: len(seen) == 2)
    assert seen == [2, 1]


# -- broadcasts settle nothing ---------------------------------------------------------------------------------------------


@looped
async def test_an_exception_in_a_broadcast_is_logged_and_not_retried(caplog: pytest.LogCaptureFixture) -> None:
    app, orders = make()
    seen: list[tuple[int, int, int]] = []

    @orders.broadcast
    async def failing(order: Order, delivery: Delivery) -> None:
        seen.append((order.number, delivery.attempt, delivery.max_attempts))
        delivery.ack()
        delivery.nack("not heard")
        delivery.retry(0)
        raise ValueError("not today")

    async with app, app.worker() as worker:
        await orders.publish_many([Order(1), Order(2)])
        await until(lambda: caplog.text.count("not retried") == 2)
        totals = dict(worker.totals)
    assert seen == [(1, 1, 1), (2, 1, 1)]
    assert "orders//failing" in caplog.text and "not today" in caplog.text
    assert not any(totals.values())


@looped
async def test_malformed_oversize_expired_and_mistyped_events_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    app, orders = make()
    caplog.set_level(logging.INFO)
    seen: list[int] = []

    @orders.broadcast(max_payload_bytes=100)
    async def careful(order: Order) -> None:
        seen.append(order.number)

    async with app, app.worker() as worker:
        broker = await app.broker()
        await broker.emit("orders", [Post("bad", b"\xc1 no message")])
        async with another(app) as stranger:
            other: Topic[Any] = stranger.topic("orders", dict[str, Any])
            await other.publish({"number": "no number"})
            await other.publish({"number": 1, "more": "x" * 200})
        await orders.publish(Order(2), expires=0.000_001)
        await orders.publish(Order(3))
        await until(lambda: seen == [3])
        assert not any(worker.totals.values())
    assert "is skipped, malformed" in caplog.text
    assert "has expired" in caplog.text
    assert "is skipped, oversize" in caplog.text
    assert "InvalidArguments" in caplog.text


@looped
async def test_a_broadcast_that_exceeds_its_timeout_is_cancelled_and_the_next_event_is_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, orders = make()
    seen: list[int] = []

    @orders.broadcast(timeout=0.05)
    async def slow(order: Order) -> None:
        seen.append(order.number)
        if order.number == 1:
            await asyncio.Event().wait()

    async with app, app.worker():
        await orders.publish_many([Order(1), Order(2)])
        await until(lambda: seen == [1, 2])
    assert "ran past its timeout" in caplog.text
    assert "runs again" not in caplog.text
    assert "is dead" not in caplog.text


@looped
async def test_on_shutdown_running_broadcasts_get_the_grace_period_and_unstarted_events_are_dropped() -> None:
    app, orders = make()
    gate = asyncio.Event()
    begun: list[int] = []
    ended: list[int] = []

    @orders.broadcast
    async def slow(order: Order) -> None:
        begun.append(order.number)
        await gate.wait()
        ended.append(order.number)

    async with app:
        async with app.worker():
            await orders.publish_many(Order(n) for n in range(5))
            await until(lambda: begun == [0])
            asyncio.get_running_loop().call_later(0.05, gate.set)
        assert (begun, ended) == ([0], [0])
        async with app.worker():
            await orders.publish(Order(9))
            await until(lambda: 9 in ended)
    assert ended == [0, 9]


# -- missed events ---------------------------------------------------------------------------------------------------------


@looped
async def test_events_trimmed_before_they_were_read_are_logged_and_counted_in_the_next_delivery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, orders = make(max_length=10)
    gate = asyncio.Event()
    seen: list[tuple[int, int]] = []
    problems: list[Problem] = []
    app.on_error(problems.append)

    @orders.broadcast
    async def slow(order: Order, delivery: Delivery) -> None:
        seen.append((order.number, delivery.missed))
        if order.number == 0:
            await gate.wait()

    async with app, app.worker() as worker:
        await orders.publish(Order(0))
        await until(lambda: bool(seen))
        await orders.publish(Order(1))
        await until(lambda: len(worker._followers[0]._unread) == 1)  # the worker reads nothing more until the gate opens
        await orders.publish_many(Order(n) for n in range(2, 42))
        gate.set()
        await until(lambda: seen[-1][0] == 41)
        await orders.publish(Order(42))
        await until(lambda: seen[-1][0] == 42)
    assert [number for number, _ in seen] == [0, 1, *range(32, 43)]
    assert {number: missed for number, missed in seen if missed} == {32: 30}
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "broadcast 'orders//slow' missed 30 events of topic 'orders'" in warning.getMessage()
    assert [(problem.during, type(problem.error), problem.topic) for problem in problems] == [("read", EventsMissed, "orders")]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_skipped_event_passes_its_missed_count_on_to_the_next_event(concurrency: int) -> None:
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        app, orders = make(max_length=2)
        gate = asyncio.Event()

        @orders.broadcast(concurrency=concurrency)
        async def refresh(order: Order, delivery: Delivery) -> None:
            seen.append((order.number, delivery.missed))
            await gate.wait()

        async with app, app.worker() as worker:
            for number in range(concurrency):
                await orders.publish(Order(number))
                await until(lambda number=number: len(seen) == number + 1)  # type: ignore[misc]
            await orders.publish(Order(concurrency))
            await until(lambda: len(worker._followers[0]._unread) == 1)  # the worker reads nothing more until the gate opens
            broker = await app.broker()
            await broker.emit("orders", [Post(f"x{n}", b"\xc1") for n in range(6)], max_length=2)
            await orders.publish(Order(9))
            gate.set()
            await until(lambda: seen[-1][0] == 9)

    looped(main)()
    assert seen == [*((number, 0) for number in range(concurrency + 1)), (9, 5)]


@looped
async def test_a_topic_with_only_broadcasts_is_never_full_but_one_with_a_group_can_be() -> None:
    app, orders = make(max_length=3)

    @orders.broadcast
    async def refresh(order: Order) -> None: ...

    async with app:
        await orders.publish_many(Order(n) for n in range(10))
        assert (await app.inspector.topic("orders")).length == 3
        async with another(app) as publisher:
            await publisher.topic("orders", Order, max_length=3).publish(Order(10))  # this app has no broadcast

        @orders.subscribe("billing")
        async def bill(order: Order) -> None: ...

        with pytest.raises(TopicFull):
            await orders.publish(Order(11))


# -- which worker serves which broadcast -----------------------------------------------------------------------------------


@looped
async def test_a_worker_serves_all_broadcasts_unless_it_is_given_other_queues(caplog: pytest.LogCaptureFixture) -> None:
    app, orders = make()
    news = app.topic("news", str)
    caplog.set_level(logging.INFO)
    seen: list[str] = []

    @app.task
    async def work() -> None:
        seen.append("work")

    @orders.broadcast
    async def refresh(order: Order) -> None:
        seen.append("order")

    @news.broadcast
    async def read(text: str) -> None:
        seen.append(text)

    assert app.queues_to_serve(()) == ["default", "orders/", "news/"]
    with pytest.raises(UsageError, match="'orders/'"):
        app.queues_to_serve(["other/"])
    async with app:
        async with app.worker(["default"]):
            await orders.publish(Order(1))
            await work.enqueue()
            await until(lambda: seen == ["work"])
        async with app.worker(["news/"]):
            assert [info.queues for info in await app.inspector.workers()] == [["news/"]]
            await orders.publish(Order(2))
            await news.publish("extra")
            await until(lambda: len(seen) == 2)
    assert seen == ["work", "extra"]
    assert "serves broadcast 'news//read' with" in caplog.text


# -- invalid declarations --------------------------------------------------------------------------------------------------


def test_invalid_broadcasts_are_refused() -> None:
    _, orders = make()

    async def fine(order: Order) -> None: ...

    wrong_options: list[dict[str, Any]] = [
        {"concurrency": 0},
        {"concurrency": None},
        {"timeout": -1},
        {"max_payload_bytes": 0},
        {"retry": 3},
        {"ack": "on_success"},
        {"batch": 5},
    ]
    for wrong in wrong_options:
        with pytest.raises(UsageError, match=next(iter(wrong))):
            orders.broadcast(**wrong)(fine)
    nothing: Any = lambda: None  # noqa: E731
    with pytest.raises(UsageError, match="the event and its delivery"):
        orders.broadcast(nothing)
    both: Any = orders.broadcast
    with pytest.raises(UsageError, match="one function or keyword options"):
        both(fine, timeout=3)
    with pytest.raises(UsageError, match="the handler must be a function"):
        both("fine")
    assert orders.broadcasts == []
    assert orders.broadcast(fine) is fine
