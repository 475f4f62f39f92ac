"""The ledger: handlers write a line when they start and a line when they end, so that tests can count runs from outside."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millstream import current_job


@contextmanager
def entry(key: str) -> Iterator[None]:
    """Write a ``start`` line, then an ``end`` line, or ``broken`` if the handler was stopped or raised."""
    record("start", key)
    try:
        yield
    except BaseException:
        record("broken", key)
        raise
    record("end", key)


def record(what: str, key: str) -> None:
    """Write one line in one call, so that lines of several processes never mix."""
    job = current_job()
    line = json.dumps([what, key, job.id, os.getpid(), job.attempt, job.crashes, time.monotonic()])
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)
