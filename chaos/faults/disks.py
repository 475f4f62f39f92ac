"""A full disk under the embedded server's folder."""

from __future__ import annotations

import asyncio
import time

from chaos.history import Fault
from chaos.server import EmbeddedServer
from chaos.stage import Stage


async def fill_disk(stage: Stage) -> None:
    """The server cannot write its append-only file and refuses writes (MISCONF), until the disk has space again."""
    assert isinstance(stage.server, EmbeddedServer)
    began = time.monotonic()
    with stage.server.disk_full():
        await asyncio.sleep(stage.scale.outage)
    stage.fault(Fault("full disk", began, time.monotonic(), away=True))
    stage.notes.append(f"the server answered MISCONF {stage.server.refusals('MISCONF')} times")
