"""How many commands an idle worker sends to the server."""

from __future__ import annotations

import socket
import time

from alone.limit import Figures, Limit, Measurement
from alone.stage import Stage
from contest.server import Server, throwaway_server

# seconds for one-time work at the start, and seconds of counting
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
            processed = _processed(server) - before - 2  # MONITOR, and this query
            workers.check()
    return {"sent": sent / took, "inside": inside / took, "processed": processed / took, "seconds": took}


def _processed(server: Server) -> int:
    lines: bytes = server.call("INFO", "stats")
    found = next(line for line in lines.splitlines() if line.startswith(b"total_commands_processed:"))
    return int(found.partition(b":")[2])


def _overheard(server: Server, seconds: float) -> tuple[int, int]:
    """Count by MONITOR: commands that clients sent, and commands that scripts ran."""
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
    limits=(
        Limit(
            "Commands that an idle worker of three queues sends, renewals and lease checks included", "sent", "per second", 10
        ),
    ),
    how="One worker (supervisor and one process) of three empty queues, after 5 s. MONITOR counts the commands that its "
    "connections send during 30 s. Its scripts run another {inside} commands per second inside the server. The server's "
    "`total_commands_processed`, which counts both, rose by {processed} per second.",
)
