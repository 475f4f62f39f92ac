"""The logging filter for users."""

from __future__ import annotations

import logging

from millstream import Millstream
from millstream.logging import JobFilter
from tests.stage import looped, new_app


class Records(logging.Handler):
    """Stores the job fields of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(JobFilter())
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(message)s %(task)s %(queue)s %(job_id)s %(attempt)d"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def _declare(app: Millstream, log: logging.Logger) -> list[object]:
    @app.task(queue="mail")
    async def send() -> None:
        log.warning("sending")

    @app.task
    def resize() -> None:
        log.warning("resizing")

    return [send, resize]


@looped
async def test_each_log_record_of_a_handler_names_its_job_and_other_records_name_none() -> None:
    app, log, records = new_app(), logging.getLogger("shop"), Records()
    log.addHandler(records)
    try:
        send, resize = _declare(app, log)
        async with app, app.worker():
            jobs = [await task.enqueue() for task in (send, resize)]  # type: ignore[attr-defined]
            for job in jobs:
                await job.result(timeout=10)
        log.warning("closing")
    finally:
        log.removeHandler(records)
    assert set(records.lines) == {
        f"sending send mail {jobs[0].id} 1",
        f"resizing resize default {jobs[1].id} 1",
        "closing - - - 0",
    }
