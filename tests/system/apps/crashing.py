"""An app whose processes die immediately, and which records how often they were started.

CRASHING says when they die: ``import`` or ``serve``. They do not die while the file named by CRASHING_UNLESS exists."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream import Millstream

STARTS = Path(os.environ["LEDGER"] + ".starts")


def die_if(moment: str) -> None:
    if os.environ.get("CRASHING") == moment and not Path(os.environ.get("CRASHING_UNLESS", "/nothing")).exists():
        os._exit(9)


with STARTS.open("a") as file:
    file.write(f"{os.getpid()}\n")
die_if("import")


async def die_soon() -> None:
    await asyncio.sleep(0.2)
    die_if("serve")


@asynccontextmanager
async def lifespan(app: Millstream) -> AsyncGenerator[None]:
    dying = asyncio.create_task(die_soon())
    yield
    dying.cancel()


app = Millstream(lifespan=lifespan)


@app.task
async def note(key: str) -> None:
    pass
