"""Reads queues, topics, jobs, dead letters and workers. Changes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from millstream.broker.why import Standing, Trouble, Why, key_text
from millstream.errors import BrokerUnavailable
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter
from millstream.model.ending import Ending
from millstream.model.message import Attempt, Message, decode_message
from millstream.model.types import Status

if TYPE_CHECKING:
    from millstream.broker.explaining import Facts

Listed = Literal["blocked", "scheduled", "ready", "running", "dead"]
"""States by which jobs can be listed: those in which the server stores the whole job."""

Health = Literal["ok", "warn", "bad"]
"""bad: jobs are lost or stuck, or will be. warn: that may happen, or no worker serves them."""


class QueueState(msgspec.Struct, frozen=True):
    """The counts of a queue."""

    queue: str
    ready: int
    running: int
    """Claimed by a consumer that holds a lease."""
    scheduled: int
    dead: int
    paused: bool
    consumers: int
    """Number of consumers that hold a lease."""
    totals: dict[str, int]
    """Counted since the queue was created: published, done, retried, dead, expired, cancelled, released, lapsed."""
    blocked: int = 0
    """Messages that wait for the turn of their key."""
    stopped: int = 0
    """Number of stopped keys. Each waits to be cleared."""
    shards: int = 0
    """Number of shards that these counts are the sum of. 0: the queue is not sharded."""
    suspects: int = 0
    """Ready messages that are set aside to run alone."""


class GroupState(msgspec.Struct, frozen=True):
    """The position and counts of a topic's group."""

    name: str
    position: str
    """Id of the last log entry delivered to the group."""
    lag: int | None
    """Number of log entries not yet delivered to the group. None: the server cannot tell."""
    ready: int
    """Messages that can be claimed: log entries not yet delivered (if their number is known), and released, abandoned and due
    ones.
    """
    running: int
    scheduled: int
    """Messages that wait for a retry."""
    dead: int
    paused: bool
    consumers: int
    blocked: int = 0
    """Messages that wait for the turn of their key."""
    stopped: int = 0
    """Number of stopped keys. Each waits to be cleared."""


class TopicState(msgspec.Struct, frozen=True):
    """The counts of a topic."""

    name: str
    length: int
    """Number of events in the log."""
    delayed: int
    """Number of delayed events, which are not in the log yet."""
    totals: dict[str, int]
    """Counted since the topic was created: published."""
    groups: list[GroupState]
    """Sorted by name."""
    followed: bool = False
    """Broadcasts read the topic, or have read it. Without a group, it drops its oldest events at ``max_length``."""
    shards: int = 0
    """Number of shards that these counts are the sum of. 0: the topic is not sharded."""


