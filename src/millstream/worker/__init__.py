"""The worker: serves queues in one process, and the supervisor that keeps several such processes."""

from millstream.worker.worker import Summary, Worker

__all__ = ["Summary", "Worker"]
