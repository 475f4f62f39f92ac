"""Routers: declarations without an app, which apps include."""

from __future__ import annotations

import re
from typing import Any

import pytest

from millstream import DeadEvent, Delivery, Millstream, RetryPolicy, Router, current_job
from millstream.errors import BulkError, UsageError
from tests.stage import looped, new_app, until

PATIENCE = 30.0


def billing() -> tuple[Router, Any]:
    router = Router(prefix="billing.", queue="billing")

    @router.task
    async def invoice(order: int) -> str:
        return f"{current_job().task} {order} in {current_job().queue}"

    return router, invoice


@looped
async def test_a_task_of_a_router_has_the_prefix_and_queue_of_the_router() -> None:
    app = new_app()
    router, invoice = billing()

    @router.task(name="mail", queue="post")
    def send() -> str:
        return f"{current_job().task} in {current_job().queue}"

    app.include_router(router)
    assert (invoice.name, send.name) == ("billing.invoice", "billing.mail")
    assert sorted(app.tasks) == ["billing.invoice", "billing.mail"]
    assert sorted(app.queues) == ["billing", "post"]
    async with app, app.worker():
        assert await (await invoice.enqueue(7)).result(timeout=PATIENCE) == "billing.invoice 7 in billing"
        assert await (await app.tasks["billing.mail"].enqueue()).result(timeout=PATIENCE) == "billing.mail in post"


@looped
async def test_a_router_without_an_app_sends_nothing_but_its_functions_can_be_called() -> None:
    app = new_app()
    router = Router(prefix="billing.")
    numbers = router.topic("numbers", int)
    queue = router.queue("post", max_length=7)

    @router.task
    async def double(number: int) -> int:
        return 2 * number

    for what, send in (
        ("task 'billing.double'", lambda: double.enqueue(1)),
        ("task 'billing.double'", lambda: double.options(delay=1).enqueue(1)),
        ("topic 'numbers'", lambda: numbers.publish(1)),
        ("topic 'numbers'", lambda: numbers.publish_many([1])),
        ("topic 'numbers'", numbers.group("sums").pause),
        ("queue 'post'", queue.pause),
        ("task 'billing.double'", lambda: double.job("x").result(timeout=0)),
    ):
        text = f"{what} belongs to <router 'billing.'>, which no app includes: call app.include_router(router) first"
        with pytest.raises(UsageError, match=re.escape(text)):
            await send()
    with pytest.raises(BulkError, match="belongs to another app"):
        await app.enqueue_many([double.bind(1)])
    assert await double(21) == 42


@looped
async def test_options_and_calls_made_before_the_router_was_included_send_to_the_app() -> None:
    app = new_app()
    router, invoice = billing()
    soon, call = invoice.options(expires=60, headers={"a": "b"}), invoice.bind(1)
    sooner = soon.options(timeout=5)
    app.include_router(router)
    async with app, app.worker():
        jobs = [await soon.enqueue(2), await sooner.enqueue(3), await call.enqueue()]
        assert [(await job.result(timeout=PATIENCE)).split()[1] for job in jobs] == ["2", "3", "1"]
    assert sooner.settings == app.tasks["billing.invoice"].settings


@looped
async def test_every_app_has_its_own_tasks_and_a_router_sends_to_the_app_that_included_it_last() -> None:
    router, invoice = billing()
    first, second = new_app(retry=RetryPolicy(1)), new_app(retry=RetryPolicy(2))
    first.include_router(router)
    second.include_router(router)
    async with first, second:
        await invoice.enqueue(1)
        await first.tasks["billing.invoice"].enqueue(2)
        assert [(await app.inspector.queue("billing")).ready for app in (first, second)] == [1, 1]
    assert first.tasks["billing.invoice"].settings.retry == RetryPolicy(1)
    assert invoice.settings.retry == RetryPolicy(2)


