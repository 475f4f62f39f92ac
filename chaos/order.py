"""Judges order per key: compares what handlers did with what was published. It does no I/O. Its tests plant violations.

- Per key, an event starts only when the previous event is done or dead. So first successes are in publish order.
- No event is lost: each was handled successfully or is a dead letter with a reason.
- Two handlings of a key never overlap. Handlings of a process that was stopped and replaced do not count, and handlings of a
  killed process ended with the kill.
- A done event is not handled again, unless its process was struck before the outcome can have reached the server.
- If a death stops its key, no later event of the key starts, and all of them die as ``stopped``, until the key is cleared.
- A later owner of a shard has a larger epoch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.checker import ABOUT_TO_BEGIN_SECONDS, SETTLE_SECONDS
from chaos.history import Fault, How

STOPPED, PENDING_FULL = "stopped", "pending_full"
"""Dead-letter reasons that do not stop a key."""

FOREVER = float("inf")


class Handling(NamedTuple):
    """One start of the handler for one event."""

    event: str
    key: str
    pid: int
    attempt: int
    began: float
    ended: float | None = None
    how: How = "cut"
    shard: int = 0
    epoch: int = 0
    """The epoch of the lease under which the event was claimed."""
    owning: bool = True
    """False in a process that runs suspects alone, beside the owner of the shard."""
    settled: bool | None = None
    """Whether the server accepted the outcome; None: not recorded."""


class Death(NamedTuple):
    """A dead letter that was seen."""

    event: str
    reason: str
    cleared: float | None = None
    """When its key was cleared with replay; None: it is still dead."""


class Course(NamedTuple):
    """Everything that happened to the events of one group."""

    published: Mapping[str, Sequence[str]]
    """Events by key, in order."""
    handlings: Sequence[Handling]
    deaths: Sequence[Death] = ()
    faults: Sequence[Fault] = ()


@dataclass
class OrderVerdict:
    """The outcome of every event."""

    published: int = 0
    done: int = 0
    dead: Counter[str] = field(default_factory=Counter[str])
    """Dead letters at the end, by reason."""
    cleared: Counter[str] = field(default_factory=Counter[str])
    """Dead letters that were replayed, by reason."""
    retries: int = 0
    again: int = 0
    """Handlings of done events, because their process was struck right after."""
    breaches: list[str] = field(default_factory=list[str])
    """Broken promises as text."""


def judge_order(course: Course, *, stop: bool, left: int = 0) -> OrderVerdict:
    """Judge a course. ``stop``: a death stops its key. ``left``: the number of events still on the server at the end."""
    return _Judge(course, stop).judge(left)


class _Judge:
    def __init__(self, course: Course, stop: bool) -> None:
        self._course = course
        self._stop = stop
        self._verdict = OrderVerdict()
        self._handlings: defaultdict[str, list[Handling]] = defaultdict(list)
        self._of_keys: defaultdict[str, list[Handling]] = defaultdict(list)
        for handling in sorted(course.handlings, key=lambda each: each.began):
            self._handlings[handling.event].append(handling)
            self._of_keys[handling.key].append(handling)
        self._deaths: defaultdict[str, list[Death]] = defaultdict(list)
        for death in course.deaths:
            self._deaths[death.event].append(death)

    def judge(self, left: int) -> OrderVerdict:
        known: set[str] = set()
        for key, events in self._course.published.items():
            known.update(events)
            self._judge_fates(events)
            self._judge_order(key, events)
            self._judge_stops(key, events)
        for event in (self._handlings.keys() | self._deaths.keys()) - known:
            self._breach(f"{event} was handled or died but was never published")
        for key, handlings in self._of_keys.items():
            self._judge_overlaps(key, handlings)
        for handlings in self._handlings.values():
            self._judge_repeats(handlings)
        self._judge_epochs()
        if left:
            self._breach(f"{left} events are still on the server")
        return self._verdict

    # -- losses and order --------------------------------------------------------------------------------------------------

    def _judge_fates(self, events: Sequence[str]) -> None:
        verdict = self._verdict
        for event in events:
            verdict.published += 1
            handlings = self._handlings.get(event, [])
            verdict.retries += len({handling.attempt for handling in handlings if handling.attempt > 1})
            verdict.cleared.update(death.reason for death in self._deaths.get(event, []) if death.cleared is not None)
            dead = [death.reason for death in self._deaths.get(event, []) if death.cleared is None]
            verdict.dead.update(dead)
            if _success(handlings) is not None:
                verdict.done += 1
            elif not dead:
                self._breach(f"{event} is lost: it was published but is neither done nor dead; {_tale(handlings)}")

    def _judge_order(self, key: str, events: Sequence[str]) -> None:
        floor, before, done = 0.0, "", 0.0
        for event in events:
            handlings = self._handlings.get(event, [])
            if not handlings:
                continue
            first = _success(handlings)
            if first is not None and (first.ended or 0.0) < done:
                self._breach(f"{key}: {event} was done before {before}, which was published earlier")
            elif handlings[0].began < floor:
                early = floor - handlings[0].began
                self._breach(f"{key}: {event} began {early:.3f} s before the end of {before}, which was published earlier")
            ended = self._end(first or handlings[-1])
            if ended > floor:
                floor, before = ended, event
            if first is not None:
                done = max(done, ended)

    def _judge_overlaps(self, key: str, handlings: Sequence[Handling]) -> None:
        latest: Handling | None = None
        for handling in handlings:
            if self._is_late(handling):
                continue
            if latest is not None and handling.began < self._end(latest):
                self._breach(
                    f"{key}: two at a time: process {latest.pid} was handling {latest.event} when process {handling.pid} "
                    f"began {handling.event}"
                )
            if latest is None or self._end(handling) > self._end(latest):
                latest = handling

    def _end(self, handling: Handling) -> float:
        """Return when the handling stops counting: at its end, or when its process was killed or stopped."""
        end = FOREVER if handling.ended is None else handling.ended
        for fault in self._course.faults:
            if handling.pid in fault.pids and (fault.kills or fault.fences) and handling.began <= fault.ended:
                end = min(end, max(fault.began, handling.began))
        return end

    def _is_late(self, handling: Handling) -> bool:
        """Return whether a stopped process started the event when it continued, before it knew that another had taken over."""
        return any(
            fault.fences
            and handling.pid in fault.pids
            and fault.began <= handling.began <= fault.ended + ABOUT_TO_BEGIN_SECONDS
            for fault in self._course.faults
        )

    def _judge_repeats(self, handlings: Sequence[Handling]) -> None:
        first = _success(handlings)
        if first is None or first.ended is None:
            return
        after = [handling for handling in handlings if handling.began >= first.ended and not self._is_late(handling)]
        struck = any(
            first.pid in fault.pids and first.began <= fault.ended and fault.began <= self._settled_by(first.ended)
            for fault in self._course.faults
            if fault.kills or fault.fences
        )
        if after and not struck:
            self._breach(f"{first.event} was done and handled again, and nothing explains it: {_tale(handlings)}")
        self._verdict.again += len(after)

    def _settled_by(self, ended: float) -> float:
        """Return when an outcome of this age has reached the server on any machine, including outages of the server."""
        settled = ended + SETTLE_SECONDS
        for outage in sorted((fault for fault in self._course.faults if fault.away), key=lambda fault: fault.began):
            if outage.began <= settled:
                settled += max(0.0, outage.ended - max(ended, outage.began))
        return settled

    # -- stops and owners --------------------------------------------------------------------------------------------------

    def _judge_stops(self, key: str, events: Sequence[str]) -> None:
        stopped_until: list[tuple[float, float, str]] = []
        """When the key was stopped, until when, and by which event."""
        for event in events:
            began = [handling.began for handling in self._handlings.get(event, [])]
            for since, until, by in stopped_until:
                if any(since < at < until for at in began):
                    self._breach(f"{key}: {event} started although the death of {by} had stopped the key")
            for death in self._deaths.get(event, []):
                until = FOREVER if death.cleared is None else death.cleared
                stops = [by for since, end, by in stopped_until if since < until <= end]
                if death.reason == STOPPED and not stops:
                    self._breach(f"{key}: {event} is dead as stopped, but nothing had stopped the key")
                elif death.reason != STOPPED and stops:
                    self._breach(
                        f"{key}: {event} is dead ({death.reason}) although the death of {stops[0]} had stopped the key"
                    )
                elif self._stop and death.reason not in (STOPPED, PENDING_FULL):
                    ends = [self._end(handling) for handling in self._handlings.get(event, []) if handling.began < until]
                    stopped_until.append((max(ends, default=0.0), until, event))

    def _judge_epochs(self) -> None:
        highest: dict[int, Handling] = {}
        for handling in sorted(self._course.handlings, key=lambda each: each.began):
            if not handling.owning or self._is_late(handling):
                continue
            before = highest.setdefault(handling.shard, handling)
            if handling.epoch < before.epoch:
                self._breach(
                    f"shard {handling.shard}: process {handling.pid} began {handling.event} under epoch {handling.epoch}, "
                    f"after process {before.pid} had owned it under {before.epoch}"
                )
            elif handling.epoch > before.epoch:
                highest[handling.shard] = handling

    def _breach(self, what: str) -> None:
        self._verdict.breaches.append(what)


def _success(handlings: Iterable[Handling]) -> Handling | None:
    """Return the first handling that succeeded."""
    ended = [handling for handling in handlings if handling.how == "end" and handling.ended is not None]
    return min(ended, key=lambda handling: handling.ended or 0.0, default=None)


def _tale(handlings: Sequence[Handling]) -> str:
    """Describe the handlings of an event."""
    if not handlings:
        return "it never started"
    zero = handlings[0].began
    return "; ".join(
        f"process {each.pid} started it at {each.began - zero:.2f} s (attempt {each.attempt}, epoch {each.epoch}), "
        + ("cut off" if each.ended is None else f"{each.how} at {each.ended - zero:.2f} s")
        for each in handlings
    )
