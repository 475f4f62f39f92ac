"""What a million jobs leave behind on the server."""

from __future__ import annotations

import time

from alone.limit import Figures, Limit, Measurement
from alone.stage import Stage
from alone.tasks import NAMESPACE
from contest.server import Server, throwaway_server
from millstream.backends.redis.keys import namespace_keys, queue_keys
from millstream.model.address import Address

JOBS = 1_000_000
PORTION = 100_000
MB = 1_000_000
# seconds for the server to return freed memory
REST = 2.0


def measure() -> Figures:
    with throwaway_server() as server, Stage(server, JOBS) as stage:
        before = server.used_memory()
        with stage.workers("-c", "100") as workers:
            for start in range(0, JOBS, PORTION):
                stage.send("noop", range(start, start + PORTION))
            stage.until_handled(workers)
            time.sleep(REST)
            running = server.used_memory() - before
        time.sleep(REST)
        left = server.used_memory() - before
        highest = server.used_memory("used_memory_peak")
        strange = _strange(server)
        keys = int(server.call("DBSIZE"))
    figures = {"keys": keys, "running": running / MB, "highest": highest / MB}
    return {"left": left / MB, "strange": len(strange), **figures}


def _strange(server: Server) -> list[str]:
    """Return the keys that ``redis/keys.py`` does not name."""
    names = {*namespace_keys(NAMESPACE).values()}
    for queue in map(Address, ("default", "second", "third")):
        names |= {*queue_keys(NAMESPACE, queue).values()}
    prefixes = tuple(name for name in names if name.endswith(":"))
    found = [key.decode() for key in server.call("KEYS", "*")]
    return [key for key in found if key not in names and not key.startswith(prefixes)]


TRACES = Measurement(
    name="traces",
    measure=measure,
    limits=(
        Limit("Server memory left after 1,000,000 jobs with results off", "left", "MB", 5),
        Limit("Remaining keys that `redis/keys.py` does not name", "strange", "keys", 0),
    ),
    how="1,000,000 no-op jobs are enqueued in bulk and drained by one worker on a fresh server. The figure is `used_memory` 2 "
    "s after the worker exited, minus `used_memory` before the first connection. The maximum was {highest} MB. When the last "
    "job was settled and the worker still ran, it was {running} MB above the start. {keys} keys remain; each is compared with "
    "the table in `redis/keys.py`.",
)
