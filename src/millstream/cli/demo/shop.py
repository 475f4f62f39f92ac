"""The tasks of the demo's shop: an app as any other, except that every run is put on record."""

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
    """What a customer bought."""

    number: int
    customer: str
    country: str
    total: Decimal


class GatewayDown(Exception):
    """The payment gateway did not answer."""


@app.task
async def confirm_order(order: Order) -> str:
    """Most jobs are like this one: they simply work."""
    with on_record():
        await asyncio.sleep(between(0.2, 0.6, order.number))
        return f"order {order.number} confirmed to {order.customer}"


@app.task(queue="payments", retry=RetryPolicy(5, delay=0.4, max_delay=2.0, on=(GatewayDown,)))
async def charge_card(order: Order) -> str:
    """Fails once for every third order and twice for every seventh, and is tried again.

    A job whose process dies runs again, so a handler with effects outside says who it is: the gateway knows the job's id.
    """
    with on_record():
        job = current_job()
        await asyncio.sleep(between(0.1, 0.4, order.number))
        if job.attempt <= (order.number % 3 == 0) + (order.number % 7 == 0):
            raise GatewayDown(f"503 Service Unavailable (charge {job.id})")
        return f"{order.total} paid by {order.customer}"


@app.task(queue="images")
def resize_image(photo: int, width: int) -> int:
    """A plain function: it runs in a thread and may block."""
    with on_record():
        pixels = bytes((photo * x) & 255 for x in range(64 * 1024))
        time.sleep(between(0.4, 0.9, photo * width))
        return len(pixels[:: len(pixels) // width])


@app.task(queue="invoices", retry=RetryPolicy(2, delay=0.5))
def render_invoice(order: Order) -> str:
    """One customer lives where nobody knows the tax: that invoice fails three times and is dead."""
    with on_record():
        return f"invoice {order.number}: {order.total + tax(order)}"


def tax(order: Order) -> Decimal:
    """What the state gets."""
    return (order.total * VAT[order.country]).quantize(Decimal("0.01"))


@app.task(queue="mail")
async def remind_of_cart(customer: str) -> str:
    """Sent with a delay."""
    with on_record():
        await asyncio.sleep(0.1)
        return f"reminded {customer}"


@app.task(queue="mail")
async def send_newsletter(reader: str, issue: str) -> None:
    """Sent in bulk."""
    with on_record():
        await asyncio.sleep(between(0.02, 0.12, crc32(reader.encode())))


def between(low: float, high: float, seed: int) -> float:
    """A duration in seconds, the same in every run of the demo."""
    return low + (high - low) * (crc32(seed.to_bytes(8, "big")) % 1000) / 1000
