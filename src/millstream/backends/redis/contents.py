"""The doctor's findings about queues and topics: inconsistencies, missing workers, and what needs a person's attention."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from millstream.backends.redis.consistency import ConsistencyCheck
from millstream.broker import Finding, GroupState, Inspector, Listed, QueueState, Standing, TopicState, Why, WorkerInfo
from millstream.broker.explaining import Facts, explain
from millstream.broker.sums import sum_queues, sum_topics
from millstream.model.address import Address

Run = Callable[..., Awaitable[Any]]

WAITING: tuple[Listed, ...] = ("ready", "scheduled")

SAMPLE = 20
"""Number of jobs of each state that are examined."""


class Contents:
    """All queues and topics of a namespace. The shards of a queue or topic are examined together."""

    def __init__(self, inspector: Inspector, run: Run, names: Callable[[Address | None], dict[str, str]]) -> None:
        self._inspector = inspector
        self._run = run
        self._names = names
        self._workers: Sequence[WorkerInfo] = ()

    async def examine(self) -> list[Finding]:
        """Return findings about queues by name, then about topics."""
        self._workers = await self._inspector.workers()
        findings: list[Finding] = []
        for name in await self._inspector.queues():
            findings += await self._queue(Address(name))
        for name in await self._inspector.topics():
            findings += await self._topic(name)
        return findings

    async def _queue(self, whole: Address) -> list[Finding]:
        addresses = whole.shards(await self._inspector.shards(whole))
        inconsistent: list[Finding] = []
        alive = 0
        for address in addresses:
            found, leases = await ConsistencyCheck(address, self._run, self._names).audit()
            inconsistent += found
            alive += leases
        states = [await self._inspector.queue(address) for address in addresses]
        state = msgspec.structs.replace(states[0] if addresses == [whole] else sum_queues(whole, states), consumers=alive)
        held_up = [] if state.paused or not alive else [each for shard in states for each in await self._held_up(shard)]
        return queue(state, inconsistent, held_up)

    async def _held_up(self, state: QueueState) -> list[tuple[str, Why]]:
        """Return the first waiting jobs of each state and why they wait. Reasons that depend on ordering keys are not
        considered."""
        views = [
            view
            for status in WAITING
            if getattr(state, status)
            for view in await self._inspector.jobs(Address(state.queue), status, limit=SAMPLE)
        ]
        standing = Standing((await self._inspector.standing(Address(state.queue), "")).now)
        whys = [
            explain(Facts(address=Address(state.queue), view=view, standing=standing, state=state, workers=self._workers))
            for view in views
        ]
        return [(view.id, why) for view, why in zip(views, whys, strict=True)]

    async def _topic(self, name: str) -> list[Finding]:
        shards = await self._inspector.shards(Address.of_topic(name))
        names = [shard.log for shard in Address.of_topic(name).shards(shards)]
        states = [await self._inspector.topic(each) for each in names]
        inconsistent: list[Finding] = []
        for each, state in zip(names, states, strict=True):
            for group in state.groups:
                inconsistent += (await ConsistencyCheck(Address.of_group(each, group.name), self._run, self._names).audit())[0]
        left = [await self._without_letters_in_hand(state) for state in states]
        return topic(left[0] if not shards else sum_topics(name, left), inconsistent)

    async def _without_letters_in_hand(self, state: TopicState) -> TopicState:
        """Subtract the dead letters that a handler will process. The rest needs a person's attention."""
        groups: list[GroupState] = []
        for group in state.groups:
            if group.dead and not group.paused:
                letters = await self._inspector.queue(Address.of_group(state.name, group.name).dead)
                in_hand = letters.ready + letters.running + letters.scheduled if letters.consumers else 0
                group = msgspec.structs.replace(group, dead=max(0, group.dead - in_hand))
            groups.append(group)
        return msgspec.structs.replace(state, groups=groups)


