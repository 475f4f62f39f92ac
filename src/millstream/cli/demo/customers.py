"""The customers: everything the demo enqueues."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

from millstream import Job
from millstream.cli.demo.shop import (
    Order,
    app,
    charge_card,
    confirm_order,
    remind_of_cart,
    render_invoice,
    resize_image,
    send_newsletter,
)

ORDERS = 48
ORDER_SECONDS = 0.1
"""Pause between two orders."""

READERS = 3_000
REMINDERS = 6
REMINDER_SECONDS = 5.0
"""Delay of the reminder of an abandoned cart."""

NAMES = ("ada", "barbara", "edsger", "grace", "ken", "leslie", "margaret", "niklaus", "radia", "tony")
COUNTRIES = ("France", "Germany", "Greece")
LOST_AT = 17
"""Number of the order from a country without a tax rate. Its invoice fails."""


class Customers:
    """Enqueues the jobs of the demo. ``accepted`` holds every job whose enqueue has returned."""

    def __init__(self) -> None:
        self.accepted: dict[str, Job[Any]] = {}
        self.doomed: set[str] = set()
        """The jobs that are expected to die."""
        self.cancelled: set[str] = set()
        """The jobs whose ``cancel()`` returned True."""

    async def come(self) -> None:
        """Enqueue everything, from the first newsletter to the last order."""
        self._add(await app.enqueue_many(send_newsletter.bind(f"reader{n}@example.com", "autumn") for n in range(READERS)))
        later = remind_of_cart.options(delay=REMINDER_SECONDS)
        reminders = await app.enqueue_many(later.bind(f"{name}@example.com") for name in NAMES[:REMINDERS])
        self._add(reminders)
        for number in range(1, ORDERS + 1):
            await self._order(number)
            if number == ORDERS // 3 and await reminders[0].cancel():
                self.cancelled.add(reminders[0].id)  # this customer came back and bought
            await asyncio.sleep(ORDER_SECONDS)

    async def _order(self, number: int) -> None:
        country = "Atlantis" if number == LOST_AT else COUNTRIES[number % len(COUNTRIES)]
        order = Order(number, f"{NAMES[number % len(NAMES)]}@example.com", country, Decimal(number * 7) + Decimal("0.90"))
        confirm, charge, large, small, invoice = await asyncio.gather(
            confirm_order.enqueue(order),
            charge_card.enqueue(order),
            resize_image.enqueue(number, 640),
            resize_image.enqueue(number, 160),
            render_invoice.enqueue(order),
        )
        self._add([confirm, charge, large, small, invoice])
        if number == LOST_AT:
            self.doomed.add(invoice.id)

    def _add(self, jobs: list[Any]) -> None:
        self.accepted.update((job.id, job) for job in jobs)
