"""A logging filter that adds the current job to every log record."""

from __future__ import annotations

import logging

from millstream.jobs.current import running_job

__all__ = ["JobFilter"]


class JobFilter(logging.Filter):
    """Adds ``job_id``, ``task``, ``queue`` and ``attempt`` to every log record.

    Outside a job, and in batch handlers, the text fields are ``"-"`` and ``attempt`` is 0. Add the filter to a logging handler,
    not to a logger, so that it sees the records of every logger:

        handler.addFilter(JobFilter())
        handler.setFormatter(logging.Formatter("%(levelname)s %(task)s[%(job_id)s] %(message)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to the record. Return ``True``: no record is dropped."""
        job = running_job()
        record.job_id, record.task, record.queue, record.attempt = (
            ("-", "-", "-", 0) if job is None else (job.id, job.task, job.queue, job.attempt)
        )
        return True
