"""Threads that run plain functions."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from millstream.worker.hot.in_flight import InFlight
from millstream.worker.hot.threads import Threads


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    """Switch threads as often as possible, so that rare races become common."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_switches")
def test_jobs_that_finish_at_the_same_moment_are_all_reported() -> None:
    size, rounds = 8, 300

    async def main() -> None:
        barrier = threading.Barrier(size)
        finished = 0
        all_back = asyncio.Event()

        def done(job: InFlight, value: Any, error: BaseException | None) -> None:
            nonlocal finished
            assert error is None
            finished += 1
            if finished == size:
                all_back.set()

        threads = Threads(size, lambda job: barrier.wait(10), done)
        for _ in range(rounds):
            finished = 0
            all_back.clear()
            for _ in range(size):
                threads.submit(cast(InFlight, object()))
            async with asyncio.timeout(20):
                await all_back.wait()
        threads.close()

    asyncio.run(main())


def test_any_exception_of_a_function_is_returned_even_system_exit() -> None:
    async def main() -> None:
        back: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def leave(job: InFlight) -> None:
            raise SystemExit(3)

        threads = Threads(1, leave, lambda job, value, error: back.set_result(error))
        threads.submit(cast(InFlight, object()))
        async with asyncio.timeout(10):
            assert isinstance(await back, SystemExit)
        threads.close()

    asyncio.run(main())
