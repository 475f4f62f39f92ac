"""The Hello: the first message of a child process to its supervisor."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.model.handler import Handler
from millstream.model.settings import QueueSettings
from millstream.url import Url
from millstream.worker import messages
from millstream.worker.assignment import Assignment
from millstream.worker.hot.runner import longest_timeout


def say_hello(assignment: Assignment, url: Url, grace: float, declared: Mapping[str, QueueSettings]) -> messages.Hello:
    """Return the Hello for an assignment. ``declared`` contains the settings of the app's queues."""
    queues, settings, groups = assignment.queues, assignment.settings, assignment.subscriptions
    handlers: list[tuple[str, Handler]] = [*assignment.tasks.items(), *groups.items()]
    broadcast = {each.address for each in assignment.broadcasts}
    slots = slots_at(assignment)
    return messages.Hello(
        url=url.text,
        namespace=settings.namespace,
        id_ttl=settings.id_ttl,
        grace=grace,
        longest_timeout=longest_timeout([*(handler for _, handler in handlers), *assignment.broadcasts], settings),
        queues=[queue for queue in queues if queue not in broadcast],
        tasks=sorted({task.name for task in assignment.tasks.values()}),
        at_most_once=sorted(name for name, handler in handlers if handler.settings.max_crashes == 0),
        observed=assignment.observers is not None and assignment.observers.listening,
        broadcasts=[each.name for each in assignment.broadcasts if each.address in queues],
        slots={address: sum(each.values()) for address, each in slots.items()},
        at_once=at_once(slots, assignment),
        consumers=consumers_at(assignment, declared),
        fleeting=any(handler.ack == "on_receive" for handler in groups.values()) or bool(assignment.broadcasts),
    )


def slots_at(assignment: Assignment) -> dict[str, dict[bool, int]]:
    """Return how many coroutines (True) and plain functions (False) of each address a process runs at the same time."""
    sizes = _sizes(assignment)
    slots: dict[str, dict[bool, int]] = {}
    for address in assignment.queues:
        if (group := assignment.subscriptions.get(address)) is not None:
            most = sizes[group.is_async]
            slots[address] = {group.is_async: most if group.concurrency is None else min(most, group.concurrency)}
        else:
            kinds = {task.is_async for task in assignment.tasks.values() if task.settings.queue == address}
            slots[address] = {kind: sizes[kind] for kind in kinds or {True}}
    return slots


def at_once(slots: Mapping[str, Mapping[bool, int]], assignment: Assignment) -> int:
    """Return the maximum number of jobs that a process runs at the same time, over all addresses and both kinds of slots."""
    sizes = _sizes(assignment)
    return sum(min(size, sum(each.get(kind, 0) for each in slots.values())) for kind, size in sizes.items())


def consumers_at(assignment: Assignment, declared: Mapping[str, QueueSettings]) -> dict[str, tuple[int, int]]:
    """Return the minimum and maximum number of processes over all workers, by address, where declared."""
    groups = assignment.subscriptions
    # Handlers of dead letters have no ``consumers`` option.
    said = {each: getattr(groups.get(each) or declared.get(each), "consumers", None) for each in assignment.queues}
    return {address: (bounds[0], bounds[1]) for address, bounds in said.items() if bounds is not None}


def _sizes(assignment: Assignment) -> dict[bool, int]:
    return {True: assignment.concurrency, False: assignment.threads}
