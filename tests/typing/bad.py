"""Every line marked E must be a type error in every checker, and no other line may be one."""

from datetime import timedelta
from typing import Any

from use import Order, app, conf, either, in_order, invoice, mail, ordered, orders, resize, send_mail, ship

from millstream import Batch, DeadEvent, Delivery, Job, Millstream, Problem, RetryPolicy, Router
from millstream.logging import JobFilter


async def bad() -> None:
    await resize.enqueue("x")  # E wrong type
    await resize.enqueue()  # E missing argument
    await resize.enqueue(1, hight=3)  # E unknown argument
    await resize.enqueue(1, width="3")  # E wrong type by keyword
    resize.enqueue_sync("x")  # E the sync version has the same signature
    resize.bind()  # E missing argument
    resize.bind("x")  # E wrong type
    await resize("x")  # E calling a task has the signature of the function
    await send_mail("a")  # E a task of a plain function cannot be awaited
    await ship.enqueue(1)  # E not an Order
    await ship.enqueue(express=True)  # E missing positional argument
    resize.options(dely=3)  # E unknown option
    resize.options(priority=10)  # E not implemented yet
    resize.options(delay="3")  # E not seconds
    resize.options(at=3.0)  # E not a datetime
    resize.options(id=42)  # E not text
    resize.options(retry="5")  # E neither a policy nor a count
    resize.options(headers={"tenant": 1})  # E not text
    await invoice.enqueue("x")  # E wrong type, in a task of a router
    app.topic("t", int, retention_count=1.5)  # E not a count
    RetryPolicy(retry_timeouts="no")  # E not a bool
    Router(prefix=1)  # E not text
    app.include_router(app)  # E not a router
    Router("billing.")  # E keyword only
    Router(namespace="x")  # E no such option
    Router().include_router("billing")  # E not a router
    resize.options(id_ttl="1h")  # E not a duration
    resize.options(headers=["tenant"])  # E not a mapping
    await app.job(42).status()  # E not text
    await app.job("x", "mail").status()  # E keyword only
    RetryPolicy(delay="1 minute")  # E not a duration
    RetryPolicy(delays=timedelta(minutes=1))  # E not a sequence
    app.topic("t", int, retention="1h")  # E not a duration
    app.topic("t", Order | int, codec="xml")  # E no such codec
    await either.publish("text")  # E neither an order nor a number
    JobFilter().filter("text")  # E not a record
    resize.options(delay=1).enqueue(1, 2, 3)  # E too many arguments, and never awaited
    number: int = await (await resize.enqueue(1)).result()  # E the result is text
    text: str = (await conf.enqueue(1)).result_sync()  # E the result is a list
    resize.job(42)  # E not text
    resize.delay(1)  # E use enqueue
    await app.enqueue_many([resize])  # E a task is not a call
    await app.enqueue_many(resize.bind(1))  # E one call is not an iterable of calls
    jobs: list[Job[int]] = await app.enqueue_many([resize.bind(1)])  # E the jobs return text
    await app.dead.list(reason="bored")  # E no such reason
    await app.dead.replay(id="x")  # E no such argument
    await mail.pause("now")  # E takes no argument
    number, text, jobs  # marks the names as used


@either.subscribe("x")  # E handles only one of the types
async def wrong_union(event: Order) -> None: ...


@app.subscribe_prefix("eit", "x", type=Order | int)  # E handles only one of the types
async def wrong_prefixed_union(event: Order) -> None: ...


@app.on_error  # E does not take a Problem
async def wrong_async_observer(problem: int) -> None: ...


@app.task(id_ttl="1h")  # E not a duration
async def wrong_id_ttl() -> None: ...


@app.task(priority=10)  # E not implemented yet
async def wrong_option() -> None: ...


@app.task(retry="often")  # E neither a policy nor a count
async def wrong_retry() -> None: ...


@app.task(queue=3)  # E not text
def wrong_queue() -> None: ...


