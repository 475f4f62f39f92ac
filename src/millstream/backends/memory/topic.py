"""The rules of one topic: a log of events, and its groups. Each group is a queue that also claims events from the log.

This module takes no locks, awaits nothing and reads no clock; ``broker.py`` does.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from millstream.backends.memory.ended_jobs import Keeping
from millstream.backends.memory.letters import MemoryLetters
from millstream.backends.memory.queue import MemoryQueue, absolute_ms
from millstream.backends.memory.state import Job, Kept, Moment, Number, Sender, Waiter
from millstream.broker import Entry, Followed, GroupState, Position, Post, QueueState, Receipt, TopicState
from millstream.broker.values import BEGINNING, END, LogPosition, millisecond_of, parse_entry
from millstream.model.address import Address
from millstream.model.dead_letter import DeadLetter

# Minimum milliseconds between two trims of a log.
TRIM_MS = 1000

LAST_SEQ = 2**64 - 1

# Entries of a group's own stream have numbers up to this one. Entries of the log have greater numbers.
OWN = (0, LAST_SEQ)


@dataclass(slots=True, frozen=True)
class Event:
    """An entry of the log, or a delayed event that will become one."""

    id: str
    body: bytes
    expires_ms: int
    due_ms: int
    key: bytes | None
    number: Number = (0, 0)


class MemoryTopic:
    """A log, delayed events and groups."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.groups: dict[str, MemoryGroup] = {}
        self.keep: float | None = None
        self.keep_count: int | None = None
        self.published = 0
        self.followed = False
        # Followers that wait for new events.
        self.idle: set[Waiter[None]] = set()
        # Number of entries ever added to the log.
        self._added = 0
        self._log: list[Event] = []
        self._last: Number = (0, 0)
        # Delayed events by id, and as a heap by due time, then id.
        self._delayed: dict[str, Event] = {}
        self._due: list[tuple[int, bytes]] = []
        self._trimmed_ms: int | None = None
        self._given: Kept[str] = Kept()
        self._senders: Kept[Sender] = Kept()

    # -- publishing --------------------------------------------------------------------------------------------------------

    def emit(self, posts: Sequence[Post], sender: str, max_length: int | None, now: Moment, keeping: Keeping) -> list[Receipt]:
        known = self._senders.get(sender, now.wall) or Sender()
        # Events without keys are never blocked, so there is nothing to count.
        blocked = self._blocked() if any(post.key is not None for post in posts) else 0
        limit = None if max_length is None else max_length - blocked
        receipts = [self._accept(post, known, limit, now, keeping) for post in posts]
        if known.mark:
            self._senders.put(sender, known, now.wall + keeping.id_ttl, now.wall)
        if Receipt.CREATED in receipts:
            if self._drops_oldest and max_length is not None:
                self._drop(len(self._log) + len(self._delayed) - max_length)
            if not self.groups:
                self.trim(now.ms)  # Claims usually trim, and without groups there are no claims.
            self.wake()
        return receipts

    def _accept(self, post: Post, sender: Sender, limit: int | None, now: Moment, keeping: Keeping) -> Receipt:
        if self._accepted_before(post, sender, now):
            own = not post.serial and post.request and self._given.get(post.id, now.wall) == post.request
            return Receipt.CREATED if own else Receipt.EXISTS
        kept = len(self._delayed) if self._drops_oldest else len(self._log) + len(self._delayed)
        if limit is not None and kept >= limit:
            return Receipt.FULL
        if post.serial:
            sender.accept(post.serial)
        else:
            self._given.put(post.id, post.request, now.wall + keeping.id_ttl, now.wall)
        due_ms = absolute_ms(post.at, post.delay, now.ms)
        expires_ms = absolute_ms(post.expires_at, post.expires, now.ms) if post.expires_at or post.expires else 0
        event = Event(post.id, post.body, expires_ms, due_ms, post.key)
        if due_ms > now.ms:
            self._delayed[event.id] = event
            heapq.heappush(self._due, (due_ms, event.id.encode()))
        else:
            self._append(event, now.ms)
        self.published += 1
        return Receipt.CREATED

    def _blocked(self) -> int:
        """Return the largest number of blocked events in one group."""
        return max((group.order.count for group in self.groups.values()), default=0)

    @property
    def _drops_oldest(self) -> bool:
        """Whether the topic drops its oldest events at ``max_length``. Followers count the events they missed."""
        return self.followed and not self.groups

    def _accepted_before(self, post: Post, sender: Sender, now: Moment) -> bool:
        if post.id in self._delayed:
            return True
        if post.serial:
            return sender.accepted(post.serial)
        if self._given.get(post.id, now.wall) is not None:
            return True
        name, _, serial = post.id.rpartition("-")
        by = self._senders.get(name, now.wall)
        return bool(by and serial.isdecimal() and serial == str(int(serial)) and by.accepted(int(serial)))

    def _append(self, event: Event, now_ms: int) -> None:
        ms, number = self._last
        self._last = (now_ms, 0) if now_ms > ms else (ms, number + 1)
        self._added += 1
        self._log.append(replace(event, number=self._last))

    def publish_due(self, now_ms: int) -> None:
        """Append to the log all delayed events that are due."""
        if self.next_due(now_ms) != 0:
            return
        while self.next_due(now_ms) == 0:
            _, event_id = heapq.heappop(self._due)
            self._append(self._delayed.pop(event_id.decode()), now_ms)
        self.wake()

    def due(self, now_ms: int) -> int:
        """Return the number of delayed events that are due but not published yet."""
        return sum(due_ms <= now_ms for due_ms, _ in self._due)

    def next_due(self, now_ms: int) -> float | None:
        """Return the seconds until the earliest delayed event is due."""
        return max(0.0, (self._due[0][0] - now_ms) / 1000) if self._due else None

    # -- following ---------------------------------------------------------------------------------------------------------

    def follow(self, after: Position | None, count: int, now_ms: int) -> Followed:
        """Return the events after a position, and the number of events that left the log unread."""
        self.followed = True
        self.publish_due(now_ms)
        events: list[Event] = []
        number, missed, last = self._added, 0, self._last
        if after is not None:
            first = parse_entry(after.entry)
            events = self.after(first, count)
            missed = self._added - after.number - self.lag(first)
            number = after.number + missed + len(events)
            last = events[-1].number if len(events) == count else last
        self.trim(now_ms)
        entries = [Entry(b"%d-%d" % event.number, event.body, 0, event.expires_ms) for event in events]
        return Followed(entries, Position("{}-{}".format(*last), number), missed, now_ms, self.next_due(now_ms))

    def readable(self, after: Position, now_ms: int) -> bool:
        """Return whether there are events after a position."""
        return self.lag(parse_entry(after.entry)) > 0 or self.next_due(now_ms) == 0

    # -- groups ------------------------------------------------------------------------------------------------------------

    def open(self, groups: Mapping[str, tuple[MemoryGroup, LogPosition]]) -> list[str]:
        """Add the groups that do not exist yet, each at its position. Return their names."""
        made = {name: group for name, group in groups.items() if name not in self.groups}
        for name, (group, position) in made.items():
            group.position = self.locate(position)
            self.groups[name] = group
            group.wake()
        return list(made)

    def locate(self, position: LogPosition) -> Number:
        """Return the number of the entry after which a group continues to read."""
        if position == BEGINNING:
            return (0, 0)
        if position == END:
            return self._last
        if isinstance(position, str):
            return parse_entry(position)
        return (max(0, millisecond_of(position) - 1), LAST_SEQ)

    def after(self, position: Number, count: int) -> list[Event]:
        """Return at most ``count`` entries after a position."""
        first = self._position(position)
        return self._log[first : first + count]

    def lag(self, position: Number) -> int:
        """Return the number of entries after a position."""
        return len(self._log) - self._position(position)

    def trim(self, now_ms: int) -> None:
        """Remove events that every group has settled and that retention does not keep. Without groups, only retention removes
        events."""
        if self._trimmed_ms is not None and 0 <= now_ms - self._trimmed_ms < TRIM_MS:
            return
        self._trimmed_ms = now_ms
        settled = min((self._settled(group) for group in self.groups.values()), default=len(self._log))
        if self.keep is None and self.keep_count is None:
            over = settled if self.groups else 0
        else:
            too_old = 0 if self.keep is None else bisect_left(self._log, (now_ms - round(self.keep * 1000), 0), key=_number)
            too_many = 0 if self.keep_count is None else len(self._log) - self.keep_count
            over = max(too_old, too_many)
        self._drop(min(settled, over))

    def _settled(self, group: MemoryGroup) -> int:
        """Return the number of consecutive entries, from the first one, that a group has settled."""
        given = self._position(group.position)
        return min([given, *(bisect_left(self._log, job.number, key=_number) for job in group.claimed())])

    def _drop(self, count: int) -> None:
        del self._log[: max(0, count)]

    def _position(self, position: Number) -> int:
        """Return the number of entries up to and including a position."""
        return bisect_right(self._log, position, key=_number)

    def wake(self) -> None:
        for group in self.groups.values():
            group.wake()
        for waiter in self.idle:
            waiter.wake(None)

    def state(self) -> TopicState:
        groups = [self.groups[name].group_state() for name in sorted(self.groups)]
        totals = {"published": self.published}
        return TopicState(self.name, len(self._log), len(self._delayed), totals, groups, self.followed)


