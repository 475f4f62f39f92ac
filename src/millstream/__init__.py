"""Background jobs and durable events for Python on Redis Streams. The public names; errors are in ``millstream.errors``.

A name is imported when it is first used: a supervisor and the command line, which need few of them, stay small and quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millstream._version import __version__
from millstream.errors import Reject, Retry, Snooze

if TYPE_CHECKING:
    from millstream.app import Millstream
    from millstream.batch import Batch
    from millstream.broker.why import Why
    from millstream.call import Call
    from millstream.consumer import Consumer
    from millstream.current import CurrentJob, current_job
    from millstream.dead import DeadJob
    from millstream.dead_event import DeadEvent
    from millstream.delivery import Delivery
    from millstream.group import Group
    from millstream.job import Job
    from millstream.job_info import JobInfo
    from millstream.policy import RetryPolicy
    from millstream.problem import Problem
    from millstream.queue import Queue
    from millstream.task import AsyncTask, SyncTask
    from millstream.topic import Topic

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
    "Snooze",
    "SyncTask",
    "Topic",
    "Why",
    "__version__",
    "current_job",
]

_HOMES = {
    "AsyncTask": "task",
    "Batch": "batch",
    "Call": "call",
    "Consumer": "consumer",
    "CurrentJob": "current",
    "DeadEvent": "dead_event",
    "DeadJob": "dead",
    "Delivery": "delivery",
    "Group": "group",
    "Job": "job",
    "JobInfo": "job_info",
    "Millstream": "app",
    "Problem": "problem",
    "Queue": "queue",
    "RetryPolicy": "policy",
    "SyncTask": "task",
    "Topic": "topic",
    "Why": "broker.why",
    "current_job": "current",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