Millstream(middleware=[])  # E not implemented yet
Millstream("redis://localhost", "shop")  # E keyword only
RetryPolicy(3, 2.0)  # E keyword only
RetryPolicy(backoff="cubic")  # E no such backoff
app.queue("mail", limit=3)  # E not implemented yet
unknown: Any = app.schedule  # E not implemented yet


numbers = app.topic("numbers", int)


@orders.subscribe("x")  # E does not take an Order
async def wrong_event(order: int) -> None: ...


@orders.subscribe("x", batch=Batch(size=5, wait=1))  # E takes one Order, not a list
async def wrong_batch(order: Order) -> None: ...


@orders.subscribe("x", retries=3)  # E no such option
async def wrong_subscription(order: Order) -> None: ...


@app.subscribe_prefix("orders.", "x", type=Order)  # E does not take an Order
async def wrong_prefixed(order: int) -> None: ...


async def takes_int(number: int) -> None: ...


async def takes_order(order: Order) -> None: ...


async def consumers() -> None:
    await orders.consume("x", takes_int)  # E does not take an Order
    await orders.consume("x", takes_order, batch=Batch(5, wait=1))  # E takes one Order, not a list
    await orders.consume("x", takes_order, ack="never")  # E no such ack mode


@orders.on_dead("x")  # E takes the event, not its dead letter
async def wrong_letter(order: Order) -> None: ...


@orders.on_dead("x")  # E a dead letter of another type
async def wrong_dead_event(letter: DeadEvent[int]) -> None: ...


@orders.on_dead("x", retry="often")  # E neither a policy nor a count
async def wrong_dead_option(letter: DeadEvent[Order]) -> None: ...


@orders.subscribe("x", dead_letter=numbers)  # E a topic of another type
async def wrong_target(order: Order) -> None: ...


@orders.broadcast  # E does not take an Order
async def wrong_broadcast(order: int) -> None: ...


@orders.broadcast(concurrency=2)  # E does not take an Order
def wrong_wide_broadcast(order: str, delivery: Delivery) -> None: ...


@orders.broadcast(retry=3)  # E broadcasts have no retries
async def wrong_retried_broadcast(order: Order) -> None: ...


async def events() -> None:
    await orders.publish("no order")  # E not an Order
    await orders.publish(Order(1), prio=3)  # E no such option
    await orders.publish_many([1, 2])  # E not Orders


@app.on_error  # E does not take a Problem
def wrong_observer(problem: int) -> None: ...


@app.on_error  # E takes no argument
def deaf_observer() -> None: ...


def observe(problem: Problem) -> None:
    problem.streak = 2  # E frozen
    problem.during == "reading"  # E no such kind of problem


def no_key(order: Order) -> list[int]:
    return [order.n]


def of_text(text: str) -> str:
    return text


def no_key_of_call(customer: str) -> None: ...


app.topic("x", Order, order_by=no_key)  # E neither text, bytes nor a number
app.topic("x", Order, order_by=of_text)  # E does not take an Order
app.topic("x", Order, order_by=lambda order: order.name)  # E an Order has no name
app.topic("x", Order, order_by=lambda order: order.n, on_failure="halt")  # E no such on_failure
app.topic("x", Order, order_by=lambda order: order.n, shards="8")  # E not a number
app.queue("wide", consumers=3)  # E not a pair of numbers
app.queue("wide", consumers=(1, 2, 3))  # E not a pair of numbers


@app.task(order_by=no_key_of_call)  # E returns no key
async def unordered(customer: str) -> None: ...


@app.task(order_by=lambda customer: customer, on_failure="halt")  # E no such on_failure
async def halting(customer: str) -> None: ...


@ordered.subscribe("x", on_failure="halt")  # E no such on_failure
async def halting_group(order: Order) -> None: ...


async def order() -> None:
    await in_order.enqueue(7, 7)  # E the customer is text
    await ordered.group("x").clear(None)  # E not a key
    await ordered.group("x").clear("ann", False)  # E keyword only
    await ordered.reshard("8")  # E not a number
