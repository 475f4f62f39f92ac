"""app.subscribe_prefix: one handler for every topic whose name has a prefix, including topics found while workers run."""

from __future__ import annotations

import secrets
from typing import Any, cast

import pytest

from millstream import Batch, Delivery, Millstream
from millstream.errors import UsageError
from millstream.worker.services import discovery
from tests.stage import looped, new_app, place, until

pytestmark = pytest.mark.usefixtures("every_backend")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "DISCOVER_SECONDS", 0.02)


def audited(app: Millstream, seen: list[tuple[str, int]]) -> None:
    @app.subscribe_prefix("orders.", "audit", type=int)
    async def audit(number: int, delivery: Delivery) -> None:
        assert delivery.group == "audit"
        seen.append((delivery.topic, number))


@looped
async def test_a_prefix_handler_receives_every_matching_topic_including_later_ones() -> None:
    app = new_app()
    seen: list[tuple[str, int]] = []
    audited(app, seen)
    async with app:
        await app.topic("orders.eu", int).publish(1)
        await app.topic("invoices", int).publish(2)
        async with app.worker():
            await until(lambda: seen == [("orders.eu", 1)])
            await app.topic("orders.us", int).publish(3)
            await until(lambda: len(seen) == 2)
            await app.topic("orders.eu", int).publish(4)
            await until(lambda: len(seen) == 3)
    assert sorted(seen) == [("orders.eu", 1), ("orders.eu", 4), ("orders.us", 3)]


@looped
async def test_events_published_to_a_new_topic_before_it_is_discovered_are_kept() -> None:
    name = secrets.token_hex(6)
    url = f"memory://{name}" if place.url == "memory://" else place.url  # a backend that two apps can share
    app, other = Millstream(url, namespace=name), Millstream(url, namespace=name)
    seen: list[tuple[str, int]] = []
    done: list[int] = []
    audited(app, seen)
    topic = other.topic("orders.eu", int)

    @topic.subscribe("quick")
    async def quick(number: int) -> None:
        done.append(number)

    async with app, other:
        await app.broker()  # declares the group; no worker serves it yet
        await topic.publish_many(list(range(20)))
        async with other.worker():
            await until(lambda: len(done) == 20)
        async with app.worker():
            await until(lambda: len(seen) == 20)
    assert sorted(seen) == [("orders.eu", n) for n in range(20)]


@looped
async def test_a_topic_with_its_own_handler_for_the_group_is_not_served_by_the_prefix_handler() -> None:
    app = new_app()
    seen: list[tuple[str, int]] = []
    own: list[int] = []
    audited(app, seen)
    topic = app.topic("orders.eu", int)

    @topic.subscribe("audit")
    async def mine(number: int) -> None:
        own.append(number)

    async with app:
        await topic.publish(1)
        await app.topic("orders.us", int).publish(2)
        async with app.worker():
            await until(lambda: len(own) + len(seen) == 2)
    assert (own, seen) == ([1], [("orders.us", 2)])


@looped
async def test_a_topics_own_handler_uses_its_own_start_instead_of_the_start_of_the_prefix() -> None:
    name = secrets.token_hex(6)
    url = f"memory://{name}" if place.url == "memory://" else place.url  # a backend that two apps can share
    app, other = Millstream(url, namespace=name), Millstream(url, namespace=name)
    audited(app, [])

    @app.topic("orders.eu", int).subscribe("audit", start="new")
    async def mine(number: int) -> None: ...

    async with app, other:
        for topic in ("orders.eu", "orders.us"):
            await other.topic(topic, int).publish(1)
        await app.broker()
        lags = [group.lag for topic in ("orders.eu", "orders.us") for group in (await app.inspector.topic(topic)).groups]
        assert lags == [0, 1]


@looped
async def test_a_worker_may_serve_only_the_prefix_or_only_one_of_its_groups() -> None:
    app = new_app()
    seen: list[tuple[str, int]] = []
    audited(app, seen)

    @app.task
    async def idle() -> None: ...

    async with app:
        await app.topic("orders.eu", int).publish(1)
        await app.topic("orders.us", int).publish(2)
        async with app.worker(["orders.us/audit"]):
            await until(lambda: seen == [("orders.us", 2)])
        async with app.worker(["orders.*/audit"]):
            await until(lambda: len(seen) == 2)
        with pytest.raises(UsageError, match="does not declare 'invoices/audit'"):
            async with app.worker(["invoices/audit"]):
                raise AssertionError("the worker started")


@looped
async def test_a_batch_of_a_prefix_handler_contains_events_of_one_topic() -> None:
    app = new_app()
    batches: list[tuple[set[str], list[int]]] = []

    @app.subscribe_prefix("orders.", "audit", type=int, batch=Batch(10, wait=0.1))
    async def audit(numbers: list[int], deliveries: list[Delivery]) -> None:
        batches.append(({delivery.topic for delivery in deliveries}, numbers))

    async with app:
        for topic in ("orders.eu", "orders.us"):
            await app.topic(topic, int).publish_many(list(range(10)))
        async with app.worker():
            await until(lambda: sum(len(numbers) for _, numbers in batches) == 20)
    assert all(len(topics) == 1 for topics, _ in batches)


@looped
async def test_a_prefix_group_can_be_removed() -> None:
    app = new_app()
    audited(app, [])
    async with app:
        await app.topic("orders.eu", int).publish(1)
        await app.remove_prefix("orders.", "audit")
        assert (await app.inspector.topic("orders.eu")).groups == []
        with pytest.raises(UsageError, match="'audit'"):
            await app.remove_prefix("orders.", "audit")


@looped
async def test_only_a_declared_prefix_group_can_be_removed_and_its_name_is_checked() -> None:
    app = new_app()
    topic = app.topic("orders.eu", int)

    @topic.subscribe("audit")
    async def mine(number: int) -> None: ...

    async with app:
        await topic.publish(1)
        with pytest.raises(UsageError, match=r"no group 'audit' with the prefix 'orders\.'"):
            await app.remove_prefix("orders.", "audit")
        assert [(group.name, group.ready) for group in (await app.inspector.topic("orders.eu")).groups] == [("audit", 1)]
        for prefix, group in (("", "audit"), ("orders/", "audit"), ("orders>", "audit"), ("orders.", ""), ("orders.", "a/b")):
            with pytest.raises(UsageError, match=r"must be non-blank text|may not contain"):
                await app.remove_prefix(prefix, group)


def test_invalid_prefix_declarations_are_refused_immediately() -> None:
    app = new_app()
    audited(app, [])
    with pytest.raises(UsageError, match="already has a handler"):
        audited(app, [])
    for overlapping in ("ord", "orders.eu."):
        with pytest.raises(UsageError, match=r"already has a handler for the prefix 'orders\.'"):
            app.subscribe_prefix(overlapping, "audit", type=int)(lambda number: None)
    app.subscribe_prefix("orders.eu.", "other", type=int)(lambda number: None)
    with pytest.raises(UsageError, match="prefix"):
        app.subscribe_prefix("", "audit", type=int)
    with pytest.raises(UsageError, match=r"prefix may not contain '\*'"):
        app.subscribe_prefix("orders.*", "audit", type=int)
    with pytest.raises(UsageError, match=r"topic may not contain '\*'"):
        app.topic("orders.*", int)
    with pytest.raises(UsageError, match="no option colour="):
        cast(Any, app).subscribe_prefix("x", "audit", type=int, colour=1)(print)
