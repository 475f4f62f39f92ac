"""For your own logging: a filter that says on every record which job it belongs to."""

from __future__ import annotations

import logging

from millstream.jobs.current import running_job

__all__ = ["JobFilter"]


class JobFilter(logging.Filter):
    """Puts ``job_id``, ``task``, ``queue`` and ``attempt`` on every record; outside a job, and in a
    handler of batches, they are ``"-"``, and 0.

    Add it to a handler, so that records of every logger pass it, and use the names in its format:

        handler.addFilter(JobFilter())
        handler.setFormatter(logging.Formatter("%(levelname)s %(task)s[%(job_id)s] %(message)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True."""
        job = running_job()
        record.job_id, record.task, record.queue, record.attempt = (
            ("-", "-", "-", 0) if job is None else (job.id, job.task, job.queue, job.attempt)
        )
        return True
