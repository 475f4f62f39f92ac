"""Makes a worker's lanes from its assignment, and finds the addresses that have no free slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from millstream.broker.values import SUSPECT_AFTER
from millstream.jobs.task import Task
from millstream.model.handler import GroupHandler, Handler
from millstream.model.serving import Serving
from millstream.worker.assignment import Assignment
from millstream.worker.hot.hold import ASYNC, THREAD, Hold
from millstream.worker.hot.lane import Count, Lane
from millstream.worker.services.ownership import SharedAddress


def lanes_of(assignment: Assignment) -> tuple[list[Lane], list[SharedAddress]]:
    """Return a lane for each address or shard that is claimed, and the addresses that workers share among themselves.

    Prefixes and broadcasts are not claimed and get no lanes.
    """
    elsewhere = {*assignment.prefixes, *(broadcast.address for broadcast in assignment.broadcasts)}
    asked = {each.address: each for each in assignment.serving}
    found: list[Lane] = []
    shared: list[SharedAddress] = []
    for queue in assignment.queues:
        if queue in elsewhere:
            continue
        serving = asked.get(queue, Serving(queue))
        lanes = make_lanes(serving, assignment.tasks, assignment.subscriptions.get(queue.base))
        found += lanes
        if serving.shards or serving.max_consumers is not None:
            shared.append(SharedAddress(serving, lanes))
    return found, shared


def make_lanes(serving: Serving, tasks: Mapping[str, Task[..., Any]], subscription: GroupHandler | None) -> list[Lane]:
    """Return one lane, or one for each shard, sized for the tasks whose default queue this is.

    Other tasks may be enqueued to the same queue: their jobs find slots, too.
    """
    handlers: list[Handler] = [task for task in tasks.values() if task.settings.queue == serving.address.base]
    if subscription is not None:
        handlers = [subscription]
    mine = [handler.settings for handler in handlers]
    kinds = {ASYNC if handler.is_async else THREAD for handler in handlers}
    # A job with only one allowed crash left runs alone, so that only its own crash can make it dead.
    limits = [settings.max_crashes for settings in mine if settings.max_crashes > 0]
    make = partial(
        Lane,
        kinds=tuple(sorted(kinds)) or (ASYNC,),
        buffered=all(settings.max_crashes > 0 for settings in mine),
        suspect_after=min([SUSPECT_AFTER, *limits]),
        handles=subscription,
        max_consumers=1 if serving.shards else serving.max_consumers,
        order=serving.order,
        count=Count(serving.shards or 1),
    )
    return [make(address) for address in serving.address.shards(serving.shards)]


def full_addresses(lanes: Sequence[Lane], hold: Hold) -> list[str]:
    """Return the addresses for which this worker cannot start another job now. A base address counts as free if one of its
    shards has a free slot."""
    free = {
        lane.queue.base
        for lane in lanes
        if not hold.shut
        and (lane.limit is None or lane.active < lane.limit)
        and any(hold.free[kind] > 0 for kind in lane.kinds)
    }
    return [str(queue) for queue in dict.fromkeys(lane.queue.base for lane in lanes) if queue not in free]