def queue(state: QueueState, inconsistent: Sequence[Finding] = (), held_up: Sequence[tuple[str, Why]] = ()) -> list[Finding]:
    """Return findings about one queue. ``held_up`` holds some waiting jobs and why they wait."""
    check, name, found = f"queue {state.queue}", shlex.quote(state.queue), list(inconsistent)
    waiting = state.ready + state.running + state.scheduled + state.blocked
    if waiting and state.paused:
        found.append(Finding(check, "warn", f"paused, with {_count(waiting, 'job')}", f"millstream queues resume {name}"))
    elif waiting and not state.consumers:
        way_out = f"start a worker: millstream worker module:app --queue {name}"
        found.append(Finding(check, "warn", f"{_count(waiting, 'job')} waiting, but no worker serves this queue", way_out))
    told: set[str] = set()
    for job_id, why in held_up:
        if why.code == "unknown_task" and why.text not in told:
            told.add(why.text)
            way_out = "start a worker whose app declares the task, and check that include= names its module"
            found.append(Finding(check, "warn", f"job {job_id} is not running: {why.text}", way_out))
    if state.stopped:
        way_out = f"millstream queues show {name} lists them; then millstream queues clear {name} KEY"
        found.append(Finding(check, "warn", _stopped(state.stopped), way_out))
    if state.dead:
        way_out = f"list them: millstream dead ls --queue {name}"
        found.append(Finding(check, "warn", f"{state.dead:,} dead job{'' if state.dead == 1 else 's'}", way_out))
    if not found:
        blocked = f", {state.blocked:,} blocked" if state.blocked else ""
        shards = f", {_count(state.shards, 'shard')}" if state.shards else ""
        busy = next((f"; job {job_id} waits: {why.text}" for job_id, why in held_up if why.code == "busy"), "")
        numbers = f"{state.ready + state.running:,} ready or running, {state.scheduled:,} scheduled{blocked}"
        found = [Finding(check, "ok", f"{numbers}, {_count(state.consumers, 'lease')}{shards}{busy}")]
    return found


def topic(state: TopicState, inconsistent: Sequence[Finding] = ()) -> list[Finding]:
    """Return findings about one topic and its groups."""
    check = f"topic {state.name}"
    found = [*inconsistent, *(finding for group in state.groups for finding in _group(state.name, group))]
    if not state.groups and not state.followed and state.length:
        way_out = "start a worker whose app subscribes to it. Without a group, a topic keeps all events, up to its max_length"
        found = [Finding(check, "warn", f"{_count(state.length, 'event')}, but no group to handle them", way_out)]
    if not found:
        shards = f", {_count(state.shards, 'shard')}" if state.shards else ""
        groups = f"{_count(len(state.groups), 'group')}{', broadcast' if state.followed else ''}"
        found = [Finding(check, "ok", f"{_count(state.length, 'event')} kept, {state.delayed:,} delayed, {groups}{shards}")]
    return found


def _group(topic: str, group: GroupState) -> list[Finding]:
    check, found = f"group {group.name} of topic {topic}", list[Finding]()
    address = shlex.quote(f"{topic}/{group.name}")
    waiting = group.ready + group.running + group.scheduled + group.blocked
    if waiting and group.paused:
        way_out = f"millstream groups resume {address}"
        found.append(Finding(check, "warn", f"paused, with {_count(waiting, 'event')}", way_out))
    elif waiting and not group.consumers:
        way_out = f"start a worker whose app subscribes, or remove the group: millstream groups rm {address}"
        found.append(Finding(check, "warn", f"{_count(waiting, 'event')} waiting, but no worker serves this group", way_out))
    if group.stopped:
        shown = shlex.quote(topic)
        way_out = (
            f"millstream topics show {shown} lists them; then millstream topics clear {shown} KEY --group "
            f"{shlex.quote(group.name)}"
        )
        found.append(Finding(check, "warn", _stopped(group.stopped), way_out))
    if group.dead:
        way_out = f"list them: millstream dead ls --queue {shlex.quote(Address.of_group(topic, group.name))}"
        found.append(Finding(check, "warn", f"{_count(group.dead, 'event')} dead", way_out))
    return found


def _stopped(count: int) -> str:
    return f"{_count(count, 'key')} {'is' if count == 1 else 'are'} stopped"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
