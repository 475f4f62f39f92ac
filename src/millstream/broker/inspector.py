"""Reading: everything that can be seen of queues, topics, jobs, dead letters and workers. Changes nothing."""

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
"""The states by which jobs can be listed: those in which the server has the whole job."""

Health = Literal["ok", "warn", "bad"]
"""bad: jobs are lost, stuck, or will be; warn: it may come to that, or nobody looks after them."""


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
    blocked: int = 0
    """Waiting for the turn of their key."""
    stopped: int = 0
    """Keys that go on only when they are cleared."""
    shards: int = 0
    """Of so many shards this is the sum; 0: it has none."""
    suspects: int = 0
    """Of those that are ready, those that are set aside to run alone."""


class GroupState(msgspec.Struct, frozen=True):
    """A topic's group in numbers: how far it is, and what is to be done."""

    name: str
    position: str
    """The last entry of the log it was given."""
    lag: int | None
    """Entries of the log it was not given yet; None: the server cannot tell."""
    ready: int
    """To be claimed: what it was not given yet, as far as that is known, handed back, left behind, or due for a retry."""
    running: int
    scheduled: int
    """Waiting for a retry."""
    dead: int
    paused: bool
    consumers: int
    blocked: int = 0
    """Waiting for the turn of their key."""
    stopped: int = 0
    """Keys that go on only when they are cleared."""


class TopicState(msgspec.Struct, frozen=True):
    """A topic in numbers."""

    name: str
    length: int
    """Events in the log."""
    delayed: int
    """Events that are not in the log yet."""
    totals: dict[str, int]
    """Since the topic began: published."""
    groups: list[GroupState]
    """By name."""
    followed: bool = False
    """Broadcasts read it, or did: without a group it drops its oldest events at ``max_length``."""
    shards: int = 0
    """Of so many shards this is the sum; 0: it has none."""


class StoppedKey(msgspec.Struct, frozen=True):
    """A key that goes on only when it is cleared."""

    key: bytes
    by: str
    """The id of the message whose death stopped it."""
    since: float
    """Epoch seconds, server time."""
    waiting: int
    """Dead letters that a clearing with replay puts back, as far as they are still dead."""

    @property
    def text(self) -> str:
        """The key as people read it."""
        return key_text(self.key)


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job as the server has it. Moments are epoch seconds, server time; None where there is none."""

    id: str
    """Empty for an entry that is no message of ours: a backend may know of it only what it holds."""
    queue: str
    status: Status
    body: bytes = b""
    """The message; empty once the job has ended other than dead."""
    cursor: str = ""
    """Where ``jobs`` goes on after this one."""
    crashes: int = 0
    """How many consumers died or lapsed while holding it."""
    due_at: float | None = None
    """scheduled: when it will be ready."""
    expires_at: float | None = None
    consumer: str = ""
    """running: who claimed it."""
    since: float | None = None
    """running: when it was claimed."""
    letter: DeadLetter | None = None
    """dead: its letter."""
    ending: Ending | None = None
    """How it ended, while that is kept."""
    ended_at: float | None = None
    """When it ended, if that is known."""
    alone: bool = False
    """ready: workers died while running it, so it waits to run with nothing beside it."""

    @property
    def message(self) -> Message | None:
        """The message, read; None if there is none that can be."""
        try:
            return decode_message(self.body) if self.body else None
        except (UnicodeDecodeError, msgspec.MsgspecError):
            return None

    @property
    def why_dead(self) -> DeadLetter | None:
        """Of a dead job: what its dead letter says, or its ending if the letter was purged; None if neither is there."""
        if self.letter is not None:
            return self.letter
        return None if self.ending is None else self.ending.letter

    @classmethod
    def of_letter(cls, letter: DeadLetter) -> JobView:
        """A dead job."""
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
        """A job of which only its ending is left, and until when that is kept."""
        ended_at = expires_at - ending.ttl if ending.ttl and expires_at > 0 else None
        return cls(id=job_id, queue=str(queue), status=cast(Status, ending.status), ending=ending, ended_at=ended_at)

    @property
    def worker(self) -> str:
        """running: the id of the worker that runs it, which may have had several names as a consumer."""
        return self.consumer.rpartition(".")[0] or self.consumer

    @property
    def task(self) -> str:
        """The name of its task, or of an event's topic; empty if that is not known."""
        if self.letter is not None:
            return self.letter.task
        message = self.message
        return message.task if message is not None else "" if self.ending is None else self.ending.task

    @property
    def enqueued_ms(self) -> int:
        """When it was enqueued, by the clock of the machine that did; 0 if that is not known."""
        if self.letter is not None and self.letter.enqueued_ms:
            return self.letter.enqueued_ms
        message = self.message  # a letter that the server wrote itself does not say it
        return message.enqueued_ms if message is not None else 0 if self.ending is None else self.ending.enqueued_ms

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """Its last failed attempts, oldest first."""
        if self.letter is not None:
            return self.letter.failures
        message = self.message
        return () if message is None else message.failures


