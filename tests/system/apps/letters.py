"""Topics whose events all die. Some groups handle their dead letters; one moves them to another topic."""

from __future__ import annotations

import asyncio
import json
import os

from millstream import DeadEvent, Delivery, Millstream, Reject, RetryPolicy

try:
    from ledger import entry  # in a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # in the tests, which only publish

app = Millstream(retry=RetryPolicy(0), **json.loads(os.environ.get("JOBS_SETTINGS", "{}")))
gates = app.topic("gates", str)
numbers = app.topic("numbers", int)
spoilt = app.topic("spoilt", int)


@gates.subscribe("fails")
async def fails(gate: str) -> None:
    raise Reject("as always")


@gates.on_dead("fails")
async def handle(letter: DeadEvent[str]) -> None:
    """Return once the file named by the event exists."""
    with entry(f"letter-{letter.id}"):
        while not os.path.exists(letter.event):
            await asyncio.sleep(0.01)


@gates.subscribe("tries")
async def tries(gate: str) -> None:
    raise Reject("as always")


@gates.on_dead("tries", retry=RetryPolicy(2, delay=3600))
async def handle_later(letter: DeadEvent[str]) -> None:
    """Fail until the file named by the event exists."""
    with entry(f"try-{letter.id}"):
        if not os.path.exists(letter.event):
            raise FileNotFoundError(letter.event)


@numbers.subscribe("fails", dead_letter=spoilt)
async def fails_too(number: int) -> None:
    raise Reject("as always")


@spoilt.subscribe("all")
async def collect(number: int, delivery: Delivery) -> None:
    with entry(f"spoilt-{number}"):
        await asyncio.sleep(0)