class StoppedKey(msgspec.Struct, frozen=True):
    """A stopped ordering key. Its messages run again only after the key is cleared."""

    key: bytes
    by: str
    """Id of the message whose death stopped the key."""
    since: float
    """Epoch seconds, server time."""
    waiting: int
    """Number of dead letters that clearing with replay returns to the queue, provided that they are still dead."""

    @property
    def text(self) -> str:
        """The key as text for people."""
        return key_text(self.key)


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job as the server stores it. Times are epoch seconds of the server; None if there is no such time."""

    id: str
    """Empty if another program wrote the entry: the backend may then know only the consumer that holds it."""
    queue: str
    status: Status
    body: bytes = b""
    """The encoded message. Empty once the job has ended in any way but dead."""
    cursor: str = ""
    """Pass this as ``after`` to continue ``jobs`` after this job."""
    crashes: int = 0
    """Number of consumers that died or lapsed while they held the job."""
    due_at: float | None = None
    """scheduled: when the job will be ready."""
    expires_at: float | None = None
    consumer: str = ""
    """running: the consumer that claimed it."""
    since: float | None = None
    """running: when it was claimed."""
    letter: DeadLetter | None = None
    """dead: its dead letter."""
    ending: Ending | None = None
    """How the job ended, while the ending is kept."""
    ended_at: float | None = None
    """When the job ended, if known."""
    alone: bool = False
    """ready: workers crashed while running it, so it waits to run alone."""

    @property
    def message(self) -> Message | None:
        """The decoded message, or None if there is none or it cannot be decoded."""
        try:
            return decode_message(self.body) if self.body else None
        except (UnicodeDecodeError, msgspec.MsgspecError):
            return None

    @property
    def why_dead(self) -> DeadLetter | None:
        """dead: the dead letter, or the letter kept in the ending if the dead letter was purged. None if neither exists."""
        if self.letter is not None:
            return self.letter
        return None if self.ending is None else self.ending.letter

    @classmethod
    def of_letter(cls, letter: DeadLetter) -> JobView:
        """Return the view of a dead job."""
        return cls(
            id=letter.id,
            queue=letter.queue,
            status="dead",
            body=letter.body,
            cursor=letter.cursor,
            crashes=letter.crashes,
            letter=letter,
            ended_at=letter.died_at,
        )

    @classmethod
    def of_ending(cls, queue: Address, job_id: str, ending: Ending, expires_at: float) -> JobView:
        """Return the view of a job of which only the ending is left. ``expires_at`` is when the ending is deleted."""
        ended_at = expires_at - ending.ttl if ending.ttl and expires_at > 0 else None
        return cls(id=job_id, queue=str(queue), status=cast(Status, ending.status), ending=ending, ended_at=ended_at)

    @property
    def worker(self) -> str:
        """running: the id of the worker that runs the job. One worker may have several consumer names."""
        return self.consumer.rpartition(".")[0] or self.consumer

    @property
    def task(self) -> str:
        """The name of its task, or of an event's topic. Empty if not known."""
        if self.letter is not None:
            return self.letter.task
        message = self.message
        return message.task if message is not None else "" if self.ending is None else self.ending.task

    @property
    def enqueued_ms(self) -> int:
        """When the job was enqueued, by the clock of the machine that enqueued it. 0 if not known."""
        if self.letter is not None and self.letter.enqueued_ms:
            return self.letter.enqueued_ms
        message = self.message  # a dead letter written by the server has no enqueue time
        return message.enqueued_ms if message is not None else 0 if self.ending is None else self.ending.enqueued_ms

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """The last failed attempts, oldest first."""
        if self.letter is not None:
            return self.letter.failures
        message = self.message
        return () if message is None else message.failures


