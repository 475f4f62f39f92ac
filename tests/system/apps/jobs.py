"""The app that workers under test run. Its settings come from the environment, so that each worker may have its own."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from millstream import Millstream, RetryPolicy, current_job

try:
    from ledger import entry  # a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # the tests, which only enqueue

app = Millstream(**json.loads(os.environ.get("JOBS_SETTINGS", "{}")))


@app.task
async def note(key: str) -> str:
    with entry(key):
        return key


@app.task
async def nap(key: str, seconds: float) -> None:
    with entry(key):
        await asyncio.sleep(seconds)


@app.task
async def hold(key: str, gate: str) -> None:
    """Runs until the gate, a file, is there."""
    with entry(key):
        while not Path(gate).exists():
            await asyncio.sleep(0.01)


HOARD: list[bytes] = []


@app.task
async def hoard(key: str, size: int) -> None:
    """Takes memory, and keeps it."""
    with entry(key):
        HOARD.append(b"x" * size)


@app.task
async def block(key: str, seconds: float) -> None:
    """Blocks the event loop."""
    with entry(key):
        time.sleep(seconds)


@app.task
async def block_until(key: str, gate: str) -> None:
    """Blocks the event loop until the gate is there."""
    with entry(key):
        while not Path(gate).exists():
            time.sleep(0.01)


@app.task
async def wedge(key: str) -> None:
    """Blocks the event loop for ever, the first time."""
    with entry(key):
        while current_job().crashes == 0:
            time.sleep(1)


@app.task
async def backtrack(key: str, seconds: float) -> None:
    """One C call that holds the GIL for about ``seconds``, or longer: a regex that gets lost in word after word."""
    with entry(key):
        letters, took = 12, 0.0
        while took < 0.05:
            letters += 1
            took = _search("a" * letters)
        _search(("a" * letters + " ") * math.ceil(1.2 * seconds / took))


def _search(text: str) -> float:
    """The seconds of work it took, whatever else the machine had to do."""
    began = time.thread_time()
    assert re.search(r"(a+)+b", text) is None
    return time.thread_time() - began


@app.task
async def bomb(key: str) -> None:
    with entry(key):
        os._exit(1)


@app.task
async def fork_and_die(key: str, gate: str) -> None:
    """Dies, the first time, and leaves a process behind that has all its files and sockets."""
    with entry(key):
        if current_job().crashes:
            return
        if os.fork():
            os._exit(1)
        while not Path(gate).exists():
            time.sleep(0.01)
        os._exit(0)


@app.task
async def fork_and_forget(key: str, gate: str) -> None:
    """Leaves a process behind that has no parent any more, and ends when the gate is there."""
    with entry(key):
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                while not Path(gate).exists():
                    time.sleep(0.01)
            os._exit(0)
        os.waitpid(child, 0)


@app.task(retry=RetryPolicy(2, delay=0.05, backoff="fixed", jitter=False))
async def fail(key: str) -> None:
    with entry(key):
        raise ValueError(key)


@app.task
async def unspeakable(key: str) -> object:
    with entry(key):
        return object()


@app.task
async def measure(key: str, text: str) -> int:
    with entry(key):
        return len(text)


@app.task(queue="threads")
def thread_note(key: str) -> None:
    with entry(key):
        pass


@app.task(queue="threads")
def thread_hold(key: str, gate: str) -> None:
    """A thread that does not return, whatever is asked of it, until the gate is there."""
    with entry(key):
        while not Path(gate).exists():
            time.sleep(0.01)


@app.task(queue="once", max_crashes=0)
async def once(key: str, gate: str) -> None:
    with entry(key):
        while not Path(gate).exists():
            await asyncio.sleep(0.01)


@app.task(queue="once", max_crashes=0)
async def once_blocking(key: str, gate: str) -> None:
    with entry(key):
        while not Path(gate).exists():
            time.sleep(0.01)


@app.task(queue="once_threads", max_crashes=0)
def once_thread(key: str, gate: str) -> None:
    with entry(key):
        while not Path(gate).exists():
            time.sleep(0.01)


@app.task(queue="other")
async def other(key: str) -> None:
    with entry(key):
        pass


@app.task
def environment_of_a_program() -> list[str]:
    """The names of the environment variables that a program sees which a handler starts."""
    say = [sys.executable, "-c", "import os; print(*os.environ, sep='\\n')"]
    return subprocess.run(say, capture_output=True, text=True, check=True).stdout.splitlines()
