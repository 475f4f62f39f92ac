"""A soak test: all kinds of jobs for a long time, with a real worker. Is memory flat, and is every job accounted for?

    make soak                                        30 minutes and at least 3,000,000 jobs; writes SOAK.md
    make soak ARGS="--minutes 2 --jobs 100000"       a short run, which only prints

The exit code is 0 if every job is accounted for and every figure is flat. The soak ends after the minutes if all jobs were
sent; otherwise when they are sent, at the latest after twice the time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from soaked import report
from soaked.gauge import Gauge, Sample
from soaked.report import Account

from contest.roster import BENCH
from contest.server import throwaway_server
from millstream.bench.machine import machine

SAMPLES = 120
BACKLOG_MOST = 20_000
DRAIN_SECONDS = 120.0
ADDRESSES = ("default", "ordered", "ticks/first", "ticks/second")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a soak test of mixed jobs.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=3_000_000, help="minimum number of jobs to send")
    options = parser.parse_args()
    if options.minutes <= 0 or options.jobs <= 0:
        parser.error("--minutes and --jobs must be above 0")
    with throwaway_server() as server, tempfile.TemporaryDirectory(prefix="soak-") as folder:
        most = 3 * options.jobs + 1_000_000
        os.environ |= {"SOAK_URL": server.url, "SOAK_COUNTS": folder, "SOAK_MOST": str(most)}
        os.environ["PYTHONPATH"] = os.pathsep.join((str(BENCH.parent / "src"), str(BENCH)))
        with worker(Path(folder, "log")) as process:
            soak = Soak(server.url, process, options.minutes * 60, options.jobs)
            account = asyncio.run(soak.run())
            process.send_signal(signal.SIGTERM)
            account.exit_code = process.wait(60)
        account.runs = runs(Path(folder), soak.mix.sent)
        said = Path(folder, "log").read_text().splitlines()
        account.complaints = [line for line in said if (" ERROR " in line or " CRITICAL " in line) and "'doomed'" not in line][
            :10
        ]
        version = server.version
    text = report.render(soak.samples, account, machine(), version)
    print(text)
    if options.minutes >= 30 and options.jobs >= 3_000_000:
        (BENCH / "SOAK.md").write_text(text)
        print("written: bench/SOAK.md")
    return 0 if report.passed(soak.samples, account) else 1


@contextmanager
def worker(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "millstream", "worker", "soaked.tasks:app", "--processes", "2"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=BENCH, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGQUIT)
            process.wait(60)


def runs(folder: Path, sent: int) -> Counter[int]:
    """Return how many jobs were run how often, from the handlers' counts."""
    files = [path.read_bytes()[:sent] for path in folder.iterdir() if path.name.isdecimal()]
    return Counter(map(sum, zip(*files, strict=True)))


class Soak:
    """One soak, from the first job until the last one is settled."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], seconds: float, jobs: int) -> None:
        from soaked.mix import Mix
        from soaked.tasks import app

        self.mix = Mix()
        self.samples: list[Sample] = []
        self._app = app
        self._process = process
        self._seconds = seconds
        self._jobs = jobs
        self._redis = redis.Redis.from_url(url)
        self._began = time.monotonic()
        self._purged = 0

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    async def run(self) -> Account:
        async with self._app:
            await self._until(self._served, "the worker to be ready")
            self._began = time.monotonic()
            gauge = Gauge(self._redis, self._process.pid)
            watching = asyncio.create_task(self._watch(gauge))
            try:
                await self._send(watching)
            finally:
                watching.cancel()
            took = self._elapsed
            await self.mix.check_cancelled()
            await self._until(self._drained, "every job to be settled", DRAIN_SECONDS)
            await self._purge()
            await asyncio.sleep(2 * self._app.settings.result_ttl + 2)  # until temporary keys have expired
            states = {address: await self._app.inspector.queue(address) for address in ADDRESSES}
            keys: list[bytes] = list(self._redis.scan_iter(count=1000))
            return Account(
                seconds=took,
                sent=self.mix.sent,
                accepted=self.mix.accepted,
                cancelled=self.mix.cancelled,
                purged=self._purged,
                totals={address: state.totals for address, state in states.items()},
                keys={key.decode(errors="replace"): int(self._redis.pttl(key)) for key in keys},
                after=gauge.look(),
            )

    async def _served(self) -> bool:
        return len(await self._app.inspector.workers()) == 2

    async def _send(self, watching: asyncio.Task[None]) -> None:
        """Send evenly over the time, with at most BACKLOG_MOST unfinished jobs."""
        while self._elapsed < self._seconds or self.mix.sent < self._jobs:
            if self._elapsed > 2 * self._seconds:
                break
            if watching.done():
                watching.result()
            await self.mix.send()
            while await self._waiting() > BACKLOG_MOST:
                await asyncio.sleep(0.05)
            ahead = self.mix.sent / self._jobs * self._seconds - self._elapsed
            if ahead > 0 and self.mix.sent < self._jobs:
                await asyncio.sleep(min(ahead, 1.0))
            elif self.mix.sent >= self._jobs:
                await asyncio.sleep(min(1.0, max(0.0, self._seconds - self._elapsed)))

    async def _waiting(self) -> int:
        states = await asyncio.gather(*map(self._app.inspector.queue, ADDRESSES))
        return sum(state.ready + state.blocked + state.running for state in states)

    async def _drained(self) -> bool:
        states = await asyncio.gather(*map(self._app.inspector.queue, ADDRESSES))
        return not any(state.ready or state.running or state.scheduled or state.blocked for state in states)

    async def _purge(self) -> None:
        """Read one dead letter and purge all. By default they are kept for a week, which would hide other memory growth."""
        for letter in await self._app.dead.list(limit=1):
            assert letter.reason == "rejected", letter
        self._purged += len(await self._app.dead.purge(task="doomed"))

    async def _watch(self, gauge: Gauge) -> None:
        every = self._seconds / SAMPLES
        while True:
            await asyncio.sleep(max(0.0, (len(self.samples) + 1) * every - self._elapsed))
            await self._purge()
            self.samples.append(Sample(self._elapsed, self.mix.sent, gauge.look()))
            if len(self.samples) % (SAMPLES // 10) == 0:
                print(f"  {self._elapsed / 60:5.1f} min  {self.mix.sent:>10,} jobs", flush=True)
            if self._process.poll() is not None:
                raise RuntimeError(f"the worker exited with code {self._process.returncode}")

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not await condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {within:g} s for {what}")
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
