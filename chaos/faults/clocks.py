"""Workers whose wall clocks are wrong: the server's time decides, so nothing may come of it."""

from __future__ import annotations

import time

from chaos.faults.processes import kill_worker
from chaos.history import Fault
from chaos.stage import Stage

HOUR = 3600.0


async def wrong_clocks(stage: Stage) -> None:
    """One is an hour ahead, one an hour behind; delays, retries and the lease of a killed worker keep the server's time."""
    began = time.monotonic()
    await stage.progress()
    await kill_worker(stage)
    await stage.progress()
    stage.fault(Fault("wrong clocks", began, time.monotonic()))
