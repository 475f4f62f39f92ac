"""The inspector of the memory backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice

import msgspec

from millstream.backends.memory.queue import MemoryQueue
from millstream.backends.memory.state import Job, Location, Moment, Number, State
from millstream.backends.memory.topic import MemoryTopic
from millstream.broker import (
    Finding,
    Inspector,
    JobView,
    Listed,
    QueueState,
    Standing,
    StoppedKey,
    TopicState,
    Trouble,
    WorkerInfo,
)
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter
from millstream.model.ending import decode_ending
from millstream.model.types import Status


class MemoryInspector(Inspector):
    """Reads the state under its lock, so each answer is consistent."""

    def __init__(self, state: State, now: Callable[[], Moment]) -> None:
        self._state = state
        self._now = now

    async def status(self, queue: Address, job_id: str) -> Status:
        with self._state.lock:
            return self._queue(queue).status(job_id, self._now())

    async def queues(self) -> list[str]:
        with self._state.lock:
            return sorted({name.name for name in self._state.declared})

    async def queue(self, queue: Address) -> QueueState:
        with self._state.lock:
            return self._queue(queue).state()

    async def topics(self) -> list[str]:
        with self._state.lock:
            return sorted({Address(name).name for name in self._state.opened})

    async def topic(self, topic: str) -> TopicState:
        with self._state.lock:
            return (self._state.topics.get(topic) or MemoryTopic(topic)).state()

    async def shards(self, address: Address) -> int:
        with self._state.lock:
            return self._state.shards.get(address, 0)

    async def stopped_keys(self, queue: Address) -> list[StoppedKey]:
        with self._state.lock:
            rules = self._queue(queue)
            return rules.order.stopped(rules.dead)

    async def jobs(
        self, queue: Address, status: Listed, *, after: str = "", limit: int = 100, task: str | None = None
    ) -> list[JobView]:
        if status == "dead":
            letters = await self.dead_letters(queue, after=after, limit=sys.maxsize)
            return [JobView.of_letter(letter) for letter in letters if task in (None, letter.task)][:limit]
        with self._state.lock:
            rules = self._queue(queue)
            listed = {
                "blocked": rules.order.blocked,
                "scheduled": rules.scheduled,
                "ready": rules.waiting_to_run,
                "running": rules.running,
            }[status]()
            later = (job for job in listed if not after or _position(job) > _read_position(after))
            views = (_view(queue, job, status) for job in later)
            return [*islice((view for view in views if task in (None, view.task)), limit)]

    async def job(self, queue: Address, job_id: str) -> JobView | None:
        with self._state.lock:
            rules, now = self._queue(queue), self._now()
            job, dead, payload = rules.jobs.get(job_id), rules.dead.get(job_id), rules.endings.get(job_id, now.wall)
            ending = None if payload is None else decode_ending(payload)
            status = rules.status(job_id, now)
            if job is not None:
                view = _view(queue, job, status)
            elif dead is not None:
                view = JobView.of_letter(dead.stored(queue))
            else:
                until = rules.endings.until(job_id)
                return None if ending is None else JobView.of_ending(queue, job_id, ending, until)
            return msgspec.structs.replace(view, ending=ending)

    async def standing(self, queue: Address, job_id: str) -> Standing:
        with self._state.lock:
            rules = self._queue(queue)
            known = rules.jobs.get(job_id) or rules.dead.get(job_id)
            key = None if known is None else known.key
            turn, stopped_by = ("", "") if key is None else rules.order.state_of(key)
            return Standing(self._now().ms / 1000, key, turn, stopped_by)

    async def trouble(self, queue: Address) -> Trouble | None:
        return None

    async def dead_letters(self, queue: Address, *, after: str = "", limit: int = 100) -> list[DeadLetter]:
        seen = int(after or 0)
        with self._state.lock:
            later = (dead for dead in self._queue(queue).dead.values() if dead.number > seen)
            return [dead.stored(queue) for dead in islice(later, limit)]

    async def dead_letter(self, queue: Address, job_id: str) -> DeadLetter | None:
        with self._state.lock:
            dead = self._queue(queue).dead.get(job_id)
            return dead.stored(queue) if dead is not None else None

    async def due(self, queue: Address) -> int:
        with self._state.lock:
            now_ms = self._now().ms
            topic = None if queue.is_queue or queue.is_dead else self._state.topics.get(queue.log)
            delayed = 0 if topic is None else topic.due(now_ms)
            return delayed + sum(job.due_ms <= now_ms for job in self._queue(queue).scheduled())

    async def workers(self) -> list[WorkerInfo]:
        return [worker for worker in self._registered() if worker.team is None]

    async def supervisors(self) -> list[WorkerInfo]:
        return [worker for worker in self._registered() if worker.team is not None]

    def _registered(self) -> list[WorkerInfo]:
        with self._state.lock:
            return sorted(self._state.workers.values(self._now().wall), key=lambda worker: worker.id)

    async def examine(self) -> list[Finding]:
        return [Finding("server", "ok", "memory of this process: other processes cannot see it, and it is lost at exit")]

    def _queue(self, address: Address) -> MemoryQueue:
        # Reading a queue that does not exist must not create it.
        return self._state.queues.get(address) or MemoryQueue(address)


def _view(queue: Address, job: Job, status: Status) -> JobView:
    running = status == "running"
    return JobView(
        id=job.id,
        queue=str(queue),
        status=status,
        body=job.body,
        cursor=msgspec.json.encode(_position(job)).decode(),
        crashes=job.claims - 1 if running else job.claims,
        due_at=job.due_ms / 1000 if status == "scheduled" else None,
        expires_at=job.expires_ms / 1000 if job.expires_ms else None,
        consumer=job.holder if running else "",
        since=job.claimed_at if running else None,
        alone=job.location is Location.ASIDE,
    )


Position = tuple[int, str, Number, str]
"""The sort key of jobs in one state: whether the job is fresh, its consumer or key, its number or due time, its id."""


def _position(job: Job) -> Position:
    if job.location is Location.BLOCKED:
        return (0, (job.key or b"").hex(), job.position, "")
    if job.location is Location.SCHEDULED:
        return (0, "", (job.due_ms, 0), job.id)
    name = {Location.RELEASED: "!released", Location.ASIDE: "!suspects", Location.HELD: job.holder}.get(job.location, "")
    return (int(job.location is Location.FRESH), name, job.number, "")


_read_position = msgspec.json.Decoder(Position).decode
