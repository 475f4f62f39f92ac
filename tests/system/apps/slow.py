"""An app with a slow lifespan. SLOW says which part is slow: ``start`` or ``end``. Only cancellation ends the slow part."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream import Millstream

try:
    from ledger import entry  # in a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # in the tests, which only enqueue


async def take_time(where: str) -> None:
    if os.environ.get("SLOW") == where:
        print(f"slow to {where}", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print(f"left at the {where}", flush=True)


@asynccontextmanager
async def lifespan(app: Millstream) -> AsyncGenerator[None]:
    await take_time("start")
    yield
    await take_time("end")


app = Millstream(lifespan=lifespan, **json.loads(os.environ.get("JOBS_SETTINGS", "{}")))


@app.task
async def hold(key: str, gate: str) -> None:
    """Run until the gate (a file) exists."""
    with entry(key):
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
