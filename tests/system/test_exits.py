"""A process that used Millstream exits silently on every Python found here: no traceback, no warning."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.system.harness import PATIENCE, running_server

HEAD = """
import asyncio, atexit, os, signal, sys, threading, time
from millstream import Millstream

app = Millstream(sys.argv[1], grace=0.1)

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task
def wait(gate: str) -> None:
    while not os.path.exists(gate):
        time.sleep(0.01)

"""

PROGRAMS = {
    "that enqueued": """
        greet.enqueue_sync("world")
        """,
    "whose daemon thread waits for a result": """
        job = greet.enqueue_sync("world")
        waiting = threading.Event()

        def wait_for_it():
            waiting.set()
            job.result_sync()

        threading.Thread(target=wait_for_it, daemon=True).start()
        waiting.wait()
        job.status_sync()
        """,
    "whose daemon threads enqueue without end": """
        begun = threading.Semaphore(0)

        def enqueue():
            while True:
                greet.enqueue_sync("world")
                begun.release()

        for _ in range(4):
            threading.Thread(target=enqueue, daemon=True).start()
        for _ in range(20):
            begun.acquire()
        """,
    "that forked after it enqueued": """
        greet.enqueue_sync("world")
        child = os.fork()
        greet.enqueue_sync("world")
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """,
    "that enqueues at its exit": """
        greet.enqueue_sync("world")
        atexit.register(greet.enqueue_sync, "the end")
        """,
    "whose server is gone": """
        greet.enqueue_sync("world")
        os.kill(int(sys.argv[2]), signal.SIGKILL)
        """,
    "whose worker was stopped while a function runs": """
        async def main():
            async with app.worker():
                job = await wait.enqueue("/never")
                while await job.status() != "running":
                    await asyncio.sleep(0.01)

        import logging
        logging.getLogger("millstream").setLevel(logging.CRITICAL)  # the worker rightly warns that the function still runs
        asyncio.run(main())
        """,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_exits_silently(program: str, bin_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(HEAD + textwrap.dedent(PROGRAMS[program]))
    warnings = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")  # Python 3.12 warns about forks beside threads
    with running_server() as server:
        command = [str(bin_folder / "python"), *warnings, str(file), server.url, str(server.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