class Team(msgspec.Struct, frozen=True):
    """The worker processes of one supervisor."""

    processes: int
    """Current number of processes."""
    minimum: int
    maximum: int
    strategy: str
    """Name of the scaling strategy. Empty: the number of processes is fixed."""
    decisions: dict[str, int]
    """How often each decision was made: up, down, hold, refused."""
    last: str = ""
    """The last decision and its reason."""
    by_hand_until: float = 0.0
    """Epoch seconds until which a number set by hand applies. 0: no number is set by hand."""
    rates: dict[str, float] = {}
    """Measured jobs per second of one process, by address."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker process, as it registered itself."""

    id: str
    host: str
    pid: int
    version: str
    queues: list[str]
    started: float
    """Epoch seconds."""
    totals: dict[str, int]
    """Outcomes that this worker settled: done, retried, dead, refused."""
    supervisor: str = ""
    """Id of its supervisor. Empty: the worker runs without one."""
    team: Team | None = None
    """The worker processes, if this is a supervisor. A supervisor runs no jobs itself."""
    tasks: dict[str, bool] | None = None
    """The tasks that it knows, by name and alias, and whether each runs in a thread.

    ``None``: not reported, because there are more than 500 tasks or the worker's version is older.
    """
    slots: tuple[int, int] = (0, 0)
    """Maximum number of coroutines and of threads."""
    running: tuple[int, int] = (0, 0)
    """Number of coroutines and of threads in use."""
    full: list[str] = []
    """The ``queues`` for which it cannot start another job now."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    """Name of the check, in a word or two."""
    health: Health
    found: str
    way_out: str = ""
    """The fix, unless the check is ok."""


class Inspector(ABC):
    """Reads from the server. Nothing is cached."""

    async def why(self, queue: Address, job_id: str) -> Why:
        """Return why a job of a queue, or an event of a group by its address, is not running.

        This takes several short reads. If the job changes state between them, the explanation may be out of date by a moment.
        The workers' own reports are at most a few seconds old.
        """
        from millstream.broker.explaining import explain  # no worker needs this module

        try:
            return explain(await self.facts(queue, job_id))
        except BrokerUnavailable:
            trouble = await self.trouble(queue)
            if trouble is None:
                raise
            return Why(code=trouble.code, text=trouble.text)

    async def facts(self, queue: Address, job_id: str) -> Facts:
        """Return the values that ``why`` is based on, including the job."""
        from millstream.broker.explaining import Facts

        standing = await self.standing(queue, job_id)
        return Facts(
            address=queue,
            view=await self.job(queue, job_id),
            standing=standing,
            state=await self.queue(queue),
            workers=await self.workers(),
            trouble=await self.trouble(queue),
            ahead=None if standing.turn in ("", job_id) else await self.job(queue, standing.turn),
        )

    @abstractmethod
    async def standing(self, queue: Address, job_id: str) -> Standing:
        """Return the server time at an address, a job's ordering key, and the job that has the key's turn. Takes O(1)."""

    @abstractmethod
    async def trouble(self, queue: Address) -> Trouble | None:
        """Return why the server that has this queue refuses writes, or ``None`` if it accepts them or this user may not ask."""

    @abstractmethod
    async def status(self, queue: Address, job_id: str) -> Status:
        """Return the state of a job, ``unknown`` if it left nothing behind. Takes O(1)."""

    @abstractmethod
    async def queues(self) -> list[str]:
        """Return every queue ever declared, sorted."""

    @abstractmethod
    async def queue(self, queue: Address) -> QueueState:
        """Return the counts of one queue, or of one group by its address."""

    @abstractmethod
    async def topics(self) -> list[str]:
        """Return every topic ever opened, sorted."""

    @abstractmethod
    async def topic(self, topic: str) -> TopicState:
        """Return the counts of one topic and its groups."""

    @abstractmethod
    async def shards(self, address: Address) -> int:
        """Return the number of shards of a queue, or of a topic by its address. 0: not sharded."""

    @abstractmethod
    async def stopped_keys(self, queue: Address) -> list[StoppedKey]:
        """Return the stopped keys of a queue or group, sorted."""

    @abstractmethod
    async def jobs(
        self, queue: Address, status: Listed, *, after: str = "", limit: int = 100, task: str | None = None
    ) -> list[JobView]:
        """Return the jobs in one state after a cursor: at most ``limit``, fewer if they are large. An empty list is the end.

        With ``task``, return only jobs of that task. The server skips the others, at most 1,000 per call, so a rare task in a
        long queue takes many short calls.

        The order is: blocked jobs by key and then by position, scheduled jobs by due time, ready jobs in the order of their
        claims, running jobs by consumer, dead jobs oldest first. A job that changes its state during the listing may be missed
        or listed twice.
        """

    @abstractmethod
    async def job(self, queue: Address, job_id: str) -> JobView | None:
        """Return everything known about a job, or None if it left nothing behind. Takes O(1)."""

    @abstractmethod
    async def dead_letters(self, queue: Address, *, after: str = "", limit: int = 100) -> list[DeadLetter]:
        """Return dead letters after a cursor, oldest first: at most ``limit``, fewer if they are large.

        An empty list is the end.
        """

    @abstractmethod
    async def dead_letter(self, queue: Address, job_id: str) -> DeadLetter | None:
        """Return one dead letter by its job's id. Takes O(1)."""

    @abstractmethod
    async def due(self, queue: Address) -> int:
        """Return the number of due jobs that no claim has made ready yet. For a group this includes delayed events."""

    @abstractmethod
    async def workers(self) -> list[WorkerInfo]:
        """Return the worker processes that are registered now."""

    @abstractmethod
    async def supervisors(self) -> list[WorkerInfo]:
        """Return the supervisors that are registered now, each with its ``team``."""

    @abstractmethod
    async def examine(self) -> list[Finding]:
        """Check the server and the queues: settings, latency, clock, and jobs that are stuck, lost or not served by any worker.

        Every call to the server is short. A large queue costs no more than a small one unless it is inconsistent.
        """
