"""Reading: everything that can be seen of queues, jobs, dead letters and workers. Changes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from millstream.outcome import Letter
from millstream.types import Status


class QueueState(msgspec.Struct, frozen=True):
    """A queue in numbers."""

    queue: str
    ready: int
    running: int
    """Claimed by a consumer that has its lease."""
    scheduled: int
    dead: int
    paused: bool
    consumers: int
    """How many consumers hold a lease."""
    totals: dict[str, int]
    """Since the queue began: published, done, retried, dead, expired, cancelled, released, lapsed."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter as stored."""

    id: str
    task: str
    queue: str
    letter: Letter
    died_at: float
    """Epoch seconds, server time."""
    body: bytes
    """The message as it would run again; for ``malformed`` whatever was found."""
    cursor: str
    """Where ``dead_letters`` goes on after this one."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker process as it registered itself."""

    id: str
    host: str
    pid: int
    version: str
    queues: list[str]
    started: float
    """Epoch seconds."""
    totals: dict[str, int]
    """done, retried, dead, refused: outcomes this worker settled."""


class Inspector(ABC):
    """Reads the truth from the server; nothing is cached."""

    @abstractmethod
    async def status(self, queue: str, job_id: str) -> Status:
        """Where the job is now; ``unknown`` if it left nothing behind. In O(1)."""

    @abstractmethod
    async def queues(self) -> list[str]:
        """Every queue ever declared, sorted."""

    @abstractmethod
    async def queue(self, queue: str) -> QueueState:
        """One queue in numbers."""

    @abstractmethod
    async def dead_letters(self, queue: str, *, after: str = "", limit: int = 100) -> list[DeadLetter]:
        """Dead letters, oldest first, at most ``limit``, after a cursor."""

    @abstractmethod
    async def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        """One dead letter by its job's id. In O(1)."""

    @abstractmethod
    async def workers(self) -> list[WorkerInfo]:
        """The workers that are registered now."""
