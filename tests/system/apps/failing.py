"""An app whose lifespan fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from millstream import Millstream


@asynccontextmanager
async def lifespan(app: Millstream) -> AsyncGenerator[None]:
    raise RuntimeError("the database is not there")
    yield


app = Millstream(lifespan=lifespan)


@app.task
async def note(key: str) -> None:
    pass
