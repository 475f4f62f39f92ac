"""An ordered topic of two shards, with a group whose events run at most once."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from millstream import Millstream

try:
    from ledger import entry  # in a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # in the tests, which only publish

app = Millstream(**json.loads(os.environ.get("JOBS_SETTINGS", "{}")))
gates = app.topic("gates", str, order_by=lambda gate: gate, shards=2)


@gates.subscribe("once", max_crashes=0)
async def once(gate: str) -> None:
    """Run until the gate (a file) exists."""
    with entry("once"):
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
