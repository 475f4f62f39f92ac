"""What the judge told this process through the environment, and the tally it marks (``millstream.bench.tally`` reads it).

Every worker process imports it, and its memory is measured: it imports next to nothing, neither asyncio nor pathlib, and of
Millstream nothing, which peers have not installed.
"""

from __future__ import annotations

import mmap
import os

URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379")
RESULTS = os.environ.get("BENCH_RESULTS") == "1"
KIND = os.environ.get("BENCH_HANDLER", "noop")
CONCURRENCY = 100
# events that a handler of batches is given at most
BATCH = 500
# keys of events that are in order: by kind of handler
KEYS = {"ordered": 10_000, "ordered-200": 200}
# seconds that an I/O handler waits for its I/O
IO_SECONDS = 0.01
# seconds between two looks at a gate that is still closed
GATE_SECONDS = 0.01

_folder = os.environ.get("BENCH_TALLY", "")


def mapped(path: str) -> mmap.mmap:
    """The file as memory shared with every process that maps it."""
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


# without a tally there is nothing to handle, but a contender can still say what it is
marks = mapped(os.path.join(_folder, "marks")) if _folder else mmap.mmap(-1, 1)
starts = memoryview(mapped(os.path.join(_folder, "starts")) if _folder else mmap.mmap(-1, 8)).cast("d")


def say_up() -> None:
    """Leave this process's id with the judge."""
    with open(os.path.join(_folder, f"up-{os.getpid()}"), "w"):
        pass


class Gate:
    """Closed while workers start: a handler that comes to it says that its process is up, and waits until the judge opens."""

    open = False

    def look(self) -> bool:
        if not self.open:
            self.open = os.path.exists(os.path.join(_folder, "open"))
        return self.open
