"""A topic with a broadcast: each process records every event it receives, and how many events it missed before it."""

from __future__ import annotations

import json
import os

from millstream import Delivery, Millstream

try:
    from ledger import entry  # in a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # in the tests, which only publish

app = Millstream(**json.loads(os.environ.get("JOBS_SETTINGS", "{}")))
prices = app.topic("prices", int, max_length=1000)


@prices.broadcast(concurrency=1)
def refresh(price: int, delivery: Delivery) -> None:
    with entry(f"{price}/{delivery.missed}"):
        pass
