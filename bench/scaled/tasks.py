"""The app of the run: jobs that wait, as for I/O, and record their start and end."""

from __future__ import annotations

import asyncio
import os

from millstream import Millstream

app = Millstream(os.environ.get("SCALED_URL"))


@app.task
async def wait(number: int, seconds: float) -> None:
    record(f"start {number} {os.getpid()}")
    await asyncio.sleep(seconds)
    record(f"end {number} {os.getpid()}")


def record(line: str) -> None:
    """Write one line in one call, so that lines of several processes never mix."""
    file = os.open(os.environ["SCALED_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)