class MemoryGroup(MemoryQueue):
    """A queue that also claims the events after its position in the log. Retried and replayed events are in its own stream."""

    def __init__(self, topic: MemoryTopic, group: str) -> None:
        super().__init__(Address.of_group(topic.name, group))
        self.topic = topic
        self.group = group
        self.position: Number = (0, 0)
        self.letters = MemoryLetters(self)
        # After a seek back: the last entry that the group had read, and the positions of events that it received from its own
        # stream before it reached them in the log.
        self._rewound: Number = (0, 0)
        self._ahead: set[Number] = set()

    def _dead_letter(self, job: Job, letter: DeadLetter, task: str, body: bytes, now: Moment) -> None:
        super()._dead_letter(job, letter, task, body, now)
        self.letters.wake()

    def _task(self, job: Job) -> str:
        return self.address.name

    def claimed(self) -> list[Job]:
        """Return the log entries that the group has claimed and not settled."""
        return [job for entries in self._entry_sets() for job in entries.values() if job.number > OWN]

    def _promote(self, now_ms: int) -> None:
        super()._promote(now_ms)
        self.topic.publish_due(now_ms)
        self.topic.trim(now_ms)

    def _take(self, count: int, suspect_after: int, now: Moment, keeping: Keeping) -> list[Job]:
        if self.position >= self._rewound:
            self._ahead.clear()
        taken = super()._take(count, suspect_after, now, keeping)
        self._note_ahead(taken)
        claimed = {job.number: job for job in self.claimed()}
        left = count - len(taken)
        while events := self.topic.after(self.position, left):
            for event in events:
                self.position = event.number
                if event.number in self._ahead:
                    self._ahead.remove(event.number)
                    continue
                before = claimed.get(event.number)
                if before is not None:  # The group was moved back since this entry was claimed.
                    if before in taken:  # Deliver the entry only once.
                        left -= 1
                        continue
                    self._take_out(before)
                job = _job(event)
                self._fresh[job.ref] = job
                if self._has_turn(job, now, keeping):
                    taken.append(job)
                    left -= 1
        return taken

    def _take_suspect(self, count: int) -> list[Job]:
        taken = super()._take_suspect(count)
        self._note_ahead(taken)
        return taken

    def _note_ahead(self, taken: Sequence[Job]) -> None:
        """Record events claimed from the group's own stream, so that the log does not deliver them again."""
        self._ahead |= {job.position for job in taken if job.number <= OWN and self._is_behind(job)}

    def _is_behind(self, job: Job) -> bool:
        """Return whether the group was moved back and has not yet reached the position of this keyed event in the log."""
        return job.key is not None and self.position < job.position <= self._rewound

    def _comes_again(self, job: Job) -> bool:
        if job.number <= OWN or not self._is_behind(job):
            return False
        # Move the event to the group's own stream, so that it is delivered once.
        self._take_out(job)
        self._supersede(job.id)
        job.claims = 0
        self._append(job)
        return True

    def claimable(self, now_ms: int, alone: bool = False) -> bool:
        if super().claimable(now_ms, alone):
            return True
        return not (self.paused or alone) and (bool(self.topic.lag(self.position)) or self.topic.next_due(now_ms) == 0)

    def next_due(self, now_ms: int) -> float | None:
        found = [due for due in (super().next_due(now_ms), self.topic.next_due(now_ms)) if due is not None]
        return min(found, default=None)

    def seek(self, to: LogPosition) -> None:
        before, self.position = self.position, self.topic.locate(to)
        if self.position <= before:
            self._rewound = max(self._rewound, before)
            self._ahead.clear()
        self.wake()

    def state(self) -> QueueState:
        state = super().state()
        return msgspec.structs.replace(state, ready=state.ready + self.topic.lag(self.position))

    def waiting_to_run(self) -> list[Job]:
        return super().waiting_to_run() + [
            _job(event) for event in self.topic.after(self.position, self.topic.lag(self.position))
        ]

    def group_state(self) -> GroupState:
        s = self.state()
        position = "{}-{}".format(*self.position)
        lag = self.topic.lag(self.position)
        counts = (s.ready, s.running, s.scheduled, s.dead, s.paused, s.consumers, s.blocked, s.stopped)
        return GroupState(self.group, position, lag, *counts)


def _job(event: Event) -> Job:
    number = event.number
    return Job(event.id, event.body, event.expires_ms, number=number, ref=b"L%d-%d" % number, key=event.key, position=number)


def _number(event: Event) -> Number:
    return event.number
