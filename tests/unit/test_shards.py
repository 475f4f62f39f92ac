"""Shards: the shard of a key, and the settings that a worker receives for the addresses it serves."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from millstream.backends.memory import MemoryBroker
from millstream.broker import OrderRules
from millstream.errors import UsageError
from millstream.model.address import Address
from millstream.model.ordering import LONGEST_REMEMBERED, fnv1a, key_bytes, shard_of_key
from millstream.model.serving import Serving
from tests.stage import looped, new_app

VECTORS: list[tuple[Any, bytes, int, int]] = [
    ("", b"", 2166136261, 5),
    ("a", b"a", 3826002220, 4),
    ("foobar", b"foobar", 3214735720, 0),
    ("ann", b"ann", 355060760, 0),
    ("müller", b"m\xc3\xbcller", 1392138076, 4),
    (b"\x00\xff", b"\x00\xff", 3531065248, 0),
    (42, b"42", 2279835011, 3),
    (-7, b"-7", 449647517, 5),
    (1.5, b"1.5", 3896645433, 1),
]
"""A key, its bytes, their hash, and its shard of 8. These values are the same in every language and never change."""


@pytest.mark.parametrize(("key", "data", "hashed", "shard"), VECTORS)
def test_a_key_has_the_shard_of_the_documented_hash(key: Any, data: bytes, hashed: int, shard: int) -> None:
    assert key_bytes(key) == data
    assert fnv1a(data) == hashed
    assert shard_of_key(data, 8) == shard == hashed % 8
    assert shard_of_key(data, 1) == 0


def test_a_long_key_has_the_same_hash_although_it_is_not_cached() -> None:
    long = b"x" * (LONGEST_REMEMBERED + 1)
    assert shard_of_key(long, 1009) == fnv1a(long) % 1009


def test_keys_are_spread_over_all_shards() -> None:
    counts = [0] * 8
    for n in range(8_000):
        counts[shard_of_key(f"customer-{n}".encode(), 8)] += 1
    assert min(counts) > 700
    assert max(counts) < 1300


@pytest.mark.parametrize("value", [None, True, False, ["a"], ("a", 1), {"a": 1}, object(), 1j, "\ud800"])
def test_a_key_must_be_text_bytes_or_a_number(value: Any) -> None:
    with pytest.raises(TypeError, match=r"topic 'orders'.*key"):
        key_bytes(value, "order_by of topic 'orders'")


def test_a_number_as_key_is_converted_as_python_prints_it() -> None:
    class Id(int):
        def __str__(self) -> str:
            return "nice"

    assert [key_bytes(value) for value in (0, 10**30, -0.0, 1e300, math.inf)] == [
        b"0",
        b"1" + b"0" * 30,
        b"-0.0",
        b"1e+300",
        b"inf",
    ]
    assert key_bytes(Id(7)) == b"7"
    with pytest.raises(TypeError, match="topic 'orders'"):
        key_bytes(10**5000, "order_by of topic 'orders'")


def test_a_worker_receives_shards_max_consumers_and_order_rules_of_everything_it_serves() -> None:
    app = new_app()
    app.queue("mail", shards=4, consumers=(1, 3))
    orders = app.topic("orders", int, order_by=str, shards=16, on_failure="stop")
    news = app.topic("news", int)

    @app.task(queue="mail", order_by=lambda to: to, max_pending_per_key=5)
    async def send(to: str) -> None: ...

    @app.task
    async def plain() -> None: ...

    @orders.subscribe("billing", consumers=(2, 2), max_pending_per_key=7)
    async def bill(number: int) -> None: ...

    @orders.on_dead("billing")
    async def make_dead(letter: Any) -> None: ...

    @news.subscribe("readers", consumers=(1, 5))
    async def read(number: int) -> None: ...

    @app.subscribe_prefix("no", "audit", type=int, consumers=(1, 2))
    async def audit(number: int) -> None: ...

    addresses = app.queues_to_serve(())
    assert app.catalog.serving(addresses) == [
        Serving(Address("mail"), 4, 3, OrderRules(max_pending=5)),
        Serving(Address("default")),
        Serving(Address("orders/billing"), 16, 2, OrderRules(stop=True, max_pending=7)),
        Serving(Address("orders/billing/dead"), 16),
        Serving(Address("news/readers"), 0, 5),
        Serving(Address("no*/audit"), 0, 2),
    ]
    assert app.catalog.serving([Address("nobody")]) == [Serving(Address("nobody"))]


def test_a_broadcast_of_an_ordered_topic_follows_each_shard() -> None:
    app = new_app()
    orders = app.topic("orders", int, order_by=str, shards=3)

    @orders.broadcast
    async def told(number: int) -> None: ...

    shards = Address.of_topic("orders").shards(3)
    assert app.queues_to_serve(()) == shards
    assert app.queues_to_serve(["orders/"]) == shards
    assert app.catalog.serving(shards) == [Serving(shard) for shard in shards]
    assert [broadcast.topic for broadcast in app.catalog.broadcasts] == ["orders:0", "orders:1", "orders:2"]


@pytest.mark.parametrize("consumers", [0, 3, (1,), (1, 2, 3), [1, 2], (0, 2), (3, 2), (1, 2.0), (True, 2), "12"])
def test_invalid_consumers_are_refused(consumers: Any) -> None:
    app = new_app()
    with pytest.raises(UsageError, match="consumers"):
        app.queue("mail", consumers=consumers)
    with pytest.raises(UsageError, match="consumers"):
        app.topic("orders", int).subscribe("g", consumers=consumers)(lambda number: None)


@pytest.mark.parametrize("shards", [0, -1, 2.0, "8", True])
def test_invalid_shards_are_refused(shards: Any) -> None:
    app = new_app()
    with pytest.raises(UsageError, match=r"shards.*1 or more"):
        app.queue("mail", shards=shards)
    with pytest.raises(UsageError, match=r"shards.*1 or more"):
        app.topic("orders", int, order_by=str, shards=shards)


def test_a_queue_declared_twice_with_other_shards_or_consumers_is_refused() -> None:
    app = new_app()
    app.queue("mail", shards=4)
    assert app.queue("mail", shards=4).name == "mail"
    with pytest.raises(UsageError, match=r"shards=4.*shards=8"):
        app.queue("mail", shards=8)
    with pytest.raises(UsageError, match=r"consumers=\(1, 2\)"):
        app.queue("mail", shards=4, consumers=(1, 2))


@looped
async def test_the_due_jobs_of_a_queue_are_the_sum_of_its_shards() -> None:
    app = new_app()

    @app.task(queue="mail", order_by=lambda n: n)
    def send(n: int) -> None: ...

    app.queue("mail", shards=4)
    await app.enqueue_many(send.options(delay=3600).bind(n) for n in range(20))
    broker = await app.broker()
    assert isinstance(broker, MemoryBroker)
    broker.set_clock(time.time() + 7200)
    assert await app.inspector.due("mail") == 20
