"""An app whose lifespan takes its time: SLOW says where, ``start`` or ``end``. It ends when it is told to, or never."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream import Millstream

try:
    from ledger import entry  # a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # the tests, which only enqueue


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
    """Runs until the gate, a file, is there."""
    with entry(key):
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
