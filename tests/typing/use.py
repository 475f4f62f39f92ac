"""Uses of the public API that mypy --strict and pyright strict must accept. Checked, never run."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import assert_type

from msgspec import Struct

from millstream import (
    AsyncTask,
    Batch,
    Call,
    Consumer,
    DeadEvent,
    DeadJob,
    Delivery,
    Job,
    JobInfo,
    Millstream,
    Problem,
    Queue,
    Reject,
    Retry,
    RetryPolicy,
    Router,
    Snooze,
    SyncTask,
    Topic,
    Why,
    current_job,
)
from millstream.broker import StoppedKey
from millstream.errors import BulkError, JobFailed, JobNotFound
from millstream.logging import JobFilter
from millstream.model.types import Status


@asynccontextmanager
async def lifespan(app: Millstream) -> AsyncGenerator[dict[str, int]]:
    yield {"answer": 42}


app = Millstream()
shop = Millstream(
    "redis://localhost:6379/0",
    namespace="shop",
    include=["shop.tasks"],
    lifespan=lifespan,
    lease=timedelta(seconds=30),
    max_crashes=3,
    grace=25.0,
    timeout=None,
    retry=5,
    result_ttl=600,
    id_ttl=86_400,
    unknown_task_grace=600.0,
    max_payload_bytes=1 << 20,
)
mail = app.queue("mail", max_length=100_000)
assert_type(mail, Queue)


@dataclass
class Order:
    n: int


@app.task
async def resize(image_id: int, width: int = 800) -> str:
    return ""


@app.task
def send_mail(to: str) -> None: ...


@app.task(queue="mail", retry=5, timeout=30)
async def conf(x: int) -> list[int]:
    return []


@app.task(
    name="conf",
    aliases=("old",),
    queue="mail",
    timeout=timedelta(minutes=1),
    result_ttl=0,
    expires=60,
    max_crashes=0,
    retry=RetryPolicy(8, delay=2.0, backoff="linear", max_delay=600.0, jitter=True, on=(OSError,), never_on=(KeyError,)),
    max_payload_bytes=None,
)
def conf_sync(x: int) -> bytes:
    return b""


@app.task
async def ship(order: Order, *, express: bool = False) -> Order:
    raise Retry(delay=1.0) if express else Snooze(timedelta(hours=1))


@app.task
async def anything(*args: object, **kwargs: object) -> None:
    raise Reject("no")


assert_type(anything.name, str)
as_function: Callable[[str], None] = send_mail
as_task: SyncTask[[str], None] = send_mail
as_async_task: AsyncTask[..., str] = resize


async def main() -> None:
    assert_type(await resize(42), str)
    assert_type(send_mail("a"), None)
    assert_type(await resize.enqueue(42, width=100), Job[str])
    assert_type(await (await resize.enqueue(42)).result(timeout=10), str)
    assert_type(await resize.options(delay=30, id="x").enqueue(42), Job[str])
    assert_type(await resize.options(at=datetime.now(UTC), queue="mail", retry=1, timeout=None).enqueue(42), Job[str])
    assert_type(
        await resize.options(expires=timedelta(1), result_ttl=0, retry=resize.retry.replace(delay=1.0)).enqueue(1), Job[str]
    )
    assert_type(resize.options(delay=1)(1, width=2).close(), None)
    assert_type(send_mail.options(delay=1)("a"), None)
    assert_type(resize.bind(1), Call[str])
    assert_type(await resize.bind(1).enqueue(), Job[str])
    assert_type(await app.enqueue_many(resize.bind(i) for i in range(10)), list[Job[str]])
    assert_type(await app.enqueue_many([resize.bind(1)], return_exceptions=True), list[Job[str] | Exception])
    assert_type(send_mail.enqueue_sync("a@b.c").result_sync(), None)
    assert_type(resize.enqueue_sync(1, width=2).result_sync(timeout=timedelta(seconds=1)), str)
    assert_type(app.enqueue_many_sync([conf_sync.bind(1)]), list[Job[bytes]])
    assert_type(app.enqueue_many_sync([conf_sync.bind(1)], return_exceptions=True), list[Job[bytes] | Exception])
    assert_type(await conf.enqueue(1), Job[list[int]])
    assert_type(conf_sync(1), bytes)
    assert_type(resize.job("id"), Job[str])
    assert_type(await ship.enqueue(Order(1), express=True), Job[Order])

    mixed = await app.enqueue_many([resize.bind(1), conf.bind(2)])
    assert_type(mixed[0].id, str)
    anyone: Job[object] = await resize.enqueue(1)
    assert_type(anyone.created, bool)
    assert_type(await anyone.cancel(), bool)
    await anyone.status()
    anyone.status_sync()
    await app.job("id", queue="mail").result()
    info = await app.job("id").info()
    assert_type(info, JobInfo)
    assert_type(info.why, Why)
    assert_type(anyone.info_sync().last_error, str | None)
    assert_type(await app.inspector.why("mail", "id"), Why)

    await mail.pause()
    mail.resume_sync()
    assert_type(await app.dead.list(queue="mail", reason="exhausted", task="conf", limit=10), list[DeadJob])
    assert_type(await app.dead.show("id"), DeadJob | None)
    assert_type(await app.dead.replay("id", queue="mail"), list[str])
    assert_type(app.dead.purge_sync(["a", "b"]), list[str])
    assert_type(await app.inspector.queues(), list[str])

    async with app as same:
        assert_type(same, Millstream)
    with app.override("memory://"):
        pass
    try:
        await resize.enqueue(1)
    except BulkError as error:
        assert_type(error.failed, dict[int, BaseException])
    except JobFailed as error:
        assert_type(error.traceback, str)


def plain(number: int) -> float:
    return float(number)


assert_type(app.task(name="other")(plain)(1), float)


orders = app.topic("orders", Order, max_length=1000, retention=3600.0)
kept = app.topic("kept", Order, retention=timedelta(days=1), retention_count=1000)

either = app.topic("either", Order | int)
assert_type(either, Topic[Order | int])


@either.subscribe("all")
async def take_either(event: Order | int) -> None: ...


@either.subscribe("lists", batch=Batch(5, wait=1))
async def take_lists(events: list[Order | int]) -> None: ...


@app.subscribe_prefix("eit", "audit", type=Order | int)
async def audit_either(event: Order | int, delivery: Delivery) -> None: ...


@app.subscribe_prefix("eit", "archive", type=Order | int, batch=Batch(5, wait=1))
async def archive_either(events: list[Order | int]) -> None: ...


class Opened(Struct, tag=True):
    order: int


class Closed(Struct, tag=True):
    order: int


doors = app.topic("doors", Opened | Closed, codec="json", start="new")
assert_type(doors, Topic[Opened | Closed])


@doors.on_dead("all")
async def dead_door(letter: DeadEvent[Opened | Closed]) -> None:
    assert_type(letter.event, Opened | Closed)


@app.task(id_ttl=0)
async def once(order: int) -> None: ...


@app.task(id_ttl=timedelta(hours=1), retry=RetryPolicy(retry_timeouts=False, max_delay=timedelta(minutes=5)))
def once_an_hour(order: int) -> int:
    return order


async def use_ids() -> None:
    assert_type(await once.options(id="order-1", id_ttl=timedelta(days=7)).enqueue(1), Job[None])
    found = app.job("order-1")
    assert_type(found.queue, str)
    assert_type(await found.status(), Status)
    assert_type(await found.cancel(), bool)
    assert_type(found.info_sync(), JobInfo)
    try:
        await found.result(timeout=timedelta(seconds=1))
    except JobNotFound as error:
        assert_type(error.job_id, str)


def create_app() -> Millstream:
    made = Millstream(namespace="shop")
    made.include_router(billing)
    return made


handler = logging.StreamHandler()
handler.addFilter(JobFilter())


async def serve() -> None:
    async with app.worker(["mail", "orders/billing", "orders/"]):
        assert_type(await app.dead.list(queue="orders/billing"), list[DeadJob])
    assert_type(app.group("orders", "billing").topic, str)


billing = Router(prefix="billing.", queue="billing")
app.include_router(billing)
Router().include_router(billing)
bills = billing.topic("bills", Order)
assert_type(bills, Topic[Order])
assert_type(billing.queue("post", shards=4), Queue)


@billing.task
async def invoice(order: int) -> str:
    return ""


@billing.task(retry=RetryPolicy(3, delay=timedelta(seconds=1), delays=[1, timedelta(minutes=1)], retry_timeouts=False))
def remind(order: int) -> int:
    assert_type(current_job().headers["tenant"], str)
    return order


invoicing: AsyncTask[[int], str] = invoice
reminding: SyncTask[[int], int] = remind


@bills.subscribe("ledger")
async def enter(order: Order, delivery: Delivery) -> None: ...


@billing.subscribe_prefix("bill", "audit", type=Order)
async def audit_bill(order: Order) -> None: ...


async def use_router() -> None:
    job = await invoice.options(headers={"tenant": "a"}, id="i-1").enqueue(1)
    assert_type(await job.result(), str)
    assert_type((await job.info()).headers["tenant"], str)


assert_type(orders, Topic[Order])


@orders.subscribe("billing", concurrency=20, retry=5, timeout=60, ack="on_success")
async def bill(order: Order, delivery: Delivery) -> None:
    assert_type(delivery.attempt, int)
    delivery.nack("spoilt")


@orders.subscribe("mail")
async def mail_order(order: Order) -> None: ...


@orders.subscribe("sync")
def sync_order(order: Order, delivery: Delivery) -> None: ...


@orders.subscribe("warehouse", batch=Batch(size=500, wait=0.25))
async def stock(together: list[Order]) -> None: ...


@orders.subscribe("warehouse2", batch=Batch(500, wait=0.25))
async def stock_carefully(together: list[Order], deliveries: list[Delivery]) -> None:
    deliveries[0].retry(1)


@orders.subscribe("kept", ack="manual", start="new")
async def keep(order: Order, delivery: Delivery) -> None:
    await delivery.settled()


@app.subscribe_prefix("orders.", "audit", type=Order, codec="fields", start=datetime.now(UTC))
async def audit(order: Order, delivery: Delivery) -> None: ...


@app.subscribe_prefix("orders.", "archive", type=Order, batch=Batch(10, wait=1))
def archive(together: list[Order]) -> None: ...


async def consumers() -> None:
    consumer = await orders.consume("billing", bill, concurrency=2)
    assert_type(consumer, Consumer)
    assert_type(consumer.running, bool)
    await consumer.close(5)
    async with await orders.consume("warehouse", stock, batch=Batch(5, wait=1)) as other:
        assert_type(other, Consumer)
        await other.abort()


@orders.on_dead("billing", concurrency=2, timeout=None, retry=RetryPolicy(8, delay=2.0))
async def sorry(letter: DeadEvent[Order]) -> None:
    assert_type(letter.event, Order)
    assert_type(letter.headers["tenant"], str)
    assert_type(letter.published_at, datetime | None)
    assert_type(await letter.replay(), bool)
    job: DeadJob = letter
    assert_type(job.id, str)
    if job.unhandled is not None:
        assert_type(job.unhandled.error, str)


@orders.on_dead("mail", retry=3)
def sorry_sync(letter: DeadEvent[Order]) -> None:
    assert_type(letter.replay_sync(), bool)


spoilt = app.topic("spoilt", Order)


@orders.subscribe("moved", dead_letter=spoilt, keep_expired=True)
async def moved(order: Order) -> None: ...


@orders.broadcast
async def refresh(order: Order) -> None: ...


@orders.broadcast
def refresh_carefully(order: Order, delivery: Delivery) -> None:
    assert_type(delivery.missed, int)


@orders.broadcast(concurrency=4, timeout=None, max_payload_bytes=1000)
async def refresh_quickly(order: Order, delivery: Delivery) -> None: ...


async def events() -> None:
    assert_type(await orders.publish(Order(1), id="o-1", delay=1, headers={"tenant": "acme"}), str)
    assert_type(orders.publish_sync(Order(1)), str)
    assert_type(await orders.publish_many([Order(1), orders.bind(Order(2), key="ann")]), list[str])
    assert_type(await orders.publish_many([Order(1)], return_exceptions=True), list[str | Exception])
    group = orders.group("billing")
    await group.pause()
    await group.rewind(datetime.now(UTC))
    await group.skip()
    group.remove_sync()
    assert_type(await group.dead.replay("id"), list[str])


@app.on_error
def observe(problem: Problem) -> None:
    if problem.streak == 1 and problem.during in ("read", "settle"):
        assert_type(problem.error, BaseException)
        assert_type(problem.crash, bool)
        assert_type(problem.missed, int)
    assert_type(problem.queue, str | None)
    assert_type(problem.topic, str | None)
    assert_type(problem.group, str | None)
    assert_type(problem.attempt, int | None)
    assert_type(problem.at, datetime)


problems: list[Problem] = []
app.on_error(problems.append)


@app.on_error
async def late_observer(problem: Problem) -> None: ...


observe(problems[0])


# -- order per key ---------------------------------------------------------------------------------------------------------


def by_number(order: Order) -> int:
    return order.n


ordered = app.topic("ordered", Order, order_by=lambda order: str(order.n), shards=16, on_failure="stop", max_pending_per_key=10)
assert_type(ordered, Topic[Order])
assert_type(app.topic("numbered", Order, order_by=by_number), Topic[Order])
assert_type(app.queue("wide", shards=8, consumers=(1, 4)), Queue)


@ordered.subscribe("billing", on_failure="skip", max_pending_per_key=5, consumers=(1, 2))
async def bill_in_order(order: Order, delivery: Delivery) -> None: ...


@app.task(queue="wide", order_by=lambda customer, **_: customer, on_failure="stop", max_pending_per_key=10)
async def in_order(customer: str, amount: int) -> int:
    return amount


def by_customer(customer: str, amount: int) -> bytes:
    return customer.encode()


@app.task(order_by=by_customer)
def named_order(customer: str, amount: int) -> None: ...


async def look_after_order() -> None:
    group, wide = ordered.group("billing"), app.queue("wide", shards=8)
    assert_type(await in_order.enqueue("ann", amount=7), Job[int])
    assert_type(await group.stopped_keys(), list[StoppedKey])
    assert_type(await group.clear("ann", replay=True), int)
    assert_type(await wide.clear(7), int)
    assert_type(wide.clear_sync(b"x", replay=False), int)
    assert_type(wide.stopped_keys_sync()[0].key, bytes)
    await ordered.reshard(32)
    ordered.reshard_sync(32)
    await wide.reshard(0)
    assert_type(ordered.streams[0], str)
    assert_type((await app.dead.list())[0].order_key, bytes | None)
