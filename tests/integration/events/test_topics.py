"""Topics: every group receives every event and handles it independently."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from millstream import Batch, Delivery, Millstream, Reject, RetryPolicy, Snooze, Topic
from millstream.backends.memory import MemoryBroker
from millstream.broker import Post
from millstream.errors import BulkError, PayloadTooLarge, TopicFull, UsageError
from tests.stage import PATIENCE, looped, new_app, place, until

pytestmark = pytest.mark.usefixtures("every_backend")

SOON = RetryPolicy(2, delay=0.001, jitter=False)


@dataclass
class Order:
    number: int
    customer: str = "ann"


def make() -> tuple[Millstream, Topic[Order]]:
    app = new_app(retry=SOON)
    return app, app.topic("orders", Order)


# -- every group receives every event --------------------------------------------------------------------------------------


@looped
async def test_every_group_receives_every_event_and_one_handler_of_a_group_handles_it() -> None:
    app, orders = make()
    billed: list[Order] = []
    shipped: list[Order] = []

    @orders.subscribe("billing")
    async def bill(order: Order) -> None:
        billed.append(order)

    @orders.subscribe("warehouse")
    def ship(order: Order) -> None:
        shipped.append(order)

    sent = [Order(n) for n in range(50)]
    async with app:
        ids = await orders.publish_many(sent)
        assert len(set(ids)) == 50
        async with app.worker(), app.worker():
            await until(lambda: len(billed) == 50 and len(shipped) == 50)
    assert sorted(billed, key=lambda order: order.number) == sent
    assert sorted(shipped, key=lambda order: order.number) == sent


@looped
async def test_retries_and_rejections_in_one_group_do_not_affect_another_group() -> None:
    app, orders = make()
    seen: list[tuple[int, int]] = []
    other: list[int] = []

    @orders.subscribe("picky")
    async def picky(order: Order, delivery: Delivery) -> None:
        seen.append((order.number, delivery.attempt))
        if order.number == 1:
            raise Reject("not this one")
        if delivery.attempt == 1:
            raise ValueError("once more")

    @orders.subscribe("easy")
    async def easy(order: Order) -> None:
        other.append(order.number)

    async with app:
        await orders.publish_many(Order(n) for n in range(3))
        async with app.worker():
            await until(lambda: len(seen) == 5 and len(other) == 3)
        assert sorted(seen) == [(0, 1), (0, 2), (1, 1), (2, 1), (2, 2)]
        (dead,) = await orders.group("picky").dead.list()
        assert (dead.reason, dead.error, dead.queue) == ("rejected", "not this one", "orders/picky")
        assert await orders.group("easy").dead.list() == []

        assert await orders.group("picky").dead.replay(dead.id) == [dead.id]
        async with app.worker():
            await until(lambda: len(seen) == 6)
        assert sorted(other) == [0, 1, 2]


@looped
async def test_a_snooze_uses_no_attempt_and_exhausted_events_are_dead() -> None:
    app, orders = make()
    attempts: list[int] = []

    @orders.subscribe("slow")
    async def slow(order: Order, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) == 1:
            raise Snooze(0.001)
        raise ValueError("no good")

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until(lambda: len(attempts) == 4)
        (dead,) = await orders.group("slow").dead.list()
    assert attempts == [1, 1, 2, 3]
    assert (dead.reason, dead.attempts, dead.error_type) == ("exhausted", 3, "ValueError")


@looped
async def test_a_group_receives_events_published_before_its_worker_started() -> None:
    publisher, orders = make()
    async with publisher:
        await orders.publish_many(Order(n) for n in range(100))
        got: list[int] = []

        @orders.subscribe("late")
        async def late(order: Order) -> None:
            got.append(order.number)

        await orders.publish(Order(100))
        async with publisher.worker():
            await until(lambda: len(got) == 101)
    assert sorted(got) == list(range(101))


@looped
async def test_a_group_may_start_with_new_events_only() -> None:
    app, orders = make()
    got: list[int] = []

    async with app:
        await orders.publish(Order(1))

        @orders.subscribe("new", start="new")
        async def new(order: Order) -> None:
            got.append(order.number)

        await orders.publish(Order(2))  # the first call after the declaration creates the group
        async with app.worker():
            await until(lambda: got == [2])


@looped
async def test_a_topic_may_set_the_start_of_its_groups() -> None:
    app = new_app()
    orders = app.topic("orders", Order, start="new")
    got: list[tuple[str, int]] = []

    async with app:
        await orders.publish(Order(1))
        before = datetime.now(UTC) - timedelta(hours=1)

        @orders.subscribe("new")
        async def new(order: Order) -> None:
            got.append(("new", order.number))

        @orders.subscribe("earlier", start=before)
        async def earlier(order: Order) -> None:
            got.append(("earlier", order.number))

        await orders.publish(Order(2))
        async with app.worker():
            await until(lambda: len(got) == 3)
    assert sorted(got) == [("earlier", 1), ("earlier", 2), ("new", 2)]


@pytest.mark.parametrize("start", ["end", "yesterday", datetime(2026, 1, 1), 5.0, None])
def test_an_invalid_start_is_refused(start: Any) -> None:
    app, orders = make()
    with pytest.raises(UsageError, match="start"):
        orders.subscribe("a", start=start)(lambda order: None)
    with pytest.raises(UsageError, match="start"):
        app.topic("other", Order, start=start)


# -- the fields and methods of a delivery ----------------------------------------------------------------------------------


@looped
async def test_headers_and_metadata_of_an_event_survive_retries_and_replays() -> None:
    app, orders = make()
    seen: list[Delivery] = []

    @orders.subscribe("audit")
    async def audit(order: Order, delivery: Delivery) -> None:
        seen.append(delivery)
        if len(seen) == 1:
            raise ValueError("once more")
        if len(seen) == 2:
            delivery.nack("later")

    before = datetime.now(UTC)
    async with app:
        event_id = await orders.publish(
            Order(1),
            id="order-1",
            headers={"tenant": "acme"},
            key="ann",
            kind="order.placed",
            source="shop",
            correlation_id="c-1",
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            content_type="application/msgpack",
            version="2",
        )
        async with app.worker():
            await until(lambda: len(seen) == 2)
        assert await orders.group("audit").dead.replay("order-1") == ["order-1"]
        async with app.worker():
            await until(lambda: len(seen) == 3)
    assert event_id == "order-1"
    assert [delivery.attempt for delivery in seen] == [1, 2, 1]
    for delivery in seen:
        assert (delivery.id, delivery.topic, delivery.group) == ("order-1", "orders", "audit")
        assert delivery.headers == {"tenant": "acme"}
        assert (delivery.key, delivery.kind, delivery.source) == ("ann", "order.placed", "shop")
        assert (delivery.correlation_id, delivery.content_type, delivery.version) == ("c-1", "application/msgpack", "2")
        assert delivery.traceparent.startswith("00-0af7")
        assert delivery.max_attempts == 3
        assert delivery.crashes == 0
        assert before - timedelta(seconds=1) <= delivery.published_at <= delivery.received_at
    assert seen[0].received_at - timedelta(seconds=1) <= seen[1].first_received_at < seen[1].received_at
    assert seen[2].first_received_at == seen[2].received_at


@looped
async def test_an_explicit_outcome_takes_precedence_over_the_handlers_return_or_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, orders = make()
    seen: list[tuple[int, int]] = []

    @orders.subscribe("explicit")
    async def explicit(order: Order, delivery: Delivery) -> None:
        seen.append((order.number, delivery.attempt))
        if order.number == 1:
            delivery.ack()
            raise ValueError("too late to matter")
        if order.number == 2:
            delivery.nack("spoilt")
        if order.number == 3 and delivery.attempt == 1:
            delivery.retry(0)

    async with app:
        await orders.publish_many(Order(n) for n in (1, 2, 3))
        async with app.worker():
            await until(lambda: len(seen) == 4)
        (dead,) = await orders.group("explicit").dead.list()
    assert sorted(seen) == [(1, 1), (2, 1), (3, 1), (3, 2)]
    assert (dead.reason, dead.error) == ("rejected", "spoilt")
    assert "failed after its outcome had been decided" in caplog.text


@looped
async def test_a_delivery_has_one_outcome_and_settled_waits_for_the_server() -> None:
    app, orders = make()
    said: list[str] = []

    @orders.subscribe("once")
    async def once(order: Order, delivery: Delivery) -> None:
        with pytest.raises(UsageError, match="no outcome yet"):
            await delivery.settled()
        delivery.ack()
        with pytest.raises(UsageError, match="already has an outcome"):
            delivery.retry()
        waiting.append(asyncio.create_task(delivery.settled()))
        said.append("acked")

    waiting: list[asyncio.Task[None]] = []
    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until(lambda: bool(waiting))
            await asyncio.wait_for(waiting[0], PATIENCE)
    assert said == ["acked"]


@looped
async def test_with_ack_on_receive_an_event_is_acknowledged_before_its_handler_and_never_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, orders = make()
    held: list[int] = []

    @orders.subscribe("lossy", ack="on_receive")
    async def lossy(order: Order, delivery: Delivery) -> None:
        held.append((await app.inspector.queue("orders/lossy")).running)
        delivery.ack()  # has no effect with ack="on_receive"
        raise ValueError("gone")

    async with app:
        await orders.publish(Order(1))
        async with app.worker():
            await until(lambda: "failed after its outcome had been decided" in caplog.text)
        state = await app.inspector.queue("orders/lossy")
    assert held == [0]
    assert (state.ready, state.running, state.scheduled, state.dead) == (0, 0, 0, 0)


@looped
async def test_at_most_concurrency_handlers_of_a_group_run_at_the_same_time() -> None:
    app, orders = make()
    running = most = done = 0

    @orders.subscribe("narrow", concurrency=2)
    async def narrow(order: Order) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        done += 1

    async with app:
        await orders.publish_many(Order(n) for n in range(30))
        async with app.worker(concurrency=20):
            await until(lambda: done == 30)
    assert most == 2


# -- batches -------------------------------------------------------------------------------------------------------------


@looped
async def test_a_batch_handler_receives_lists_and_an_incomplete_batch_does_not_wait_long() -> None:
    app, orders = make()
    batches: list[list[int]] = []

    @orders.subscribe("warehouse", batch=Batch(10, wait=1.0))
    async def stock(together: list[Order]) -> None:
        batches.append([order.number for order in together])

    async with app:
        await orders.publish_many(Order(n) for n in range(25))
        async with app.worker():
            await until(lambda: sum(map(len, batches)) == 25)
    assert sorted(number for batch in batches for number in batch) == list(range(25))
    assert sorted(map(len, batches)) == [5, 10, 10]


@pytest.mark.parametrize("plain", [False, True])
def test_explicit_outcomes_in_a_batch_are_kept_and_the_rest_follow_the_handler(plain: bool) -> None:
    seen: list[list[tuple[int, int]]] = []

    async def main() -> None:
        app, orders = make()

        def handle(together: list[Order], deliveries: list[Delivery]) -> None:
            seen.append([(o.number, d.attempt) for o, d in zip(together, deliveries, strict=True)])
            for order, delivery in zip(together, deliveries, strict=True):
                if order.number == 1:
                    delivery.nack("spoilt")
                if order.number == 2:
                    delivery.ack()
            if deliveries[0].attempt == 1:
                raise ValueError("the others once more")

        async def handle_async(together: list[Order], deliveries: list[Delivery]) -> None:
            handle(together, deliveries)

        orders.subscribe("warehouse", batch=Batch(4, wait=1.0))(handle if plain else handle_async)
        async with app:
            await orders.publish_many(Order(n) for n in range(4))
            async with app.worker():
                await until(lambda: sum(map(len, seen)) == 6)
            (dead,) = await orders.group("warehouse").dead.list()
            assert dead.error == "spoilt"
            state = await app.inspector.queue("orders/warehouse")
            assert (state.ready, state.running, state.scheduled) == (0, 0, 0)

    looped(main)()
    assert seen[0] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert sorted(pair for batch in seen[1:] for pair in batch) == [(0, 2), (3, 2)]


@looped
async def test_events_gathered_for_a_batch_are_released_when_the_worker_stops() -> None:
    app, orders = make()
    got: list[int] = []

    @orders.subscribe("warehouse", batch=Batch(100, wait=1000.0))
    async def stock(together: list[Order]) -> None:
        got.extend(order.number for order in together)

    async with app:
        await orders.publish_many(Order(n) for n in range(5))
        async with app.worker():
            async with asyncio.timeout(PATIENCE):
                while (await app.inspector.queue("orders/warehouse")).running < 5:
                    await asyncio.sleep(0.001)
        state = await app.inspector.queue("orders/warehouse")
    assert got == []
    assert (state.ready, state.running) == (5, 0)


# -- publishing ------------------------------------------------------------------------------------------------------------


@looped
async def test_an_event_id_is_published_once() -> None:
    app, orders = make()
    got: list[int] = []

    @orders.subscribe("all")
    async def collect(order: Order) -> None:
        got.append(order.number)

    async with app:
        for _ in range(3):
            assert await orders.publish(Order(1), id="one") == "one"
        await orders.publish(Order(2))
        async with app.worker():
            await until(lambda: 2 in got)
    assert sorted(got) == [1, 2]


@looped
async def test_invalid_events_among_many_are_named_and_the_others_are_published_in_order() -> None:
    app, orders = make()
    got: list[int] = []

    @orders.subscribe("all", concurrency=1)
    async def collect(order: Order) -> None:
        got.append(order.number)

    no_number: Any = "x"
    events: list[Any] = [Order(0), "no order", Order(1), Order(no_number), orders.bind(Order(2), headers={"a": "b"})]
    async with app:
        results = await orders.publish_many(events, return_exceptions=True)
        with pytest.raises(BulkError) as error:
            await orders.publish_many(events)
        assert await orders.publish_many([]) == []
        async with app.worker():
            await until(lambda: len(got) == 6)
    assert [type(result).__name__ for result in results] == ["str", "TypeError", "str", "TypeError", "str"]
    assert "orders" in str(results[1])
    assert len(error.value.failed) == 2
    assert got == [0, 1, 2, 0, 1, 2]


@looped
async def test_a_delayed_event_is_handled_when_it_is_due() -> None:
    app, orders = make()
    got: list[int] = []

    @orders.subscribe("all")
    async def collect(order: Order) -> None:
        got.append(order.number)

    async with app:
        await orders.publish(Order(1), delay=0.2)
        await orders.publish(Order(2))
        async with app.worker():
            await until(lambda: len(got) == 2)
    assert got == [2, 1]


@looped
async def test_an_expired_event_is_not_handled() -> None:
    app, orders = make()
    got: list[int] = []

    @orders.subscribe("all")
    async def collect(order: Order) -> None:
        got.append(order.number)

    async with app:
        await orders.publish(Order(1), expires=0.001)
        await asyncio.sleep(0.01)  # lets the event expire
        await orders.publish(Order(2))
        async with app.worker():
            await until(lambda: got == [2])
            await until_settled(app)
        assert (await app.inspector.queue("orders/all")).totals["expired"] == 1


async def until_settled(app: Millstream) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await app.inspector.queue("orders/all")).running:
            await asyncio.sleep(0.001)


@looped
async def test_a_topic_without_groups_is_full_at_its_max_length() -> None:
    app = new_app()
    topic = app.topic("news", str, max_length=2)
    async with app:
        await topic.publish("one")
        await topic.publish("two")
        with pytest.raises(TopicFull, match="max_length=2"):
            await topic.publish("three")


@looped
async def test_an_event_over_max_payload_bytes_is_refused() -> None:
    app = new_app(max_payload_bytes=10)
    topic = app.topic("news", str)
    async with app:
        await topic.publish("short")
        with pytest.raises(PayloadTooLarge):
            await topic.publish("much too long for ten bytes")


def test_events_can_be_published_with_sync_calls() -> None:
    _, orders = make()
    assert orders.publish_sync(Order(1), id="one") == "one"
    assert len(orders.publish_many_sync([Order(2), Order(3)])) == 2


# -- types and codecs ------------------------------------------------------------------------------------------------------


class Shape(msgspec.Struct):
    sides: int


class Reversed:
    """A user-defined codec."""

    def encode(self, event: str) -> bytes:
        return event[::-1].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]


@pytest.mark.parametrize(
    ("kind", "codec", "event"),
    [
        (Shape, "msgpack", Shape(3)),
        (Shape, "json", Shape(4)),
        (Order, "json", Order(5)),
        (dict[str, int], "msgpack", {"a": 1}),
        (bytes, "raw", b"\x00\xff"),
        (str, Reversed(), "hello"),
    ],
)
def test_events_of_every_type_and_codec_arrive_unchanged(kind: Any, codec: Any, event: Any) -> None:
    got: list[Any] = []

    async def main() -> None:
        app = new_app()
        topic: Topic[Any] = app.topic("things", kind, codec=codec)

        @topic.subscribe("all")
        async def collect(event: Any) -> None:
            got.append(event)

        async with app:
            await topic.publish(event)
            async with app.worker():
                await until(lambda: bool(got))

    looped(main)()
    assert got == [event]
    assert type(got[0]) is type(event)


# -- retention -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "kept"), [({}, 2), ({"retention": 0}, 3), ({"retention": timedelta(hours=1)}, 3), ({"retention_count": 1}, 1)]
)
@looped
async def test_retention_set_by_one_app_applies_until_another_app_changes_it(said: dict[str, Any], kept: int) -> None:
    name = secrets.token_hex(6)
    url = f"memory://{name}" if place.url == "memory://" else place.url  # a backend that two apps can share
    app, other = Millstream(url, namespace=name), Millstream(url, namespace=name)
    app.topic("news", int, retention_count=2)
    async with app, other:
        await app.broker()
        await other.topic("news", int, **said).publish_many(range(3))  # without a group, publishing trims immediately
        assert (await app.inspector.topic("news")).length == kept


# -- declared while the app is connected -----------------------------------------------------------------------------------


@pytest.mark.parametrize("consumed", [True, False])
@looped
async def test_topics_and_groups_declared_after_the_app_connected_are_opened_with_their_options(consumed: bool) -> None:
    app = new_app()
    got: list[int] = []
    async with app:
        broker = await app.broker()
        await broker.open_topic("news", {})
        await broker.emit("news", [Post("1", b"1")])
        news = app.topic("news", int, retention_count=2)

        @news.subscribe("readers", start="new")
        async def read(number: int) -> None:
            got.append(number)

        async with await app.topic("other", int).consume("g", read) if consumed else app.worker():
            (group,) = (await app.inspector.topic("news")).groups
            assert (group.name, group.lag) == ("readers", 0)
        assert got == []


@looped
async def test_topics_and_prefixes_may_be_declared_while_the_app_connects() -> None:
    app = new_app()
    numbers = itertools.count()

    def declare() -> None:
        number = next(numbers)
        app.topic(f"topic{number}", int)
        app.subscribe_prefix(f"prefix{number}.", "g", type=int)(_ignore)

    class Slow(MemoryBroker):
        """A broker that declares more topics while it opens one."""

        async def open_topic(self, topic: str, groups: Any, **options: Any) -> list[str]:
            declare()
            return await super().open_topic(topic, groups, **options)

        async def open_prefix(self, prefix: str, group: str, start: Any, known: Any = ()) -> list[str]:
            declare()
            return await super().open_prefix(prefix, group, start, known)

    class SlowBackend:
        where = "nowhere"

        async def connect(self) -> MemoryBroker:
            return Slow()

    for _ in range(2):
        declare()
    with app._clients.override(SlowBackend()):
        await app.broker()
        opened = set(await app.inspector.topics())
        await app.topic("topic4", int).publish(1)
        assert opened == {"topic0", "topic1"} and "topic4" in await app.inspector.topics()


async def _ignore(number: int) -> None: ...


# -- groups ----------------------------------------------------------------------------------------------------------------


@looped
async def test_a_group_is_paused_skipped_rewound_and_removed() -> None:
    app = new_app()
    topic = app.topic("news", int, retention_count=1000)
    got: list[int] = []

    @topic.subscribe("readers")
    async def read(number: int) -> None:
        got.append(number)

    group = topic.group("readers")
    async with app:
        await topic.publish_many(range(5))
        async with app.worker():
            await until(lambda: len(got) == 5)
            await group.rewind()
            await until(lambda: len(got) == 10)
        await group.pause()
        await topic.publish(5)
        await group.skip()
        await group.resume()
        await topic.publish(6)
        async with app.worker():
            await until(lambda: 6 in got)
        assert 5 not in got
        await group.remove()
        with pytest.raises(UsageError, match="no group"):
            await group.rewind()


# -- invalid declarations and options --------------------------------------------------------------------------------------


def test_invalid_declarations_are_refused() -> None:
    app, orders = make()
    with pytest.raises(UsageError, match="already declared"):
        app.topic("orders", str)
    assert app.topic("orders", Order) is orders
    with pytest.raises(UsageError, match="topic"):
        app.topic("or:ders", Order)
    with pytest.raises(UsageError, match="codec"):
        app.topic("other", Order, codec=cast(Any, "yaml"))
    with pytest.raises(UsageError, match="raw"):
        app.topic("other", Order, codec="raw")
    with pytest.raises(UsageError, match="max_length"):
        app.topic("other", Order, max_length=0)
    for retention in (-1, -1.0, True, "1"):
        with pytest.raises(UsageError, match="retention"):
            app.topic("other", Order, retention=cast(Any, retention))
    for count in (-1, 1.0, True, "1", timedelta(1)):
        with pytest.raises(UsageError, match="retention_count"):
            app.topic("other", Order, retention_count=cast(Any, count))

    @orders.subscribe("billing")
    async def bill(order: Order) -> None: ...

    with pytest.raises(UsageError, match="already has a handler"):

        @orders.subscribe("billing")
        async def again(order: Order) -> None: ...

    wrong_options: list[dict[str, Any]] = [{"concurrency": 0}, {"timeout": -1}, {"ack": "never"}, {"retries": 3}]
    for wrong in wrong_options:
        with pytest.raises(UsageError, match=next(iter(wrong))):
            orders.subscribe("other", **wrong)(bill)
    nothing: Any = lambda: None  # noqa: E731
    with pytest.raises(UsageError, match="the event and its delivery"):
        orders.subscribe("none")(nothing)


@looped
async def test_invalid_publish_options_are_refused_and_nothing_is_written() -> None:
    app, orders = make()
    async with app:
        wrong_options: list[dict[str, Any]] = [{"delay": -1}, {"id": ""}, {"headers": {"a": 1}}, {"kind": 3}, {"prio": 1}]
        for wrong in wrong_options:
            with pytest.raises(UsageError):
                await orders.publish(Order(1), **wrong)
        with pytest.raises(UsageError, match="the same id"):
            await orders.publish_many([Order(1)], id="same")
        assert (await app.inspector.topic("orders")).length == 0
