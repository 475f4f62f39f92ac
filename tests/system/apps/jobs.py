"""The app that the workers under test run. Its settings come from the environment, so that each worker can have its own."""

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
    from ledger import entry  # in a worker, whose working directory is this folder
except ImportError:
    from tests.system.apps.ledger import entry  # in the tests, which only enqueue

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
    """Run until the gate (a file) exists."""
    with entry(key):
        while not Path(gate).exists():
            await asyncio.sleep(0.01)


HOARD: list[bytes] = []


@app.task
async def hoard(key: str, size: int) -> None:
    """Allocate memory and keep it."""
    with entry(key):
        HOARD.append(b"x" * size)


@app.task
async def block(key: str, seconds: float) -> None:
    """Block the event loop."""
    with entry(key):
        time.sleep(seconds)


@app.task
async def block_until(key: str, gate: str) -> None:
    """Block the event loop until the gate exists."""
    with entry(key):
        while not Path(gate).exists():
            time.sleep(0.01)


@app.task
async def wedge(key: str) -> None:
    """Block the event loop without end on the first run."""
    with entry(key):
        while current_job().crashes == 0:
            time.sleep(1)


@app.task
async def backtrack(key: str, seconds: float) -> None:
    """Hold the GIL in one C call for about ``seconds`` or longer: a regex that backtracks in word after word."""
    with entry(key):
        letters, took = 12, 0.0
        while took < 0.05:
            letters += 1
            took = _search("a" * letters)
        _search(("a" * letters + " ") * math.ceil(1.2 * seconds / took))


def _search(text: str) -> float:
    """Return the CPU seconds of the search, which do not depend on other processes of the machine."""
    began = time.thread_time()
    assert re.search(r"(a+)+b", text) is None
    return time.thread_time() - began


@app.task
async def bomb(key: str) -> None:
    with entry(key):
        os._exit(1)


@app.task
async def fork_and_die(key: str, gate: str) -> None:
    """On the first run, die and leave a process behind that has all open files and sockets of this one."""
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
    """Leave an orphaned process behind that ends when the gate exists."""
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
    """Occupy a thread until the gate exists. Nothing else can end it."""
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
    """Return the names of the environment variables that a program started by a handler sees."""
    say = [sys.executable, "-c", "import os; print(*os.environ, sep='\\n')"]
    return subprocess.run(say, capture_output=True, text=True, check=True).stdout.splitlines()