@looped
async def test_handlers_of_the_topics_of_a_router_run_in_the_app() -> None:
    app = new_app(retry=RetryPolicy(0))
    router = Router(prefix="billing.")
    got: list[Any] = []
    numbers, bad = router.topic("numbers", int), router.topic("bad", int)

    @numbers.subscribe("sums", dead_letter=bad)
    async def add(number: int) -> None:
        if number < 0:
            raise ValueError("negative")
        got.append(number)

    @bad.subscribe("watch")
    async def watch(number: int, delivery: Delivery) -> None:
        got.append(("bad", number, delivery.headers["dead-topic"]))
        raise ValueError("again")

    @bad.on_dead("watch")
    async def handle_dead(letter: DeadEvent[int]) -> None:
        got.append(("dead", letter.event))

    @numbers.broadcast
    async def hear(number: int) -> None:
        got.append(("heard", number))

    @router.subscribe_prefix("num", "audit", type=int)
    async def audit(number: int) -> None:
        got.append(("audit", number))

    app.include_router(router)
    assert sorted(app.topics) == ["bad", "numbers"], "topic names get no prefix"
    async with app, app.worker():
        await numbers.publish_many([1, -1])
        wanted = {1, ("bad", -1, "numbers"), ("dead", -1), ("heard", 1), ("heard", -1), ("audit", 1), ("audit", -1)}
        await until(lambda: wanted <= set(got))
    assert len(got) == len(wanted)


@looped
async def test_routers_can_be_nested_and_later_declarations_reach_the_app() -> None:
    app = new_app()
    api = Router(prefix="api.", queue="api")
    router, invoice = billing()
    plain = Router()
    api.include_router(router)
    api.include_router(plain)
    app.include_router(api)

    @plain.task
    async def ping() -> str:
        return current_job().queue

    @router.task
    async def pay() -> None: ...

    assert sorted(app.tasks) == ["api.billing.invoice", "api.billing.pay", "api.ping"]
    async with app, app.worker():
        assert (await (await invoice.enqueue(1)).result(timeout=PATIENCE)) == "api.billing.invoice 1 in billing"
        assert (await (await ping.enqueue()).result(timeout=PATIENCE)) == "api"


def test_invalid_declarations_on_a_router_are_refused_immediately() -> None:
    router, _ = billing()
    numbers = router.topic("numbers", int)

    @numbers.subscribe("sums")
    async def add(number: int) -> None: ...

    with pytest.raises(UsageError, match="already has a handler"):
        numbers.subscribe("sums")(add)
    with pytest.raises(UsageError, match="timeout"):
        router.task(timeout=-1)(add)
    with pytest.raises(UsageError, match="prefix"):
        Router(prefix="a/b")
    outer = Router()
    outer.include_router(router)
    with pytest.raises(UsageError, match="include itself"):
        router.include_router(outer)
    with pytest.raises(UsageError, match="include itself"):
        router.include_router(router)
    app = Millstream("memory://")
    app.include_router(router)
    with pytest.raises(UsageError, match=r"this app already includes <router 'billing\.'>: include it once"):
        app.include_router(router)
    with pytest.raises(UsageError, match=r"<router> already includes <router 'billing\.'>: include it once"):
        outer.include_router(router)
    with pytest.raises(UsageError, match=r"task .billing\.invoice. is already declared"):
        app.include_router(billing()[0])
    for include in (app.include_router, router.include_router):
        with pytest.raises(UsageError, match=r"include_router\(\) takes a Router, not <millstream"):
            include(app)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_task_of_a_router_shows_the_queue_of_the_router_before_it_is_included() -> None:
    assert repr(billing()[1]) == "<task 'billing.invoice' in queue 'billing'>"


def test_a_router_keeps_no_app_alive() -> None:
    import gc
    import weakref

    router, _ = billing()
    app = Millstream("memory://")
    app.include_router(router)
    gone = weakref.ref(app)
    Millstream("memory://").include_router(router)
    del app
    gc.collect()
    assert gone() is None


def test_a_dead_letter_topic_of_another_router_must_be_included_first() -> None:
    letters, router = Router(), Router()
    bad = letters.topic("bad", int)

    @router.topic("numbers", int).subscribe("sums", dead_letter=bad)
    async def add(number: int) -> None: ...

    app = Millstream("memory://")
    with pytest.raises(UsageError, match=r"'sums'.*dead_letter=<topic 'bad'>, but this app does not declare that topic"):
        app.include_router(router)
    app = Millstream("memory://")
    app.include_router(letters)
    app.include_router(router)
    assert "sums" in app.topics["numbers"].dead_handlers
