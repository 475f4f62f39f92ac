"""Ordered topics: the events of a key are handled one at a time, in the order in which they were published."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream import Batch, DeadEvent, Delivery, Millstream, Problem, Reject, RetryPolicy, Topic
from millstream.broker import OrderRules
from millstream.errors import BulkError, ShardsChanged, ShardsInUse, TopicFull, UsageError
from millstream.model.address import Address
from millstream.model.ordering import shard_of_key
from tests.stage import looped, new_app, place, until, until_idle

SOON = RetryPolicy(3, delay=0.001, jitter=False)

in_every_backend = pytest.mark.usefixtures("every_backend")


@dataclass
class Order:
    number: int
    customer: str = "ann"


def by_customer(order: Order) -> str:
    return order.customer


def make(shards: int = 4, **options: Any) -> tuple[Millstream, Topic[Order]]:
    app = beside(None)
    return app, app.topic("orders", Order, order_by=by_customer, shards=shards, **options)


def beside(app: Millstream | None) -> Millstream:
    """Return an app in the namespace of another app, or in a new namespace."""
    name = f"test-{secrets.token_hex(6)}" if app is None else app.settings.namespace
    url = f"memory://{name}" if place.url == "memory://" else place.url
    return Millstream(url, namespace=name, retry=SOON)


def sent(events: int, customers: int) -> list[Order]:
    return [Order(n, f"customer-{n % customers}") for n in range(events)]


# -- declaring -------------------------------------------------------------------------------------------------------------


def test_a_topic_without_order_by_refuses_ordering_options() -> None:
    app = new_app()
    with pytest.raises(UsageError, match=r"shards=8.*order_by"):
        app.topic("orders", Order, shards=8)
    with pytest.raises(UsageError, match=r"on_failure='stop'.*order_by"):
        app.topic("orders", Order, on_failure="stop")
    with pytest.raises(UsageError, match=r"max_pending_per_key=5.*order_by"):
        app.topic("orders", Order, max_pending_per_key=5)
    plain = app.topic("orders", Order)
    with pytest.raises(UsageError, match=r"on_failure='skip' of group 'g'.*needs an order"):
        plain.subscribe("g", on_failure="skip")(lambda order: None)
    with pytest.raises(UsageError, match=r"max_pending_per_key=5 of group 'g'.*needs an order"):
        plain.subscribe("g", max_pending_per_key=5)(lambda order: None)
    assert plain.order_by is None
    assert plain.streams == [plain.stream]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_failure": "retry"}, "on_failure.*'retry'"),
        ({"max_pending_per_key": 0}, "max_pending_per_key.*0"),
        ({"max_pending_per_key": 1.5}, "max_pending_per_key.*1.5"),
    ],
)
def test_invalid_ordering_options_are_refused(options: dict[str, Any], said: str) -> None:
    app, orders = make()
    with pytest.raises(UsageError, match=said):
        app.topic("other", Order, order_by=by_customer, **options)
    with pytest.raises(UsageError, match=said):
        orders.subscribe("g", **options)(lambda order: None)


@pytest.mark.parametrize("order_by", ["customer", 5, lambda: "x", lambda a, b: "x"])
def test_an_invalid_key_function_is_refused(order_by: Any) -> None:
    with pytest.raises(UsageError, match=r"order_by of topic 'orders'"):
        new_app().topic("orders", Order, order_by=order_by)


def test_an_async_key_function_is_refused() -> None:
    async def later(order: Order) -> str:
        return order.customer

    with pytest.raises(UsageError, match="plain function"):
        new_app().topic("orders", Order, order_by=later)  # type: ignore[arg-type]


def test_a_group_overrides_the_ordering_options_of_its_topic() -> None:
    _, orders = make(on_failure="stop", max_pending_per_key=10)

    @orders.subscribe("as_said")
    async def as_said(order: Order) -> None: ...

    @orders.subscribe("other", on_failure="skip", max_pending_per_key=3)
    async def other(order: Order) -> None: ...

    assert orders.subscriptions["as_said"].order == OrderRules(stop=True, max_pending=10)
    assert orders.subscriptions["other"].order == OrderRules(stop=False, max_pending=3)


def test_batches_on_an_ordered_topic_are_refused_with_the_reason() -> None:
    _, orders = make()
    with pytest.raises(UsageError, match="one at a time"):
        orders.subscribe("g", batch=Batch(10, wait=1))(lambda orders: None)


def test_ack_on_receive_is_refused_on_an_ordered_topic() -> None:
    _, orders = make()
    with pytest.raises(UsageError, match="at the same time"):
        orders.subscribe("g", ack="on_receive")(lambda order: None)


def test_redeclaring_an_ordered_topic_with_another_key_function_or_shard_count_is_refused() -> None:
    app, orders = make(shards=4)
    assert app.topic("orders", Order, order_by=by_customer, shards=4) is orders
    with pytest.raises(UsageError, match="already declared"):
        app.topic("orders", Order, order_by=by_customer, shards=8)
    with pytest.raises(UsageError, match="already declared"):
        app.topic("orders", Order, order_by=lambda order: order.number, shards=4)
    with pytest.raises(UsageError, match="already declared"):
        app.topic("orders", Order)


def test_an_ordered_topic_has_eight_shards_by_default_and_each_has_a_stream() -> None:
    app = new_app()
    orders = app.topic("orders", Order, order_by=by_customer)
    assert orders.settings.shards == 8
    assert len(set(orders.streams)) == 8
    with pytest.raises(UsageError, match="streams"):
        _ = orders.stream


def test_a_prefix_group_refuses_options_that_depend_on_its_topic() -> None:
    app = new_app()
    with pytest.raises(UsageError, match=r"prefix.*on_failure"):
        app.subscribe_prefix("orders", "audit", type=Order, on_failure="stop")(lambda order: None)
    graveyard: Any = {"dead_letter": app.topic("graveyard", Order)}
    with pytest.raises(UsageError, match=r"prefix.*dead_letter"):
        app.subscribe_prefix("orders", "audit", type=Order, **graveyard)(lambda order: None)


# -- publishing ------------------------------------------------------------------------------------------------------------


@in_every_backend
@looped
async def test_each_event_goes_to_the_shard_of_its_key_and_ids_are_returned_in_call_order() -> None:
    app, orders = make(shards=4)

    @orders.subscribe("billing")
    async def bill(order: Order) -> None: ...

    events = sent(500, 37)
    async with app:
        ids = await orders.publish_many(events[:490])
        ids += [await orders.publish(event) for event in events[490:]]
        assert len(set(ids)) == 500
        lengths = [(await app.inspector.topic(f"orders:{shard}")).length for shard in range(4)]
        state = await app.inspector.topic("orders")
    expected = [0] * 4
    for event in events:
        expected[shard_of_key(event.customer.encode(), 4)] += 1
    assert lengths == expected
    assert (state.name, state.length, state.totals["published"], state.shards) == ("orders", 500, 500, 4)
    (group,) = state.groups
    assert (group.name, group.ready, group.lag, group.position) == ("billing", 500, 500, "")


@in_every_backend
@looped
async def test_an_event_whose_key_function_fails_is_refused_and_not_written() -> None:
    app = new_app()

    def key(order: Order) -> Any:
        if order.number == 1:
            raise KeyError("no customer")
        return None if order.number == 2 else order.customer

    orders = app.topic("orders", Order, order_by=key, shards=2)
    async with app:
        with pytest.raises(TypeError, match=r"order_by of topic 'orders' \(.*key\) raised KeyError.*no customer") as raised:
            await orders.publish(Order(1))
        assert isinstance(raised.value.__cause__, KeyError)
        with pytest.raises(TypeError, match=r"order_by of topic 'orders'.*not NoneType"):
            await orders.publish(Order(2))
        assert (await app.inspector.topic("orders")).totals.get("published", 0) == 0
        with pytest.raises(BulkError) as refused:
            await orders.publish_many([Order(n) for n in range(4)])
        assert list(refused.value.failed) == [1, 2]
        assert [type(error) for error in refused.value.failed.values()] == [TypeError, TypeError]
        assert (await app.inspector.topic("orders")).length == 2


@in_every_backend
@looped
async def test_bound_events_and_events_with_options_keep_their_order() -> None:
    app, orders = make()
    got: list[int] = []

    @orders.subscribe("billing")
    async def bill(order: Order, delivery: Delivery) -> None:
        got.append(order.number)
        assert delivery.topic == "orders"
        assert delivery.key == ("a field" if order.number == 1 else "")

    async with app:
        await orders.publish_many([orders.bind(Order(0)), orders.bind(Order(1), key="a field", id="one"), Order(2)])
        assert await orders.publish(Order(1), id="one") == "one"
        async with app.worker():
            await until(lambda: len(got) == 3)
    assert got == [0, 1, 2]


@in_every_backend
@looped
async def test_max_length_is_divided_among_the_shards() -> None:
    app, orders = make(shards=4, max_length=10)
    async with app:
        await orders.publish_many(Order(n) for n in range(3))
        with pytest.raises(TopicFull, match=r"'orders'.*max_length=3 .*shard"):
            await orders.publish(Order(3))
        other = next(f"c{n}" for n in range(99) if shard_of_key(f"c{n}".encode(), 4) != shard_of_key(b"ann", 4))
        await orders.publish(Order(4, other))


@in_every_backend
@looped
async def test_a_publish_waits_while_a_shard_is_fenced_for_resharding() -> None:
    app, orders = make(shards=2)
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()
    problems: list[Problem] = []

    @app.on_error
    def told(problem: Problem) -> None:
        problems.append(problem)
        loop.call_soon_threadsafe(refused.set)

    async with app:
        await orders.publish(Order(0))
        broker = await app.broker()
        shard = Address.of_topic("orders").at_shard(shard_of_key(b"ann", 2))
        await broker.fence_shard(shard, 0)
        publishing = asyncio.create_task(orders.publish(Order(1)))
        await refused.wait()
        await broker.fence_shard(shard, 2)
        assert await publishing
        assert (await app.inspector.topic("orders")).length == 2
    assert {(problem.during, problem.topic, problem.address) for problem in problems} == {("publish", "orders", shard)}


@in_every_backend
@looped
async def test_publish_many_reports_every_event_that_was_not_sent_because_of_resharding() -> None:
    app, orders = make(shards=2)
    async with app:
        await orders.publish(Order(0))
        broker = await app.broker()
        await broker.note_shards(Address("orders/"), 3, replace=True)
        for shard in range(2):
            await broker.fence_shard(Address(f"orders:{shard}/"), 3)
        results = await orders.publish_many(sent(2_000, 50), return_exceptions=True)
        assert {type(result) for result in results} == {ShardsChanged}
        assert [(await app.inspector.topic(f"orders:{shard}")).length for shard in range(2)].count(1) == 1


@in_every_backend
@looped
async def test_sync_calls_from_another_thread_can_publish_to_an_ordered_topic() -> None:
    app, orders = make()

    def send() -> list[str]:
        return orders.publish_many_sync(sent(20, 5))

    ids = await asyncio.to_thread(send)
    assert len(set(ids)) == 20
    async with app:
        assert (await app.inspector.topic("orders")).length == 20


# -- handling --------------------------------------------------------------------------------------------------------------


@in_every_backend
@looped
async def test_events_of_a_key_are_handled_one_at_a_time_and_in_order_through_retries() -> None:
    app, orders = make()
    got: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()
    together = 0

    @orders.subscribe("billing")
    async def bill(order: Order, delivery: Delivery) -> None:
        nonlocal together
        assert order.customer not in running
        running.add(order.customer)
        together = max(together, len(running))
        await asyncio.sleep(0)
        running.discard(order.customer)
        if order.number % 7 == 0 and delivery.attempt < 3:
            raise ValueError("once more")
        got[order.customer].append(order.number)

    events = sent(400, 20)
    async with app:
        await orders.publish_many(events)
        async with app.worker(), app.worker():
            await until(lambda: sum(map(len, got.values())) == 400)
    for customer, numbers in got.items():
        assert numbers == [event.number for event in events if event.customer == customer]
    assert together > 1


@in_every_backend
@looped
async def test_any_bytes_can_be_an_ordering_key_including_the_empty_key() -> None:
    app = beside(None)
    keys = [b"", b"\x00", b"a/b", b"a\nb", b"\xff\xfe", b"-", b"x" * 3000, "ключ".encode(), b"0", b"{x}", b"%d"]
    numbered = app.topic("numbered", int, order_by=lambda number: keys[number % len(keys)], shards=2)
    got: dict[bytes, list[int]] = defaultdict(list)
    running: set[bytes] = set()

    @numbered.subscribe("g", on_failure="stop")
    async def handle(number: int, delivery: Delivery) -> None:
        key = keys[number % len(keys)]
        assert key not in running
        running.add(key)
        await asyncio.sleep(0)
        running.discard(key)
        if number < 22 and delivery.attempt == 1:
            raise ValueError("once more")
        if number >= 55:
            raise Reject("enough")
        got[key].append(number)

    async with app:
        await numbered.publish_many(range(77))
        async with app.worker():
            await until(lambda: sum(map(len, got.values())) == 55)
            async with asyncio.timeout(20):
                while (await app.inspector.queue("numbered/g")).dead < 22:
                    await asyncio.sleep(0.01)
        for place_of_key, key in enumerate(keys):
            assert got[key] == list(range(place_of_key, 55, 11))
        group = numbered.group("g")
        assert [stopped.key for stopped in await group.stopped_keys()] == sorted(keys)
        assert [await group.clear(key) for key in keys] == [2] * 11
        assert await group.stopped_keys() == []


@in_every_backend
@looped
async def test_a_consumer_in_the_users_own_process_serves_all_shards() -> None:
    app, orders = make()
    got: list[Order] = []

    async def handle(order: Order, delivery: Delivery) -> None:
        assert (delivery.topic, delivery.group) == ("orders", "own")
        got.append(order)

    async with app:
        events = sent(60, 9)
        async with await orders.consume("own", handle, max_pending_per_key=5):
            await orders.publish_many(events)
            await until(lambda: len(got) == 60)
    assert sorted(order.number for order in got) == list(range(60))
    mine = [order.number for order in got if order.customer == "customer-3"]
    assert mine == sorted(mine)


@in_every_backend
@looped
async def test_with_on_failure_skip_the_key_continues_after_a_dead_event() -> None:
    app, orders = make()
    got: list[int] = []

    @orders.subscribe("billing")
    async def bill(order: Order) -> None:
        if order.number == 1:
            raise Reject("not this one")
        got.append(order.number)

    async with app:
        await orders.publish_many(Order(n) for n in range(4))
        async with app.worker():
            await until(lambda: len(got) == 3)
        (dead,) = await orders.group("billing").dead.list()
        assert (dead.reason, dead.queue, dead.order_key) == ("rejected", "orders/billing", b"ann")
        assert dead.shard == shard_of_key(b"ann", 4)
        assert await orders.group("billing").stopped_keys() == []
    assert got == [0, 2, 3]


async def stop_a_key(app: Millstream, orders: Topic[Order], got: list[int]) -> list[bool]:
    """Reject the first of ann's three events so that all three are dead; bob's event is handled."""
    spoilt = [True]

    @orders.subscribe("billing", on_failure="stop")
    async def bill(order: Order) -> None:
        if order.number == 1 and spoilt[0]:
            raise Reject("not this one")
        got.append(order.number)

    await orders.publish_many([Order(0), Order(1), Order(2), Order(3), Order(10, "bob")])
    async with app.worker():
        await until(lambda: sorted(got) == [0, 10])
        await dead_are(app, orders, 3)
    return spoilt


async def dead_are(app: Millstream, orders: Topic[Order], count: int) -> None:
    async with asyncio.timeout(20):
        while len(await orders.group("billing").dead.list()) < count:
            await asyncio.sleep(0.01)


@in_every_backend
@looped
async def test_a_stopped_key_is_listed_and_resumes_in_order_when_it_is_cleared() -> None:
    app, orders = make()
    got: list[int] = []
    async with app:
        spoilt = await stop_a_key(app, orders, got)
        group = orders.group("billing")
        dead = await group.dead.list()
        assert sorted(letter.reason for letter in dead) == ["rejected", "stopped", "stopped"]
        (stopped,) = await group.stopped_keys()
        root = next(letter.id for letter in dead if letter.reason == "rejected")
        assert (stopped.key, stopped.by, stopped.waiting) == (b"ann", root, 3)
        assert (await app.inspector.topic("orders")).groups[0].stopped == 1
        assert await app.inspector.stopped_keys("orders/billing") == [stopped]
        with pytest.raises(UsageError, match=r"'bob'.*not stopped"):
            await group.clear("bob")
        with pytest.raises(TypeError, match="clear"):
            await group.clear(None)  # type: ignore[arg-type]

        spoilt[0] = False
        assert await group.clear("ann", replay=True) == 3
        await orders.publish(Order(4))
        async with app.worker():
            await until(lambda: len(got) == 6)
        assert [number for number in got if number < 10] == [0, 1, 2, 3, 4]
        assert await group.stopped_keys() == []
        assert await group.dead.list() == []


@in_every_backend
@looped
async def test_a_key_cleared_without_replay_resumes_with_new_events() -> None:
    app, orders = make()
    got: list[int] = []
    async with app:
        await stop_a_key(app, orders, got)
        group = orders.group("billing")
        with pytest.raises(ShardsInUse, match=r"stopped keys \(1\)"):
            await orders.reshard(8)  # resharding would resume the key
        assert await group.clear(b"ann", replay=False) == 0
        await orders.publish(Order(4))
        async with app.worker():
            await until(lambda: 4 in got)
        assert len(await group.dead.list()) == 3


@in_every_backend
@looped
async def test_events_blocked_behind_a_retry_are_limited_and_listed_as_blocked() -> None:
    app = new_app(retry=RetryPolicy(5, delay=60.0, jitter=False))
    orders = app.topic("orders", Order, order_by=by_customer, shards=2)
    tried = asyncio.Event()

    @orders.subscribe("billing", max_pending_per_key=3)
    async def bill(order: Order) -> None:
        tried.set()
        raise ValueError("later")

    async with app:
        await orders.publish(Order(0))
        async with app.worker():
            await tried.wait()
            async with asyncio.timeout(20):
                while not (await app.inspector.queue("orders/billing")).scheduled:
                    await asyncio.sleep(0.01)
            await orders.publish_many(Order(n) for n in range(1, 6))
            await dead_are(app, orders, 2)
        state = await app.inspector.queue("orders/billing")
        assert (state.scheduled, state.blocked, state.dead, state.shards) == (1, 3, 2, 2)
        assert {letter.reason for letter in await orders.group("billing").dead.list()} == {"pending_full"}
        blocked = await app.inspector.jobs("orders/billing", "blocked")
        assert [view.status for view in blocked] == ["blocked"] * 3


@in_every_backend
@looped
async def test_dead_letters_of_all_shards_are_listed_shown_replayed_and_purged_together() -> None:
    app, orders = make()
    spoilt = True
    got: list[int] = []

    @orders.subscribe("billing")
    async def bill(order: Order) -> None:
        if spoilt:
            raise Reject("no")
        got.append(order.number)

    async with app:
        await orders.publish_many(sent(30, 10))
        async with app.worker():
            await dead_are(app, orders, 30)
        dead = orders.group("billing").dead
        letters = await dead.list(limit=None)
        assert len({letter.shard for letter in letters}) > 1
        assert [letter.died_at for letter in letters] == sorted(letter.died_at for letter in letters)
        assert len(await app.dead.list(queue="orders/billing", limit=7)) == 7
        assert (await app.dead.show(letters[5].id)) == letters[5]

        paged, after = [], ""
        while page := await app.inspector.dead_letters("orders/billing", after=after, limit=7):
            assert len(page) <= 7
            paged += page
            after = page[-1].cursor
        assert [letter.id for letter in paged] == [letter.id for letter in letters]

        spoilt = False
        assert await dead.purge(letters[0].id) == [letters[0].id]
        assert len(await dead.replay(reason="rejected")) == 29
        async with app.worker():
            await until(lambda: len(got) == 29)


@in_every_backend
@looped
async def test_on_dead_handles_the_dead_letters_of_all_shards() -> None:
    app, orders = make()
    made_dead: list[DeadEvent[Order]] = []
    replayed: list[bool] = []
    spoilt = True
    got: list[int] = []

    @orders.subscribe("billing")
    async def bill(order: Order) -> None:
        if spoilt:
            raise Reject("no")
        got.append(order.number)

    @orders.on_dead("billing")
    async def make_dead(letter: DeadEvent[Order]) -> None:
        nonlocal spoilt
        made_dead.append(letter)
        if letter.event.number == 3:
            spoilt = False
            replayed.append(await letter.replay())

    async with app:
        await orders.publish_many(sent(8, 8))
        async with app.worker():
            await until(lambda: len(made_dead) + len(got) >= 8 and 3 in got)
    assert replayed == [True]
    assert {(letter.topic, letter.group, letter.queue) for letter in made_dead} == {("orders", "billing", "orders/billing")}


@in_every_backend
@looped
async def test_dead_letters_of_an_ordered_topic_can_be_forwarded_to_another_ordered_topic() -> None:
    app, orders = make()
    spoilt = app.topic("spoilt", Order, order_by=by_customer, shards=2)
    got: list[tuple[int, str]] = []

    @orders.subscribe("billing", dead_letter=spoilt)
    async def bill(order: Order) -> None:
        raise Reject("no")

    @spoilt.subscribe("clerk")
    async def look(order: Order, delivery: Delivery) -> None:
        got.append((order.number, delivery.headers["dead-topic"]))

    async with app:
        await orders.publish_many(sent(20, 5))
        async with app.worker():
            await until(lambda: len(got) == 20)
        assert sorted(got) == [(n, "orders") for n in range(20)]
        lengths = [(await app.inspector.topic(f"spoilt:{shard}")).totals["published"] for shard in range(2)]
        assert sum(lengths) == 20
        assert min(lengths) > 0


@in_every_backend
@looped
async def test_a_broadcast_receives_all_shards_with_each_key_in_order() -> None:
    app, orders = make(shards=3)
    got: dict[str, list[int]] = defaultdict(list)

    @orders.broadcast
    async def told(order: Order, delivery: Delivery) -> None:
        assert (delivery.topic, delivery.group) == ("orders", "")
        got[order.customer].append(order.number)

    events = sent(90, 9)
    async with app, app.worker():
        await orders.publish_many(events)
        await until(lambda: sum(map(len, got.values())) == 90)
    for customer, numbers in got.items():
        assert numbers == [event.number for event in events if event.customer == customer]


@in_every_backend
@looped
async def test_a_prefix_group_covers_every_shard_and_keeps_the_order_of_keys() -> None:
    app, orders = make()
    own: list[int] = []
    audited: dict[str, list[int]] = defaultdict(list)

    @app.subscribe_prefix("ord", "audit", type=Order)
    async def audit(order: Order, delivery: Delivery) -> None:
        assert (delivery.topic, delivery.group) == ("orders", "audit")
        audited[order.customer].append(order.number)

    @app.subscribe_prefix("ord", "billing", type=Order)
    async def never(order: Order) -> None:
        raise AssertionError("the topic has its own handler for this group")

    @orders.subscribe("billing")
    async def bill(order: Order) -> None:
        own.append(order.number)

    events = sent(60, 6)
    async with app:
        await orders.publish_many(events)
        async with app.worker():
            await until(lambda: len(own) == 60 and sum(map(len, audited.values())) == 60)
        assert await app.dead.list() == []
        assert await app.inspector.topics() == ["orders"]
    for customer, numbers in audited.items():
        assert numbers == [event.number for event in events if event.customer == customer]


# -- operations ------------------------------------------------------------------------------------------------------------


@in_every_backend
@looped
async def test_a_group_is_paused_skipped_rewound_and_removed_in_all_shards() -> None:
    app, orders = make(retention=timedelta(hours=1))
    got: list[int] = []

    @orders.subscribe("billing")
    async def bill(order: Order) -> None:
        got.append(order.number)

    async with app:
        await orders.publish_many(sent(20, 10))
        group = orders.group("billing")
        await group.pause()
        assert (await app.inspector.queue("orders/billing")).paused
        assert all([(await app.inspector.queue(f"orders:{shard}/billing")).paused for shard in range(4)])
        await group.skip()
        await group.resume()
        assert not (await app.inspector.queue("orders/billing")).paused
        await orders.publish(Order(100))
        async with app.worker():
            await until(lambda: got == [100])
            await until_idle(app, group.address)  # a rewind does not redeliver events that are not settled yet
            await group.rewind()
            await until(lambda: len(got) == 22)
            await until_idle(app, group.address)
            await group.rewind(datetime.now(UTC) - timedelta(hours=1))
            await until(lambda: len(got) == 43)
        with pytest.raises(UsageError, match=r"4 shards.*'1-0'"):
            await group.rewind("1-0")
        await group.remove()
        assert (await app.inspector.topic("orders")).groups == []
        with pytest.raises(UsageError, match="no group 'billing'"):
            await group.rewind()
        assert await app.inspector.addresses() == []


@in_every_backend
@looped
async def test_the_concurrency_of_a_group_applies_to_all_its_shards_together() -> None:
    app, orders = make(shards=8)
    most, running, done = 0, 0, 0

    @orders.subscribe("billing", concurrency=2)
    async def bill(order: Order) -> None:
        nonlocal most, running, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done += 1

    async with app:
        await orders.publish_many(sent(200, 50))
        async with app.worker():
            await until(lambda: done == 200)
    assert most <= 2


@in_every_backend
@looped
async def test_a_topic_cannot_be_resharded_while_a_group_is_rewound() -> None:
    app, orders = make(shards=2, retention_count=100)
    got: list[int] = []

    @orders.subscribe("billing")
    async def bill(order: Order) -> None:
        got.append(order.number)

    async with app:
        await orders.publish_many(sent(10, 1))
        async with app.worker():
            await until(lambda: len(got) == 10)
            await until_idle(app, Address("orders/billing"))
        middle = datetime.now(UTC)
        await orders.publish_many(sent(10, 1))
        async with app.worker():
            await until(lambda: len(got) == 20)
            await until_idle(app, Address("orders/billing"))
        await orders.group("billing").rewind(middle)
        with pytest.raises(ShardsInUse):
            await orders.reshard(4)


@in_every_backend
@looped
async def test_a_different_shard_count_is_refused_for_publishers_and_workers_with_a_fix() -> None:
    app, orders = make(shards=4)
    async with app:
        await orders.publish(Order(1))
        other = beside(app)
        fewer = other.topic("orders", Order, order_by=by_customer, shards=2)

        @fewer.subscribe("billing")
        async def bill(order: Order) -> None: ...

        plain = beside(app)
        unordered = plain.topic("orders", Order)
        async with other, plain:
            for _ in range(2):
                with pytest.raises(ShardsChanged, match=r"'orders' has 4 shards.*declares 2.*topics reshard orders 2"):
                    await fewer.publish(Order(2))
            with pytest.raises(ShardsChanged, match=r"has 4 shards.*declares none"):
                await unordered.publish(Order(2))
            with pytest.raises(ShardsChanged, match=r"has 4 shards.*declares 2"):
                async with other.worker():
                    pass
            assert (await other.inspector.topic("orders")).length == 1  # inspecting the topic is still possible


@in_every_backend
@looped
async def test_declaring_shards_for_an_unordered_topic_with_events_is_refused() -> None:
    app = beside(None)
    plain = app.topic("orders", Order)
    async with app:
        await plain.publish(Order(1))
        other = beside(app)
        orders = other.topic("orders", Order, order_by=by_customer, shards=2)
        async with other:
            with pytest.raises(ShardsChanged, match=r"has no shards and is not empty \(1 ready\).*declares 2"):
                await orders.publish(Order(2))


@in_every_backend
@looped
async def test_an_idle_topic_can_be_resharded_and_keeps_its_groups() -> None:
    app, orders = make(shards=2)

    @orders.subscribe("billing", start="new")
    async def bill(order: Order) -> None:
        got.append(order.number)

    got: list[int] = []
    async with app:
        await orders.publish_many(sent(10, 5))
        with pytest.raises(ShardsInUse, match="ready"):
            await orders.reshard(4)
        assert await app.inspector.shards("orders/") == 2
        await orders.publish(Order(10))  # a refused reshard changes nothing
        async with app.worker():
            await until(lambda: len(got) == 11)
        await orders.group("billing").pause()
        await orders.reshard(4)
        with pytest.raises(ShardsChanged, match=r"has 4 shards.*declares 2"):
            await orders.publish(Order(11))

        after = beside(app)
        more = after.topic("orders", Order, order_by=by_customer, shards=4)
        async with after:
            state = await after.inspector.topic("orders")
            assert (state.shards, [(group.name, group.paused) for group in state.groups]) == (4, [("billing", True)])
            await more.publish_many(sent(10, 10))  # the group exists in the new shards too
            assert (await after.inspector.queue("orders/billing")).ready == 10
            with pytest.raises(UsageError, match="shards"):
                await more.reshard(-1)
