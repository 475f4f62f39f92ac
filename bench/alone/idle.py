"""What a worker with nothing to do asks of the server."""

from __future__ import annotations

import socket
import time

from alone.limit import Figures, Limit, Measurement
from alone.stage import Stage
from contest.server import Server, throwaway_server

# seconds for what is done once at the start, and for which is listened
SETTLING = 5.0
LISTENING = 30.0


def measure() -> Figures:
    with throwaway_server() as server, Stage(server, 1) as stage:
        with stage.workers() as workers:
            stage.until_served(workers)
            time.sleep(SETTLING)
            before, began = _processed(server), time.monotonic()
            sent, inside = _overheard(server, LISTENING)
            took = time.monotonic() - began
            processed = _processed(server) - before - 2  # MONITOR, and this question
            workers.check()
    return {"sent": sent / took, "inside": inside / took, "processed": processed / took, "seconds": took}


def _processed(server: Server) -> int:
    lines: bytes = server.call("INFO", "stats")
    found = next(line for line in lines.splitlines() if line.startswith(b"total_commands_processed:"))
    return int(found.partition(b":")[2])


def _overheard(server: Server, seconds: float) -> tuple[int, int]:
    """Commands that clients sent, and commands that scripts ran, by MONITOR."""
    deadline = time.monotonic() + seconds
    heard = b""
    with socket.create_connection(("127.0.0.1", server.port)) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        while (left := deadline - time.monotonic()) > 0:
            monitor.settimeout(left)
            try:
                heard += monitor.recv(1 << 16)
            except TimeoutError:
                break
    lines = [line for line in heard.splitlines() if b" [" in line]
    inside = sum(b" lua] " in line for line in lines)
    return len(lines) - inside, inside


IDLE = Measurement(
    name="idle",
    measure=measure,
    limits=(Limit("Commands that an idle worker of three queues sends, keeper and sweeps included", "sent", "per second", 10),),
    how="One worker (supervisor and one process) of three empty queues, after 5 s. Counted for 30 s by MONITOR: commands "
    "that its connections sent. The commands that its scripts run inside the server are {inside} per second more; the "
    "server's `total_commands_processed`, which counts both, rose by {processed} per second.",
)
