"""The messages that a worker process holds, and the order in which its queues claim."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from millstream.model.address import Address
from millstream.worker.hot.hold import ASYNC, BATCH, BUFFER_MAX, BUFFER_SECONDS, READ_PAST, STOPPING, THREAD, Hold
from millstream.worker.hot.in_flight import InFlight
from millstream.worker.hot.lane import Lane


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await coroutine

    asyncio.run(bounded())


def busy(hold: Hold, clock: Clock, kind: int, rate: float) -> None:
    """Simulate jobs starting at this rate for a while."""
    for _ in range(20):
        clock.now += 0.1
        hold.started[kind] += int(rate * 0.1)
        hold.capacity((kind,), buffered=True)


def test_a_new_worker_claims_only_for_free_slots() -> None:
    async def main() -> None:
        hold = Hold(32, 8, Clock())
        assert hold.capacity((ASYNC,), buffered=True) == 32
        assert hold.capacity((THREAD,), buffered=True) == 8

    run(main())


def test_slow_handlers_claim_nothing_ahead() -> None:
    async def main() -> None:
        clock = Clock()
        hold = Hold(4, 8, clock)
        busy(hold, clock, ASYNC, rate=6)  # 6 jobs a second: less than one job within the lookahead time of the buffer
        assert hold.capacity((ASYNC,), buffered=True) == 4

    run(main())


def test_fast_handlers_claim_ahead_up_to_a_limit() -> None:
    async def main() -> None:
        clock = Clock()
        hold = Hold(4, 8, clock)
        busy(hold, clock, ASYNC, rate=1_000)
        assert 50 < hold.capacity((ASYNC,), buffered=True) <= 4 + 1_000 * BUFFER_SECONDS
        busy(hold, clock, ASYNC, rate=1_000_000)
        assert hold.capacity((ASYNC,), buffered=True) == BATCH
        hold.unsettled = 4 + BUFFER_MAX + 2 * BATCH
        assert hold.capacity((ASYNC,), buffered=True) <= 0

    run(main())


def test_a_queue_that_must_not_buffer_claims_only_for_free_slots() -> None:
    async def main() -> None:
        clock = Clock()
        hold = Hold(4, 8, clock)
        busy(hold, clock, ASYNC, rate=100_000)
        assert hold.capacity((ASYNC,), buffered=False) == 4

    run(main())


def test_slots_reserved_by_a_claim_in_flight_are_not_offered_again() -> None:
    async def main() -> None:
        hold = Hold(10, 8, Clock())
        hold.ask((ASYNC,), 7)
        assert hold.capacity((ASYNC,), buffered=True) == 3
        hold.ask((ASYNC,), -7)
        assert hold.capacity((ASYNC,), buffered=True) == 10

    run(main())


def test_queues_of_different_kinds_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        hold = Hold(1, 1, Clock())
        hold.free[THREAD] = 0
        threads = asyncio.create_task(hold.turn((THREAD,), True, 5.0))
        await asyncio.sleep(0)
        coroutines = asyncio.create_task(hold.turn((ASYNC,), True, 5.0))
        await asyncio.sleep(0)
        hold.freed()
        assert await coroutines == 1
        assert not threads.done()
        hold.free[THREAD] = 1
        hold.freed()
        assert await threads == 1

    run(main())


def test_turns_are_granted_in_request_order() -> None:
    async def main() -> None:
        hold = Hold(1, 1, Clock())
        hold.free[ASYNC] = 0
        order: list[str] = []

        async def lane(name: str) -> None:
            assert await hold.turn((ASYNC,), True, 5.0) == 1
            order.append(name)
            hold.free[ASYNC] = 0

        lanes = [asyncio.create_task(lane(name)) for name in "abc"]
        for _ in range(3):
            await asyncio.sleep(0)
        for _ in "abc":
            hold.free[ASYNC] = 1
            hold.freed()
            for _ in range(3):
                await asyncio.sleep(0)
        await asyncio.gather(*lanes)
        assert order == ["a", "b", "c"]

    run(main())


def test_a_turn_that_timed_out_does_not_block_the_next_turn() -> None:
    async def main() -> None:
        hold = Hold(1, 1, Clock())
        hold.free[ASYNC] = 0
        assert await hold.turn((ASYNC,), True, 0.001) == 0
        hold.free[ASYNC] = 1
        assert await hold.turn((ASYNC,), True, 5.0) == 1

    run(main())


def test_a_stopping_worker_ends_the_waits_for_a_turn() -> None:
    async def main() -> None:
        hold = Hold(1, 1, Clock())
        hold.free[ASYNC] = 0
        waiting = asyncio.create_task(hold.turn((ASYNC,), True, 5.0))
        await asyncio.sleep(0)
        hold.shut.add(STOPPING)
        hold.freed()
        assert await waiting == 0

    run(main())


def test_busy_threads_do_not_hold_up_coroutines_of_a_mixed_queue_unless_careful() -> None:
    async def main() -> None:
        hold = Hold(10, 2, Clock())
        hold.free[THREAD] = 0
        assert 0 < hold.capacity((ASYNC, THREAD), buffered=True) < 10
        assert hold.capacity((ASYNC, THREAD), buffered=True, careful=True) <= 0

    run(main())


def test_a_mixed_queue_reads_past_blocked_jobs_twice_as_far_each_time_up_to_a_limit() -> None:
    async def main() -> None:
        hold, job = Hold(5_000, 2, Clock()), cast(InFlight, None)
        hold.free[THREAD] = 0
        for waiting, capacity in ((0, 4), (4, 4), (8, 8), (100, 100), (READ_PAST - 50, 50), (READ_PAST, 0)):
            hold.ready[THREAD].clear()
            hold.ready[THREAD].extend([job] * waiting)
            assert hold.capacity((ASYNC, THREAD), buffered=True) == capacity
        hold.ready[THREAD].clear()
        assert hold.capacity((ASYNC, THREAD), buffered=True, past=40) == 40  # 40 jobs that must not be buffered are in front

    run(main())


def test_a_queue_that_waits_for_threads_does_not_block_a_queue_of_coroutines() -> None:
    async def main() -> None:
        hold = Hold(4, 1, Clock())
        hold.free[THREAD] = 0
        threads = asyncio.create_task(hold.turn((THREAD,), True, 5.0))
        await asyncio.sleep(0)
        assert await hold.turn((ASYNC,), True, 5.0) == 4  # immediately, although another queue is waiting
        threads.cancel()

    run(main())


def test_a_few_threads_do_not_limit_a_queue_that_is_mostly_coroutines() -> None:
    async def main() -> None:
        hold, lane = Hold(100, 8, Clock()), Lane(Address("q"), kinds=(ASYNC, THREAD))
        assert hold.capacity(lane.kinds, buffered=True, shares=lane.shares) == 8  # at first, all jobs may need threads
        for _ in range(50):
            lane.note(0, 8)
        assert hold.capacity(lane.kinds, buffered=True, shares=lane.shares) == 100
        lane.note(8, 16)
        assert hold.capacity(lane.kinds, buffered=True, shares=lane.shares) == 16  # half of the jobs may need threads

    run(main())
