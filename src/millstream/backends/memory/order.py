"""The ordering rules of one address: which message has the turn of a key, which are blocked, and which keys are stopped.

A message has the turn of its key from its first claim until it ends. This module only decides; ``queue.py`` moves the jobs.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum

from millstream.backends.memory.state import Job, Number
from millstream.broker import OrderRules, StoppedKey


class Turn(Enum):
    """Whether a ready message may be claimed."""

    YOURS = "yours"
    """The message may be claimed. If it has a key, it has the turn."""
    BLOCKED = "blocked"
    """Another message has the turn."""
    PENDING_FULL = "pending_full"
    """The message with the turn waits for a retry, and ``max_pending`` messages are already blocked behind it."""
    STOPPED = "stopped"
    """The key is stopped."""
    AGAIN = "again"
    """The message already waits or runs. It is not delivered twice."""


@dataclass(slots=True)
class Stopped:
    """A stopped key. It resumes when it is cleared."""

    by: str
    since_ms: int
    letters: dict[str, Number] = field(default_factory=dict)
    """The dead letters of the key, including the one that stopped it: id → position."""


class Order:
    """At most one message of each key has the turn. The others are blocked, in the order of their positions."""

    def __init__(self) -> None:
        self.rules = OrderRules()
        # Key → position and id of the message that has the turn.
        self._turns: dict[bytes, tuple[Number, str]] = {}
        # Key → its blocked messages. A key without blocked messages has no item.
        self._blocked: dict[bytes, list[Job]] = {}
        self.count = 0
        """Number of blocked messages."""
        self._stopped: dict[bytes, Stopped] = {}

    # -- turns -------------------------------------------------------------------------------------------------------------

    def ask(self, job: Job, scheduled: Container[str], *, again: bool) -> Turn:
        """Decide whether a message may be claimed, and give it the turn if the turn is free.

        ``scheduled`` holds the ids of scheduled messages. ``again`` is true if the message was delivered before and is not
        settled yet.
        """
        if job.key is None:
            return Turn.YOURS
        owner = self._turns.get(job.key)
        if owner is None and job.key not in self._stopped:
            self._turns[job.key] = job.position, job.id
            return Turn.YOURS
        if again:
            return Turn.AGAIN
        if owner is None or job.key in self._stopped:
            return Turn.STOPPED
        if owner == (job.position, job.id):
            return Turn.YOURS
        if owner[1] in scheduled and len(self._blocked.get(job.key, ())) >= self.rules.max_pending:
            return Turn.PENDING_FULL
        return Turn.BLOCKED

    def end(self, job: Job) -> Job | None:
        """Take the turn from a message that ended and return the next message of its key, which gets the turn.

        Return ``None`` if the message did not have the turn or no message is blocked.
        """
        if job.key is None or self._turns.get(job.key) != (job.position, job.id):
            return None
        del self._turns[job.key]
        return self.next(job.key)

    def next(self, key: bytes) -> Job | None:
        """Give a free turn to the first blocked message of the key and return that message."""
        if key in self._turns or key not in self._blocked:
            return None
        first = self._blocked[key][0]
        self.unblock(first)
        self._turns[key] = first.position, first.id
        return first

    # -- blocked messages --------------------------------------------------------------------------------------------------

    def block(self, job: Job) -> None:
        insort(self._blocked.setdefault(_key(job), []), job, key=lambda waiting: waiting.position)
        self.count += 1

    def unblock(self, job: Job) -> None:
        waiting = self._blocked[_key(job)]
        waiting.remove(job)
        self.count -= 1
        if not waiting:
            del self._blocked[_key(job)]

    def blocked(self) -> list[Job]:
        """Return blocked messages by key, then position."""
        return [job for key in sorted(self._blocked) for job in self._blocked[key]]

    # -- stopped keys ------------------------------------------------------------------------------------------------------

    def stop(self, job: Job, now_ms: int) -> list[Job]:
        """Stop the key of a dead message. Return the blocked messages of the key, which die too, in their order."""
        key = _key(job)
        self._stopped.setdefault(key, Stopped(job.id, now_ms))
        self.record(job)
        self._turns.pop(key, None)
        return [*self._blocked.get(key, ())]

    def record(self, job: Job) -> None:
        """Record a dead letter of a stopped key."""
        self._stopped[_key(job)].letters[job.id] = job.position

    def is_stopped(self, key: bytes | None) -> bool:
        return key in self._stopped

    def clear(self, key: bytes) -> list[str] | None:
        """Clear a stopped key. Return the ids of its dead letters in their order, or ``None`` if the key is not stopped."""
        stopped = self._stopped.pop(key, None)
        return None if stopped is None else sorted(stopped.letters, key=stopped.letters.__getitem__)

    def state_of(self, key: bytes) -> tuple[str, str]:
        """Return the id of the message that has the turn, and the id of the message that stopped the key. Each may be empty."""
        owner, stopped = self._turns.get(key), self._stopped.get(key)
        return "" if owner is None else owner[1], "" if stopped is None else stopped.by

    def stopped(self, dead: Container[str]) -> list[StoppedKey]:
        """Return the stopped keys, sorted. Only letters whose ids are in ``dead`` are counted."""
        return [
            StoppedKey(key, stopped.by, stopped.since_ms / 1000, sum(job_id in dead for job_id in stopped.letters))
            for key, stopped in sorted(self._stopped.items(), key=lambda item: item[0])
        ]


def _key(job: Job) -> bytes:
    assert job.key is not None, "only messages with an ordering key can be blocked or stopped"
    return job.key
