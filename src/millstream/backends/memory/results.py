"""Waiting for endings in the memory backend."""

from __future__ import annotations

from collections.abc import Callable

from millstream.backends.memory.state import Moment, State, Waiter
from millstream.broker import ResultStore
from millstream.model.address import Address


class MemoryResults(ResultStore):
    """When a job ends, all coroutines that wait for it are woken, in every thread."""

    def __init__(self, state: State, now: Callable[[], Moment]) -> None:
        self._state = state
        self._now = now

    async def get(self, queue: Address, job_id: str) -> bytes | None:
        with self._state.lock:
            rules = self._state.queues.get(queue)
            return rules.endings.get(job_id, self._now().wall) if rules else None

    async def wait(self, queue: Address, job_id: str, timeout: float | None) -> bytes | None:
        waiter: Waiter[bytes | None] = Waiter()
        with self._state.lock:
            rules = self._state.queues.get(queue)
            if rules is None:
                return None
            if job_id not in rules.jobs:
                return rules.endings.get(job_id, self._now().wall)
            waiting = rules.waiting.setdefault(job_id, set())
            waiting.add(waiter)
        try:
            return await waiter.wait(timeout)
        finally:
            with self._state.lock:
                waiting.discard(waiter)
                if not waiting and rules.waiting.get(job_id) is waiting:
                    del rules.waiting[job_id]
