"""Background jobs and durable events for Python on Redis Streams.

This module exports the public names. Exceptions are in ``millstream.errors``.
"""

# Each name is imported on first use. The supervisor and the command line need few of them, so they start fast and stay small.

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millstream._version import __version__
from millstream.errors import Reject, Retry, Snooze

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.broker.why import Why
    from millstream.events.batch import Batch
    from millstream.events.consumer import Consumer
    from millstream.events.dead_event import DeadEvent
    from millstream.events.delivery import Delivery
    from millstream.events.group import Group
    from millstream.events.topic import Topic
    from millstream.jobs.call import Call
    from millstream.jobs.current import CurrentJob, current_job
    from millstream.jobs.dead import DeadJob
    from millstream.jobs.info import JobInfo
    from millstream.jobs.job import Job
    from millstream.jobs.queue import Queue
    from millstream.jobs.task import AsyncTask, SyncTask
    from millstream.model.policy import RetryPolicy
    from millstream.reporting.problem import Problem
    from millstream.router import Router

__all__ = [
    "AsyncTask",
    "Batch",
    "Call",
    "Consumer",
    "CurrentJob",
    "DeadEvent",
    "DeadJob",
    "Delivery",
    "Group",
    "Job",
    "JobInfo",
    "Millstream",
    "Problem",
    "Queue",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Router",
    "Snooze",
    "SyncTask",
    "Topic",
    "Why",
    "__version__",
    "current_job",
]

_HOMES = {
    "AsyncTask": "jobs.task",
    "Batch": "events.batch",
    "Call": "jobs.call",
    "Consumer": "events.consumer",
    "CurrentJob": "jobs.current",
    "DeadEvent": "events.dead_event",
    "DeadJob": "jobs.dead",
    "Delivery": "events.delivery",
    "Group": "events.group",
    "Job": "jobs.job",
    "JobInfo": "jobs.info",
    "Millstream": "app",
    "Problem": "reporting.problem",
    "Queue": "jobs.queue",
    "RetryPolicy": "model.policy",
    "Router": "router",
    "SyncTask": "jobs.task",
    "Topic": "events.topic",
    "Why": "broker.why",
    "current_job": "jobs.current",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
