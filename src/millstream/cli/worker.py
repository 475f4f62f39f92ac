"""``millstream worker``: becomes the supervisor."""

from __future__ import annotations

import os
import sys

import msgspec

from millstream.config import discover_app
from millstream.worker.supervisor import Plan
from millstream.worker.wire import Orders


def start_worker(
    app: str | None, *, queues: list[str], concurrency: int, threads: int, processes: int, burst: bool, reload: bool
) -> None:
    """Replace this process by the supervisor, which needs nothing of the command line's libraries. Same pid, so signals and
    PID 1 work as expected."""
    orders = Orders(app=discover_app(app), queues=queues, concurrency=concurrency, threads=threads, burst=burst)
    plan = msgspec.json.encode(Plan(orders=orders, processes=processes, reload=reload)).decode()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "millstream.worker.supervisor", plan])
