"""Background jobs for Python on Redis Streams. These are the public names; errors are in ``millstream.errors``."""

from millstream._version import __version__
from millstream.app import Millstream
from millstream.call import Call
from millstream.current import CurrentJob, current_job
from millstream.dead import DeadJob
from millstream.errors import Reject, Retry, Snooze
from millstream.job import Job
from millstream.policy import RetryPolicy
from millstream.queue import Queue
from millstream.task import AsyncTask, SyncTask

__all__ = [
    "AsyncTask",
    "Call",
    "CurrentJob",
    "DeadJob",
    "Job",
    "Millstream",
    "Queue",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "SyncTask",
    "__version__",
    "current_job",
]
