"""An ordered topic of two shards, with a group whose events may begin only once."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from millstream import Millstream

try:
    from ledger import entry  # a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # the tests, which only publish

app = Millstream(**json.loads(os.environ.get("JOBS_SETTINGS", "{}")))
gates = app.topic("gates", str, order_by=lambda gate: gate, shards=2)


@gates.subscribe("once", max_crashes=0)
async def once(gate: str) -> None:
    """Runs until the gate, a file, is there."""
    with entry("once"):
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
