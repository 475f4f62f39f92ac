"""Reading the memory room."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from millstream.broker import DeadLetter, Inspector, QueueState, WorkerInfo
from millstream.memory.queue import MemoryQueue
from millstream.memory.state import Dead, Moment, State
from millstream.types import Status


class MemoryInspector(Inspector):
    """Sees the state as one verb left it and the next will find it."""

    def __init__(self, state: State, now: Callable[[], Moment]) -> None:
        self._state = state
        self._now = now

    async def status(self, queue: str, job_id: str) -> Status:
        with self._state.lock:
            return self._queue(queue).status(job_id, self._now())

    async def queues(self) -> list[str]:
        with self._state.lock:
            return sorted(self._state.declared)

    async def queue(self, queue: str) -> QueueState:
        with self._state.lock:
            return self._queue(queue).state()

    async def dead_letters(self, queue: str, *, after: str = "", limit: int = 100) -> list[DeadLetter]:
        seen = int(after or 0)
        with self._state.lock:
            later = (dead for dead in self._queue(queue).dead.values() if dead.number > seen)
            return [_letter(queue, dead) for dead in islice(later, limit)]

    async def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        with self._state.lock:
            dead = self._queue(queue).dead.get(job_id)
            return _letter(queue, dead) if dead is not None else None

    async def workers(self) -> list[WorkerInfo]:
        with self._state.lock:
            return sorted(self._state.workers.values(self._now().wall), key=lambda worker: worker.id)

    def _queue(self, name: str) -> MemoryQueue:
        # looking at a queue that is not there must not make one
        return self._state.queues.get(name) or MemoryQueue(name)


def _letter(queue: str, dead: Dead) -> DeadLetter:
    return DeadLetter(dead.id, dead.task, queue, dead.letter, dead.died_ms / 1000, dead.body, str(dead.number))
