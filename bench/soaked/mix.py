"""The producer of a soak: sends all kinds of jobs in fixed shares, and counts the accepted jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from millstream import Job
from millstream.errors import JobCancelled
from soaked import tasks

SHARES = {
    "plain async": 595,
    "plain def": 100,
    "result kept": 80,
    "retried once": 50,
    "delayed by 1 s": 50,
    "ordered by key": 50,
    "dead letter": 10,
    "cancelled": 5,
    "expired": 10,
    "event for two groups": 50,
}
"""Shares per thousand. Few jobs are cancelled, because the server keeps their endings for ten minutes."""

CHUNK = 1_000
"""Jobs per round; a multiple of a thousand."""


class Mix:
    """Numbers the jobs consecutively, so that each accepted job can be found in the handlers' counts."""

    def __init__(self) -> None:
        self.sent = 0
        self.accepted: Counter[str] = Counter()
        """Accepted jobs by kind."""
        self.cancelled = 0
        """Successful cancels, after which the job never runs."""

    async def send(self) -> None:
        """Send one chunk. Wait for the result of its last job that keeps one."""
        numbers = iter(range(self.sent, self.sent + CHUNK))
        take = {kind: [next(numbers) for _ in range(share * CHUNK // 1000)] for kind, share in SHARES.items()}
        calls = [
            *(tasks.plain.bind(number) for number in take["plain async"]),
            *(tasks.threaded.bind(number) for number in take["plain def"]),
            *(tasks.retried.bind(number) for number in take["retried once"]),
            *(tasks.plain.options(delay=1.0).bind(number) for number in take["delayed by 1 s"]),
            *(tasks.ordered.bind(number) for number in take["ordered by key"]),
            *(tasks.doomed.bind(number) for number in take["dead letter"]),
            *(tasks.plain.options(expires=0.001).bind(number) for number in take["expired"]),
            *(tasks.plain.options(delay=3600.0).bind(number) for number in take["cancelled"]),
            *(tasks.kept.bind(number) for number in take["result kept"]),
        ]
        jobs: Sequence[Job[Any]] = await tasks.app.enqueue_many(calls)
        await tasks.ticks.publish_many(take["event for two groups"])
        self.sent += CHUNK
        self.accepted.update({kind: len(numbers) for kind, numbers in take.items()})
        kept, doomed = jobs[-1], jobs[-len(take["result kept"]) - len(take["cancelled"]) : -len(take["result kept"])]
        self.cancelled += sum(await asyncio.gather(*(job.cancel() for job in doomed)))
        assert await kept.result(timeout=60) == take["result kept"][-1]

    async def check_cancelled(self) -> None:
        """Check that waiting for the result of a cancelled job raises."""
        job = await tasks.plain.options(delay=3600.0, result_ttl=60).enqueue(self.sent)
        assert await job.cancel()
        try:
            await job.result(timeout=60)
        except JobCancelled:
            self.sent += 1
            self.cancelled += 1
            self.accepted["cancelled"] += 1
            return
        raise AssertionError("a cancelled job has a result")
