"""Workers with wrong wall clocks: the server's time counts, so this has no effect."""

from __future__ import annotations

import time

from chaos.faults.processes import kill_worker
from chaos.history import Fault
from chaos.stage import Stage

HOUR = 3600.0


async def wrong_clocks(stage: Stage) -> None:
    """One worker's clock is an hour fast, another's an hour slow. Delays, retries and leases follow the server's time."""
    began = time.monotonic()
    await stage.progress()
    await kill_worker(stage)
    await stage.progress()
    stage.fault(Fault("wrong clocks", began, time.monotonic()))
