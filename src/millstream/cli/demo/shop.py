"""The tasks of the demo's shop: an ordinary app, except that every run is written to the record."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from decimal import Decimal
from zlib import crc32

from millstream import Millstream, RetryPolicy, current_job
from millstream.cli.demo.record import on_record

app = Millstream(namespace="demo", lease=5.0, grace=5.0)

VAT = {"France": Decimal("0.20"), "Germany": Decimal("0.19"), "Greece": Decimal("0.24")}


@dataclass(frozen=True)
class Order:
    """An order of a customer."""

    number: int
    customer: str
    country: str
    total: Decimal


class GatewayDown(Exception):
    """The payment gateway did not answer."""


@app.task
async def confirm_order(order: Order) -> str:
    """A typical job: it succeeds at the first attempt."""
    with on_record():
        await asyncio.sleep(between(0.2, 0.6, order.number))
        return f"order {order.number} confirmed to {order.customer}"


@app.task(queue="payments", retry=RetryPolicy(5, delay=0.4, max_delay=2.0, on=(GatewayDown,)))
async def charge_card(order: Order) -> str:
    """Fail once for every third order and once more for every seventh, then succeed in a retry.

    A job runs again if its process dies. So the handler sends the job's id as an idempotency key, and the gateway can charge
    the card only once.
    """
    with on_record():
        job = current_job()
        await asyncio.sleep(between(0.1, 0.4, order.number))
        if job.attempt <= (order.number % 3 == 0) + (order.number % 7 == 0):
            raise GatewayDown(f"503 Service Unavailable (charge {job.id})")
        return f"{order.total} paid by {order.customer}"


@app.task(queue="images")
def resize_image(photo: int, width: int) -> int:
    """A sync task: it runs in a thread and may block."""
    with on_record():
        pixels = bytes((photo * x) & 255 for x in range(64 * 1024))
        time.sleep(between(0.4, 0.9, photo * width))
        return len(pixels[:: len(pixels) // width])


@app.task(queue="invoices", retry=RetryPolicy(2, delay=0.5))
def render_invoice(order: Order) -> str:
    """One customer's country has no tax rate: that invoice fails three times and becomes a dead letter."""
    with on_record():
        return f"invoice {order.number}: {order.total + tax(order)}"


def tax(order: Order) -> Decimal:
    """Return the VAT of an order. Raises KeyError if the country has no rate."""
    return (order.total * VAT[order.country]).quantize(Decimal("0.01"))


@app.task(queue="mail")
async def remind_of_cart(customer: str) -> str:
    """A job that is enqueued with a delay."""
    with on_record():
        await asyncio.sleep(0.1)
        return f"reminded {customer}"


@app.task(queue="mail")
async def send_newsletter(reader: str, issue: str) -> None:
    """A job that is enqueued in bulk."""
    with on_record():
        await asyncio.sleep(between(0.02, 0.12, crc32(reader.encode())))


def between(low: float, high: float, seed: int) -> float:
    """Return a duration in seconds, derived from ``seed`` and therefore the same in every demo."""
    return low + (high - low) * (crc32(seed.to_bytes(8, "big")) % 1000) / 1000
