"""``millstream worker``: becomes the supervisor."""

from __future__ import annotations

import os
import sys

import msgspec

from millstream.config import discover_app, discover_url, parse_url
from millstream.worker import roles
from millstream.worker.messages import Orders
from millstream.worker.scaling.spec import parse_processes, parse_spec
from millstream.worker.supervisor.plan import Plan


def start_worker(
    app: str | None,
    *,
    queues: list[str],
    concurrency: int,
    threads: int,
    processes: str,
    strategy: str,
    burst: bool,
    reload: bool,
    url: str | None = None,
    grace: float | None = None,
    log_level: str = "info",
    factory: bool = False,
) -> None:
    """Replace this process by the supervisor, which needs nothing of the command line's libraries. Same pid, so signals and
    PID 1 work as expected."""
    least, most = parse_processes(processes)
    orders = Orders(
        app=discover_app(app),
        queues=queues,
        concurrency=concurrency,
        threads=threads,
        burst=burst,
        strategy=parse_spec(strategy).own,
        url="" if url is None else parse_url(discover_url(url)).text,
        grace=grace,
        log_level=log_level,
        factory=factory,
    )
    plan = Plan(orders=orders, processes=least, maximum=most, strategy=strategy, reload=reload)
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[roles.PLAN] = msgspec.json.encode(plan).decode()
    os.execv(sys.executable, roles.command(orders.app))
