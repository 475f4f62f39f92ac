"""Adds up the states of the shards of a queue, group or topic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from millstream.broker.inspector import GroupState, QueueState, TopicState
from millstream.model.address import Address


def sum_queues(queue: Address, states: Sequence[QueueState]) -> QueueState:
    """Return the sum of the shards of a queue or group."""
    return QueueState(
        queue=str(queue),
        ready=sum(state.ready for state in states),
        running=sum(state.running for state in states),
        scheduled=sum(state.scheduled for state in states),
        dead=sum(state.dead for state in states),
        paused=any(state.paused for state in states),
        consumers=sum(state.consumers for state in states),
        totals=_sum_totals(states),
        blocked=sum(state.blocked for state in states),
        stopped=sum(state.stopped for state in states),
        shards=len(states),
        suspects=sum(state.suspects for state in states),
    )


def sum_topics(topic: str, states: Sequence[TopicState]) -> TopicState:
    """Return the sum of the shards of a topic."""
    names = sorted({group.name for state in states for group in state.groups})
    return TopicState(
        name=topic,
        length=sum(state.length for state in states),
        delayed=sum(state.delayed for state in states),
        totals=_sum_totals(states),
        groups=[_sum_groups([group for state in states for group in state.groups if group.name == name]) for name in names],
        followed=any(state.followed for state in states),
        shards=len(states),
    )


def _sum_groups(states: Sequence[GroupState]) -> GroupState:
    lags = [state.lag for state in states]
    return GroupState(
        name=states[0].name,
        position="",
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
        ready=sum(state.ready for state in states),
        running=sum(state.running for state in states),
        scheduled=sum(state.scheduled for state in states),
        dead=sum(state.dead for state in states),
        paused=any(state.paused for state in states),
        consumers=sum(state.consumers for state in states),
        blocked=sum(state.blocked for state in states),
        stopped=sum(state.stopped for state in states),
    )


def _sum_totals(states: Sequence[QueueState | TopicState]) -> dict[str, int]:
    words = dict.fromkeys(chain.from_iterable(state.totals for state in states))
    return {word: sum(state.totals.get(word, 0) for state in states) for word in words}
