"""The app of the blocking measurement: a topic with one shard, and a handler that fails until the time its event names."""

from __future__ import annotations

import time

import msgspec

from contest import told
from millstream import Millstream, RetryPolicy
from millstream.model.address import Address

NAMESPACE = "limits"
TOPIC, GROUP = "orders", "workers"
ADDRESS = Address.of_group(TOPIC, GROUP)
RETRY_SECONDS = 0.02


class Order(msgspec.Struct, frozen=True):
    """An event of a key."""

    number: int
    key: str
    fails_until: float = 0.0


class NotYet(Exception):
    """Raised by the handler until that time."""


async def handle(order: Order) -> None:
    began = time.time()
    if began < order.fails_until:
        raise NotYet(order.key)
    told.starts[order.number] = began
    told.marks[order.number] += 1


def make_app(url: str) -> Millstream:
    app = Millstream(url, namespace=NAMESPACE)
    retry = RetryPolicy(1_000, delay=RETRY_SECONDS, backoff="fixed", jitter=False)
    app.topic(TOPIC, Order, order_by=lambda order: order.key, shards=1).subscribe(GROUP, retry=retry)(handle)
    return app


app = make_app(told.URL)
