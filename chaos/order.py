"""Order per key, judged: what handlers did, held against what was published. Pure; its own tests plant what must be seen.

- Per key, an event is begun only when the one before it was done, or is dead: so first successes are in publish order.
- Nothing is lost: each event was handled with success, or is dead, with a reason.
- Two handlings of a key never overlap, but for what a process does that was stopped, and was replaced meanwhile. What a killed
  process was doing ended when it was killed.
- Nothing that was done is done again, unless the process that did it was struck before its outcome can have reached the server.
- Where a death stops its key, nothing later of the key is begun, and all of it dies as ``stopped``, until the key is cleared.
- Who owns a shard later has the larger epoch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.checker import ABOUT_TO_BEGIN_SECONDS, SETTLE_SECONDS
from chaos.history import Fault, How

STOPPED, PENDING_FULL = "stopped", "pending_full"
"""Deaths that stop no key."""

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
    """Of the lease under which its event was claimed."""
    owning: bool = True
    """False: in a process that runs what was running when others died, alone and beside the owner of the shard."""
    settled: bool | None = None
    """Whether its outcome was taken by the server; None: nobody asked."""


class Death(NamedTuple):
    """A dead letter that was seen."""

    event: str
    reason: str
    cleared: float | None = None
    """When its key was cleared, with replay; None: it is dead still."""


class Course(NamedTuple):
    """Everything that happened to the events of one group."""

    published: Mapping[str, Sequence[str]]
    """By key, in order."""
    handlings: Sequence[Handling]
    deaths: Sequence[Death] = ()
    faults: Sequence[Fault] = ()


@dataclass
class OrderVerdict:
    """What became of every event."""

    published: int = 0
    done: int = 0
    dead: Counter[str] = field(default_factory=Counter[str])
    """By reason, at the end."""
    cleared: Counter[str] = field(default_factory=Counter[str])
    """Dead letters that were replayed, by reason."""
    retries: int = 0
    again: int = 0
    """Handlings of events that had been done, by processes that were struck right after."""
    breaches: list[str] = field(default_factory=list[str])
    """Broken promises, in words."""


def judge_order(course: Course, *, stop: bool, left: int = 0) -> OrderVerdict:
    """``stop``: a death stops its key. ``left``: how many events the server still has after all is over."""
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
            self._breach(f"{event} was handled or died, and nobody published it")
        for key, handlings in self._of_keys.items():
            self._judge_overlaps(key, handlings)
        for handlings in self._handlings.values():
            self._judge_repeats(handlings)
        self._judge_epochs()
        if left:
            self._breach(f"{left} events are still on the server")
        return self._verdict

    # -- nothing is lost, and all is in order ------------------------------------------------------------------------------

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
                self._breach(f"{event} is lost: it was published, and is neither done nor dead; {_tale(handlings)}")

    def _judge_order(self, key: str, events: Sequence[str]) -> None:
        floor, before, done = 0.0, "", 0.0
        for event in events:
            handlings = self._handlings.get(event, [])
            if not handlings:
                continue
            first = _success(handlings)
            if first is not None and (first.ended or 0.0) < done:
                self._breach(f"{key}: {event} was done before {before}, which was published before it")
            elif handlings[0].began < floor:
                early = floor - handlings[0].began
                self._breach(f"{key}: {event} began {early:.3f} s before {before} had ended, which was published before it")
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
        """Until when it counts: it ended, its process was killed, or was stopped, and what it does later is void."""
        end = FOREVER if handling.ended is None else handling.ended
        for fault in self._course.faults:
            if handling.pid in fault.pids and (fault.kills or fault.fences) and handling.began <= fault.ended:
                end = min(end, max(fault.began, handling.began))
        return end

    def _is_late(self, handling: Handling) -> bool:
        """Whether a process that was stopped began it when it came back, before it knew that others had taken it over."""
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
        """When the outcome of what ended then has reached the server, on any machine, which may have been away meanwhile."""
        settled = ended + SETTLE_SECONDS
        for outage in sorted((fault for fault in self._course.faults if fault.away), key=lambda fault: fault.began):
            if outage.began <= settled:
                settled += max(0.0, outage.ended - max(ended, outage.began))
        return settled

    # -- stops and owners --------------------------------------------------------------------------------------------------

    def _judge_stops(self, key: str, events: Sequence[str]) -> None:
        stopped_until: list[tuple[float, float, str]] = []
        """Since when, until when, and by which event the key was stopped."""
        for event in events:
            began = [handling.began for handling in self._handlings.get(event, [])]
            for since, until, by in stopped_until:
                if any(since < at < until for at in began):
                    self._breach(f"{key}: {event} was begun although the death of {by} had stopped the key")
            for death in self._deaths.get(event, []):
                until = FOREVER if death.cleared is None else death.cleared
                stops = [by for since, end, by in stopped_until if since < until <= end]
                if death.reason == STOPPED and not stops:
                    self._breach(f"{key}: {event} is dead as stopped, and nothing had stopped the key")
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
    """The first that ended well."""
    ended = [handling for handling in handlings if handling.how == "end" and handling.ended is not None]
    return min(ended, key=lambda handling: handling.ended or 0.0, default=None)


def _tale(handlings: Sequence[Handling]) -> str:
    """An event's handlings, for people."""
    if not handlings:
        return "it never began"
    zero = handlings[0].began
    return "; ".join(
        f"process {each.pid} began it at {each.began - zero:.2f} s (attempt {each.attempt}, epoch {each.epoch}), "
        + ("cut off" if each.ended is None else f"{each.how} at {each.ended - zero:.2f} s")
        for each in handlings
    )
