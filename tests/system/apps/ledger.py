"""The ledger: handlers write one line when they start and one when they end, so that what ran is counted from outside."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millstream import current_job


@contextmanager
def entry(key: str) -> Iterator[None]:
    """A ``start`` line, then an ``end`` line, or ``broken`` if the handler was stopped or raised."""
    record("start", key)
    try:
        yield
    except BaseException:
        record("broken", key)
        raise
    record("end", key)


def record(what: str, key: str) -> None:
    """One line, in one write, so that lines of many processes never mix."""
    job = current_job()
    line = json.dumps([what, key, job.id, os.getpid(), job.attempt, job.crashes, time.monotonic()])
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)
