"""Detects wedged children: their event loop has been blocked for longer than any of their jobs may run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection

from millstream.errors import WorkerCrashed
from millstream.reporting import logs
from millstream.reporting.reporter import Reporter
from millstream.worker.supervisor.children.child import Child
from millstream.worker.supervisor.relay import Relay

log = logs.logger("millstream.worker")

LOOK_SECONDS = 1.0


async def watch_for_wedged(children: Collection[Child], reporter: Reporter, relay: Relay) -> None:
    """Check the children periodically, log the stacks of a wedged child, and kill it."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for child in list(children):
            hello = child.hello
            if hello is None or not child.longest_timeout or child.silent <= child.longest_timeout + hello.grace:
                continue
            wedged = f"the event loop of worker process {child.pid} has been blocked for {child.silent:.0f} s"
            wedged += ", longer than any job may run"
            log.error("%s; logging its stacks and killing it", wedged)
            relay.dismiss(child)
            reporter.tell("handler", None, WorkerCrashed(wedged), crash=True)
            await child.dump_stacks()
            with contextlib.suppress(ProcessLookupError):
                child.process.kill()
            child.heard = time.monotonic()
