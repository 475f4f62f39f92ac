"""What the judge passes to this process in the environment, and the tally it marks (``millstream.bench.tally`` reads it).

Every worker process imports this module, and its memory is measured. So it imports almost nothing: neither asyncio nor pathlib,
and nothing of Millstream, which is not installed for peers.
"""

from __future__ import annotations

import mmap
import os

URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379")
RESULTS = os.environ.get("BENCH_RESULTS") == "1"
KIND = os.environ.get("BENCH_HANDLER", "noop")
CONCURRENCY = 100
# the most events per call of a batch handler
BATCH = 500
# number of ordering keys, by kind of handler
KEYS = {"ordered": 10_000, "ordered-200": 200}
# seconds that an I/O handler waits
IO_SECONDS = 0.01
# seconds between two checks of a closed gate
GATE_SECONDS = 0.01

_folder = os.environ.get("BENCH_TALLY", "")


def mapped(path: str) -> mmap.mmap:
    """Map the file as memory shared with every other process that maps it."""
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


# without a tally there is nothing to handle, but a contender can still describe itself
marks = mapped(os.path.join(_folder, "marks")) if _folder else mmap.mmap(-1, 1)
starts = memoryview(mapped(os.path.join(_folder, "starts")) if _folder else mmap.mmap(-1, 8)).cast("d")


def say_up() -> None:
    """Report this process's id to the judge."""
    with open(os.path.join(_folder, f"up-{os.getpid()}"), "w"):
        pass


class Gate:
    """Closed while workers start. A handler that reaches it reports that its process has started, and waits for the judge."""

    open = False

    def look(self) -> bool:
        if not self.open:
            self.open = os.path.exists(os.path.join(_folder, "open"))
        return self.open
