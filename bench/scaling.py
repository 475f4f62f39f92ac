"""Runs a worker of one to four processes under a burst, under a steady load that needs two processes, and idle. Draws a chart.

    .venv/bin/python bench/scaling.py [CHART.svg]     about a minute and a half

Every job must start and end once, and no job may be interrupted. Otherwise the exit code is 1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from scaled.chart import draw
from scaled.watch import Watch

from contest.server import throwaway_server

BENCH = Path(__file__).parent
SLOTS, JOB_SECONDS = 8, 0.05
"""So one process runs 160 jobs per second."""

BURST = 6000
STEADY_PER_SECOND, STEADY_SECONDS = 230, 25
IDLE_SECONDS = 4.0


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else BENCH.parent / "docs" / "scaling.svg"
    with throwaway_server() as server, tempfile.TemporaryDirectory() as folder:
        os.environ["SCALED_URL"], os.environ["SCALED_RECORD"] = server.url, f"{folder}/record"
        os.environ["PYTHONPATH"] = os.pathsep.join((str(BENCH.parent / "src"), str(BENCH)))
        from scaled.tasks import app, wait

        command = [sys.executable, "-m", "millstream", "worker", "scaled.tasks:app", "--processes", "1..4"]
        log = Path(folder, "log")
        with log.open("wb") as output:
            worker = subprocess.Popen([*command, "--concurrency", str(SLOTS)], cwd=BENCH, stderr=output)
        watch = Watch(server.url, 0.1)
        watch.until(lambda sample: sample.processes == 1, "the worker to be ready")
        time.sleep(IDLE_SECONDS)

        notes = [(watch.now, f"{BURST:,} jobs in one batch")]
        app.enqueue_many_sync(wait.bind(number, JOB_SECONDS) for number in range(BURST))
        watch.until(lambda sample: sample.processes == 4, "four processes")
        watch.until(lambda sample: sample.backlog == 0, "the burst to be done")
        watch.until(lambda sample: sample.processes == 1, "one process again")
        time.sleep(IDLE_SECONDS)

        notes.append((watch.now, f"{STEADY_PER_SECOND} jobs per second for {STEADY_SECONDS} s"))
        sent = BURST
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < STEADY_SECONDS:
            more = int(elapsed * STEADY_PER_SECOND) + BURST - sent
            app.enqueue_many_sync(wait.bind(sent + number, JOB_SECONDS) for number in range(more))
            sent += more
            time.sleep(0.05)
        notes.append((watch.now, "nothing"))
        watch.until(lambda sample: sample.backlog == 0, "the remaining jobs to be done")
        watch.until(lambda sample: sample.processes == 1, "one process again")
        time.sleep(IDLE_SECONDS)
        worker.send_signal(signal.SIGTERM)
        code = worker.wait()
        watch.stop()
        lines = Path(os.environ["SCALED_RECORD"]).read_text().splitlines()
        said = [line for line in log.read_text().splitlines() if "scal" in line or "stopped: " in line]

    print("\n".join(said))
    started, ended = (Counter(line.split()[1] for line in lines if line.startswith(what)) for what in ("start", "end"))
    once = Counter({str(number): 1 for number in range(sent)})
    print(f"{sent:,} jobs; started once each: {started == once}, ended once each: {ended == once}; exit code {code}")
    path.write_text(draw(watch.samples[:: max(1, len(watch.samples) // 250)], notes, "millstream worker --processes 1..4"))
    print(f"written: {path}")
    return 0 if started == ended == once and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