class Team(msgspec.Struct, frozen=True):
    """The worker processes of one supervisor."""

    processes: int
    """How many it keeps now."""
    minimum: int
    maximum: int
    strategy: str
    """By which it scales; empty: their number is fixed."""
    decisions: dict[str, int]
    """up, down, hold, refused: how often it came to each."""
    last: str = ""
    """What it decided last, and why."""
    by_hand_until: float = 0.0
    """Epoch seconds until which the number that was set by hand holds; 0: none was."""
    rates: dict[str, float] = {}
    """Jobs that one process does per second, by address, as far as that was measured."""


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
    supervisor: str = ""
    """The id of the one that keeps it; empty: it is in a process of its own."""
    team: Team | None = None
    """Of a supervisor: the processes it keeps. It serves nothing itself."""
    tasks: dict[str, bool] | None = None
    """The tasks it knows, by name and alias, and whether each runs in a thread. ``None``: it does not say, because there are
    more than 500 or its version is older."""
    slots: tuple[int, int] = (0, 0)
    """How many coroutines and how many threads it runs at once."""
    running: tuple[int, int] = (0, 0)
    """How many of each are in use."""
    full: list[str] = []
    """Those of its ``queues`` of which it can start nothing more now."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at, and how it is."""

    check: str
    """What was looked at, in a word or two."""
    health: Health
    found: str
    way_out: str = ""
    """What to do about it, unless it is ok."""


class Inspector(ABC):
    """Reads the truth from the server; nothing is cached."""

    async def why(self, queue: Address, job_id: str) -> Why:
        """Why a job of a queue, or an event of a group by its address, is not running.

        It takes a few short readings, so a job that moves meanwhile may be explained by what was true a moment ago. What
        workers say of themselves is at most a few seconds old.
        """
        from millstream.broker.explaining import explain  # which no worker needs

        try:
            return explain(await self.facts(queue, job_id))
        except BrokerUnavailable:
            trouble = await self.trouble()
            if trouble is None:
                raise
            return Why(code=trouble.code, text=trouble.text)

    async def facts(self, queue: Address, job_id: str) -> Facts:
        """What ``why`` rests on, the job among it."""
        from millstream.broker.explaining import Facts

        standing = await self.standing(queue, job_id)
        return Facts(
            address=queue,
            view=await self.job(queue, job_id),
            standing=standing,
            state=await self.queue(queue),
            workers=await self.workers(),
            trouble=await self.trouble(),
            ahead=None if standing.turn in ("", job_id) else await self.job(queue, standing.turn),
        )

    @abstractmethod
    async def standing(self, queue: Address, job_id: str) -> Standing:
        """The time at an address, a job's ordering key there, and who has the key's turn. In O(1)."""

    @abstractmethod
    async def trouble(self) -> Trouble | None:
        """Why the server refuses writes; ``None`` if it takes them, or if it does not let us ask."""

    @abstractmethod
    async def status(self, queue: Address, job_id: str) -> Status:
        """Where the job is now; ``unknown`` if it left nothing behind. In O(1)."""

    @abstractmethod
    async def queues(self) -> list[str]:
        """Every queue ever declared, sorted."""

    @abstractmethod
    async def queue(self, queue: Address) -> QueueState:
        """One queue in numbers, or one group, by its address."""

    @abstractmethod
    async def topics(self) -> list[str]:
        """Every topic ever opened, sorted."""

    @abstractmethod
    async def topic(self, topic: str) -> TopicState:
        """One topic in numbers, with its groups."""

    @abstractmethod
    async def shards(self, address: Address) -> int:
        """How many shards a queue, or a topic by its address, has; 0: none."""

    @abstractmethod
    async def stopped_keys(self, queue: Address) -> list[StoppedKey]:
        """The keys that are stopped in a queue or group, sorted."""

    @abstractmethod
    async def jobs(
        self, queue: Address, status: Listed, *, after: str = "", limit: int = 100, task: str | None = None
    ) -> list[JobView]:
        """Jobs of one state, after a cursor: at most ``limit``, fewer if they are large; none: there are no more.

        With ``task`` only jobs of that task. The server passes over the others, at most 1,000 per call, so a rare task in a
        long queue takes many short calls.

        Blocked ones by key, each key's in their order, scheduled ones by due time, ready ones in the order in which they will
        be claimed, running ones by consumer, dead ones oldest first. One that changes its state meanwhile may be missed or met
        twice.
        """

    @abstractmethod
    async def job(self, queue: Address, job_id: str) -> JobView | None:
        """All that is known of a job; None if it left nothing behind. In O(1)."""

    @abstractmethod
    async def dead_letters(self, queue: Address, *, after: str = "", limit: int = 100) -> list[DeadLetter]:
        """Dead letters, oldest first, after a cursor: at most ``limit``, fewer if they are large; none: there are no more."""

    @abstractmethod
    async def dead_letter(self, queue: Address, job_id: str) -> DeadLetter | None:
        """One dead letter by its job's id. In O(1)."""

    @abstractmethod
    async def due(self, queue: Address) -> int:
        """How many scheduled jobs are due and not ready yet, since nobody has claimed; in a group also of delayed events."""

    @abstractmethod
    async def workers(self) -> list[WorkerInfo]:
        """The worker processes that are registered now."""

    @abstractmethod
    async def supervisors(self) -> list[WorkerInfo]:
        """The supervisors that are registered now, each with its ``team``."""

    @abstractmethod
    async def examine(self) -> list[Finding]:
        """How the server and the queues are: settings that matter, latency, clock, and what is stuck, lost or served by nobody.

        Every call to the server is short; a large queue costs no more than a small one unless it is inconsistent.
        """
