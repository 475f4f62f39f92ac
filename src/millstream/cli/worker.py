"""``millstream worker``: this process becomes the supervisor."""

from __future__ import annotations

import os
import re
import sys

import msgspec

from millstream.config import discover_app, discover_url
from millstream.errors import UsageError
from millstream.url import parse_url
from millstream.worker import roles
from millstream.worker.messages import Orders
from millstream.worker.scaling.spec import parse_processes, parse_spec
from millstream.worker.supervisor.plan import Plan

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(text: str) -> int:
    """Convert ``500MB``, ``1.5 GB`` or ``1GiB`` to bytes. Raises UsageError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?B)?", text.strip().upper())
    if found is None or not (size := round(float(found[1]) * _UNITS[found[2] or ""])):
        raise UsageError(f"--max-memory takes a size like 500MB or 1.5GB, not {text!r}")
    return size


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
    max_jobs: int = 0,
    max_memory: str | None = None,
) -> None:
    """Replace this process with the supervisor, which does not load the command-line libraries. The pid stays the same, so
    signals and running as PID 1 work as expected."""
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
        max_jobs=max_jobs,
        max_memory=0 if max_memory is None else parse_bytes(max_memory),
    )
    plan = Plan(orders=orders, processes=least, maximum=most, strategy=strategy, reload=reload)
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[roles.PLAN] = msgspec.json.encode(plan).decode()
    os.execv(sys.executable, roles.command(orders.app))
