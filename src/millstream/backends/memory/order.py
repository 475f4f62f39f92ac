"""The rules of order at one address: who has the turn of a key, who is blocked behind it, and which keys are stopped.

A message has the turn of its key from its first claim until it ends. Nothing here moves a job; ``queue.py`` does.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum

from millstream.backends.memory.state import Job, Number
from millstream.broker import OrderRules, StoppedKey


class Turn(Enum):
    """What becomes of a message that is ready and would be claimed."""

    YOURS = "yours"
    """It is given, and has the turn if it has a key."""
    BLOCKED = "blocked"
    """The turn is another's."""
    PENDING_FULL = "pending_full"
    """The turn is another's that waits for a retry, and enough wait behind it."""
    STOPPED = "stopped"
    AGAIN = "again"
    """It waits or runs already, and is not given twice."""


@dataclass(slots=True)
class Stopped:
    """A key that goes on only when it is cleared."""

    by: str
    since_ms: int
    letters: dict[str, Number] = field(default_factory=dict)
    """Who died of it, the first included: id → position."""


class Order:
    """Of each key at most one message has the turn; those behind it wait in the order of their positions."""

    def __init__(self) -> None:
        self.rules = OrderRules()
        # key → position and id of the message that has the turn
        self._turns: dict[bytes, tuple[Number, str]] = {}
        # no key without a message
        self._blocked: dict[bytes, list[Job]] = {}
        self.count = 0
        """How many are blocked."""
        self._stopped: dict[bytes, Stopped] = {}

    # -- turns -------------------------------------------------------------------------------------------------------------

    def ask(self, job: Job, scheduled: Container[str], *, again: bool) -> Turn:
        """Whose turn it is, when a message would be claimed; it has it from now on if it is free. ``scheduled``: the ids of
        those that wait to be due; ``again``: it was given before, and is not settled yet."""
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
        """A message is out no more. If it had the turn, that is the next one's: who that is."""
        if job.key is None or self._turns.get(job.key) != (job.position, job.id):
            return None
        del self._turns[job.key]
        return self.next(job.key)

    def next(self, key: bytes) -> Job | None:
        """Give the turn to the first that is blocked, unless somebody has it."""
        if key in self._turns or key not in self._blocked:
            return None
        first = self._blocked[key][0]
        self.unblock(first)
        self._turns[key] = first.position, first.id
        return first

    # -- who waits for the turn --------------------------------------------------------------------------------------------

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
        """By key, each key's in their order."""
        return [job for key in sorted(self._blocked) for job in self._blocked[key]]

    # -- stopped keys ------------------------------------------------------------------------------------------------------

    def stop(self, job: Job, now_ms: int) -> list[Job]:
        """A message died, and its key stops; who has to die after it, in their order."""
        key = _key(job)
        self._stopped.setdefault(key, Stopped(job.id, now_ms))
        self.record(job)
        self._turns.pop(key, None)
        return [*self._blocked.get(key, ())]

    def record(self, job: Job) -> None:
        """A letter that belongs to a stopped key."""
        self._stopped[_key(job)].letters[job.id] = job.position

    def is_stopped(self, key: bytes | None) -> bool:
        return key in self._stopped

    def clear(self, key: bytes) -> list[str] | None:
        """Let a key go on; whose letters belonged to it, in their order. None: it is not stopped."""
        stopped = self._stopped.pop(key, None)
        return None if stopped is None else sorted(stopped.letters, key=stopped.letters.__getitem__)

    def state_of(self, key: bytes) -> tuple[str, str]:
        """The id of the message that has the turn of a key, and of the one whose failure stopped it; each may be empty."""
        owner, stopped = self._turns.get(key), self._stopped.get(key)
        return "" if owner is None else owner[1], "" if stopped is None else stopped.by

    def stopped(self, dead: Container[str]) -> list[StoppedKey]:
        """By key. ``dead``: the ids of all that are still dead."""
        return [
            StoppedKey(key, stopped.by, stopped.since_ms / 1000, sum(job_id in dead for job_id in stopped.letters))
            for key, stopped in sorted(self._stopped.items(), key=lambda item: item[0])
        ]


def _key(job: Job) -> bytes:
    assert job.key is not None, "only messages with a key are in an order"
    return job.key
